#!/usr/bin/env python3
"""cuDNN's and flash's figures for the work of attention_bench, through PyTorch: forward, backward, decode."""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

F = torch.nn.functional.scaled_dot_product_attention
H, KH, D = 32, 8, 128


def rand(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def steady(fn, warm=200.0, measure=250.0):
    """Milliseconds a call after `warm` ms of work."""
    a, b = torch.cuda.Event(True), torch.cuda.Event(True)

    def run(n):
        a.record()
        for _ in range(n):
            fn()
        b.record()
        torch.cuda.synchronize()
        return a.elapsed_time(b) / n

    run(1)
    once = run(2)
    run(max(1, int(warm / once)))
    return run(max(3, int(measure / once)))


def prefill():
    row = []
    for B, S in ((8, 512), (4, 2048), (2, 8192), (1, 16384)):
        q = rand(B, S, H, D).transpose(1, 2)
        k, v = (rand(B, S, KH, D).transpose(1, 2) for _ in range(2))
        with torch.no_grad():
            ms = steady(lambda: F(q, k, v, is_causal=True, enable_gqa=True))
        row.append(f"{B}x{S} {ms * 1e3:8.1f} us {2 * B * H * S * S * D / ms / 1e9:4.0f} TFLOP/s")
    return "  ".join(row)


def backward():
    row = []
    for B, S in ((4, 2048), (2, 8192), (1, 16384)):
        q = rand(B, S, H, D).transpose(1, 2).requires_grad_()
        k, v = (rand(B, S, KH, D).transpose(1, 2).requires_grad_() for _ in range(2))
        o = F(q, k, v, is_causal=True, enable_gqa=True)
        g = torch.randn_like(o)
        ms = steady(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True))
        row.append(f"{B}x{S} {ms * 1e3:8.1f} us {5 * B * H * S * S * D / ms / 1e9:4.0f} TFLOP/s")
    return "  ".join(row)


def decode():
    row = []
    for B, S in ((8, 1024), (8, 8192), (64, 2048), (1, 8192)):
        n = max(2, int(600e6 / (B * S * KH * D * 4)))
        q = rand(B, H, 1, D)
        kv = [tuple(rand(B, S, KH, D).transpose(1, 2) for _ in range(2)) for _ in range(n)]

        def all_sets():
            for k, v in kv:
                F(q, k, v, enable_gqa=True)

        with torch.no_grad():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                all_sets()
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                all_sets()
            ms = steady(graph.replay) / n
        row.append(f"{B}x{S} {ms * 1e3:6.2f} us {B * S * KH * D * 4 / ms / 1e6:4.0f} GB/s")
    return "  ".join(row)


for name, backend in (("cuDNN", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
    if name == "flash" and "flash" not in sys.argv:
        continue
    for part in (prefill, backward, decode):
        try:
            with sdpa_kernel(backend):
                print(f"yard {name} {part.__name__:9s} {part()}", flush=True)
        except Exception as error:  # a backend may lack a case
            print(f"yard {name} {part.__name__:9s} failed: {str(error)[:120]}", flush=True)
