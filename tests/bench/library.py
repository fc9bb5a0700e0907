"""Times of the same work through PyTorch, for `rlk bench`: prints op,shape,us rows with the names the bench uses.

Medians of CUDA-graph replays over rotated inputs that exceed the L2, as in src/bench/cuda/harness.cpp. Attention is
cuDNN's, matrix-bound work after 200 ms of it.
"""
import statistics
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

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


def emit(op, shape, us):
    print(f"{op},{shape},{us:.3f}", flush=True)


def row(op, shape, make, bytes_per_set):
    emit(op, shape, time_us(make, bytes_per_set))


def steady_us(fn, warm_ms=200.0, measure_ms=100.0):
    """Of one call, after `warm_ms` of them: matrix work settles at the power limit."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def run(n):
        start.record()
        for _ in range(n):
            fn()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / n

    run(1)
    once = run(2)
    run(max(1, int(warm_ms / once)))
    return run(max(3, int(measure_ms / once))) * 1e3


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def qkv(b, s):
    q = bf16(b, s, HEADS, HEAD_DIM).transpose(1, 2)
    return q, *(bf16(b, s, KV_HEADS, HEAD_DIM).transpose(1, 2) for _ in range(2))


def attention():
    sdpa = F.scaled_dot_product_attention
    for b, s in ((8, 512), (4, 2048), (2, 8192), (1, 16384)):
        q, k, v = qkv(b, s)
        us = steady_us(lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True))
        for page in (128, 16):
            emit("attention", f"prefill {b}x{s} pages of {page}", us)
    for b, s in ((4, 2048), (2, 8192), (1, 16384)):
        q, k, v = (x.requires_grad_() for x in qkv(b, s))
        o = sdpa(q, k, v, is_causal=True, enable_gqa=True)
        g = torch.randn_like(o)
        emit("attention_bwd", f"{b}x{s}", steady_us(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True)))
    for b, s in ((1, 1024), (8, 1024), (64, 1024), (8, 8192), (64, 2048), (1, 8192)):
        q = bf16(b, HEADS, 1, HEAD_DIM)

        def decode(_, b=b, s=s, q=q):
            _, k, v = qkv(b, s)
            return lambda: sdpa(q, k, v, enable_gqa=True)
        with torch.no_grad():
            us = time_us(decode, b * s * KV_HEADS * HEAD_DIM * 4)
        for kind in ("pages of 128", "pages of 16", "pages of 128 not past_ready"):
            emit("attention", f"decode {b}x{s} {kind}", us)


def main():
    print("op,shape,us")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        attention()
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
