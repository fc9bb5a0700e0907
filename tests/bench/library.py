"""Times of the same work through PyTorch, for `rlk bench`: prints op,shape,us rows with the names the bench uses.

Medians of CUDA-graph replays over rotated inputs that exceed the L2, as in src/bench/cuda/harness.cpp.
"""
import statistics
import torch
import torch.nn.functional as F

L2_BYTES = 60e6


def time_us(make, bytes_per_set):
    """make(set) -> callable; the sets together pass the L2 three times."""
    sets = max(1, min(64, int(3 * L2_BYTES / bytes_per_set + 1)))
    calls = [make(i) for i in range(sets)]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(5):
        graph.replay()
    times = []
    for _ in range(11):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / sets)
    return statistics.median(times)


def row(op, shape, make, bytes_per_set):
    print(f"{op},{shape},{time_us(make, bytes_per_set):.3f}", flush=True)


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def main():
    print("op,shape,us")
    d, f, v = 4096, 12288, 152576
    w = bf16(d)
    for t in (8, 64, 4096):
        def residual(_, t=t):
            x, delta = bf16(t, d), bf16(t, d)
            return lambda: F.rms_norm(x + delta, (d,), w, 1e-6)
        row("rms_norm+residual", f"T={t} D=4096", residual, t * d * 8)

    def norm(_):
        x = bf16(4096, d)
        return lambda: F.rms_norm(x, (d,), w, 1e-6)
    row("rms_norm", "T=4096 D=4096", norm, 4096 * d * 4)
    for t in (8, 4096):
        def swiglu(_, t=t):
            x = bf16(t, 2 * f)
            return lambda: F.silu(x[:, :f]) * x[:, f:]
        row("swiglu", f"T={t} D=4096", swiglu, t * f * 6)

    def logprob(_):
        x = bf16(1024, v)
        target = torch.randint(0, v, (1024, 1), device="cuda")
        return lambda: torch.log_softmax(x.float(), -1).gather(1, target)
    row("logprob", "T=1024 V=152576", logprob, 1024 * v * 2)
    for t in (1, 8, 64):
        def sample(_, t=t):
            x = bf16(t, v)
            # Gumbel-max: an exponential draw a token.
            return lambda: (torch.softmax(x.float(), -1) / torch.empty_like(x, dtype=torch.float32).exponential_()).argmax(-1)
        row("sample", f"T={t} V=152576", sample, t * v * 2)

    p = torch.randn(1 << 28, device="cuda", requires_grad=True)
    p.grad = torch.randn_like(p)
    adam = torch.optim.AdamW([p], lr=1e-3, betas=(0.9, 0.98), weight_decay=0.1, fused=True, capturable=True)
    adam.step()
    row("adamw", "n=268M", lambda _: adam.step, 1e12)


if __name__ == "__main__":
    main()
