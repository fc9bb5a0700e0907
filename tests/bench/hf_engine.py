"""Hugging Face transformers on a Qwen3 shape with random weights, one GPU: what `rlk bench score|train` is judged by.

Prints one line a case: scoring (forward, fp32 log-softmax, the tokens' log-probs) and forward + backward with and without
activation checkpointing, medians of warmed-up calls.

    python3 tests/bench/hf_engine.py [--shape qwen3-8b] [--sequences 8] [--length 512] [--repeat 5]
"""
import argparse
import statistics
import time

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

SHAPES = {  # hidden, ffn, layers, heads, kv heads, tied
    "qwen3-0.6b": (1024, 3072, 28, 16, 8, True),
    "qwen3-8b": (4096, 12288, 36, 32, 8, False),
}


def make_model(shape):
    d, f, layers, heads, kv, tied = SHAPES[shape]
    config = Qwen3Config(vocab_size=151936, hidden_size=d, intermediate_size=f, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=kv, head_dim=128, tie_word_embeddings=tied,
                         max_position_embeddings=40960, rope_theta=1e6, attn_implementation="sdpa", use_cache=False)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        return Qwen3ForCausalLM(config)


def median_s(call, repeat):
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def token_logp(model, ids):
    logits = model(ids).logits[:, :-1]
    return torch.log_softmax(logits.float(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3-8b", choices=SHAPES)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    model = make_model(args.shape)
    parameters = sum(p.numel() for p in model.parameters())
    ids = torch.randint(0, 151936, (args.sequences, args.length), device="cuda")
    tokens = args.sequences * (args.length - 1)

    def report(name, seconds, per_parameter):
        print(f"HF {name} {args.shape}: {args.sequences} x {args.length} tokens, {seconds * 1e3:.2f} ms, "
              f"{tokens / seconds:.0f} tokens/s, {tokens / seconds * per_parameter * parameters / 1e12:.1f} TFLOP/s "
              f"at {per_parameter}N, peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
        torch.cuda.reset_peak_memory_stats()

    @torch.no_grad()
    def score():
        token_logp(model.eval(), ids)

    def train():
        model.train()
        model.zero_grad(set_to_none=True)
        token_logp(model, ids).mean().neg().backward()

    report("score", median_s(score, args.repeat), 2)
    for checkpointing in (True, False):
        name = "train, checkpointing" if checkpointing else "train"
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.gradient_checkpointing_disable()
        try:
            report(name, median_s(train, args.repeat), 6)
        except torch.OutOfMemoryError:
            print(f"HF {name} {args.shape}: out of memory", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
