#!/usr/bin/env python3
"""Asked and measured: judges the rows that `rlk bench --csv` wrote. targets.py CSV...; exit 1 when a target is missed."""
import math
import sys

WHOLE = ("N=6144 K=4096", "N=4096 K=4096", "N=24576 K=4096", "N=4096 K=12288", "N=152576 K=4096")


def read(paths):
    rows = {}
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(("#", "op,")):
                    continue
                op, shape, *numbers = line.strip().split(",")
                rows[op, shape] = dict(zip(("us", "gbps", "of_copy", "tflops", "library"), map(float, numbers)))
    return rows


class Judge:
    def __init__(self, rows):
        self.rows, self.failed, self.missing = rows, 0, 0

    def say(self, what, asked, measured, ok):
        self.failed += not ok
        print(f"{'PASS' if ok else 'FAIL'}  {what:58s} asked {asked:24s} measured {measured}")

    def get(self, op, shape):
        """The row, or None where it was not measured."""
        found = self.rows.get((op, shape))
        if found is None:
            self.missing += 1
            print(f"----  {op} {shape}: not measured")
        return found

    def ratio(self, op, shape):
        row = self.get(op, shape)
        return row["library"] / row["us"] if row and row["library"] > 0 else None

    def ratios(self, what, op_shapes, mean, lowest):
        found = [r for r in (self.ratio(*x) for x in op_shapes) if r]
        if not found:
            return
        measured = math.exp(sum(map(math.log, found)) / len(found))
        self.say(what, f"mean >= {mean}, none < {lowest}", f"mean {measured:.3f}, lowest {min(found):.3f}",
                 measured >= mean and min(found) >= lowest)

    def least(self, key, op, shape, asked, unit=""):
        row = self.get(op, shape)
        if row:
            self.say(f"{op} {shape}", f">= {asked} {unit}", f"{row[key]:.3f} ({row['us']:.2f} us)", row[key] >= asked)

    def most_us(self, op, shape, asked):
        row = self.get(op, shape)
        if row:
            library = f", library {row['library']:.1f}" if row["library"] > 0 else ""
            self.say(f"{op} {shape}", f"<= {asked} us", f"{row['us']:.2f}{library}", row["us"] <= asked)


def gemm(j):
    def at(op, *tokens):
        return [(op, f"T={t} {shape}") for t in tokens for shape in WHOLE]
    j.ratios("gemm and dgrad beside cuBLASLt", at("gemm", 4096, 1024) + at("gemm_dgrad", 4096, 1024), 0.94, 0.90)
    j.ratios("wgrad of 4096 tokens", at("gemm_wgrad", 4096), 0.90, 0.0)
    j.ratios("wgrad of 1024 tokens", at("gemm_wgrad", 1024), 0.80, 0.0)
    for t in (1, 8, 16, 64):
        for shape in WHOLE:
            name = f"T={t} {shape} 1/1"
            j.least("gbps", "gemm_decode", name, 3000 if t == 64 else 3700, "GB/s")
            ratio = j.ratio("gemm_decode", name)
            if ratio:
                j.say(f"gemm_decode {name}", ">= 1.0 x cuBLASLt", f"{ratio:.3f}", ratio >= 1.0)


def attention(j):
    for shape in ("4x2048", "2x8192", "1x16384"):
        j.ratios(f"attention forward {shape} beside cuDNN", [("attention", f"prefill {shape} pages of 128")], 1.0, 1.0)
    for shape in ("4x2048", "2x8192", "1x16384"):
        j.ratios(f"attention backward {shape} beside cuDNN", [("attention_bwd", shape)], 0.65, 0.65)
    for shape, asked in (("8x1024", 3000), ("8x8192", 3800), ("64x2048", 3800), ("1x8192", 2600)):
        j.least("gbps", "attention", f"decode {shape} pages of 128", asked, "GB/s")


def others(j):
    j.most_us("logprob", "T=1024 V=152576", 150)
    j.most_us("logprob", "T=1024 top_p=0.95 V=152576", 600)
    j.most_us("sample", "T=8 V=152576", 40)
    for op, shape in (("adamw", "n=268M"), ("rms_norm", "T=4096 D=4096"), ("rms_norm+residual", "T=4096 D=4096"),
                      ("rms_norm_bwd", "T=4096 D=4096"), ("rms_norm_wgrad", "T=8192 D=4096"),
                      ("qk_norm_rope", "T=4096 D=4096"), ("qk_norm_rope_bwd", "T=4096 D=4096"),
                      ("swiglu", "T=4096 D=4096"), ("swiglu_bwd", "T=4096 D=4096")):
        j.least("of_copy", op, shape, 0.85, "x copy")
    j.least("gbps", "sha256_pieces", "16 GiB in pieces of 1024 KiB", 200, "GB/s")
    for kib in (8, 64):
        j.most_us("all_gather", f"2 GPUs {kib} KiB a rank", 6)
        j.most_us("tree_reduce", f"2 GPUs {kib} KiB to bf16", 6)


def main():
    judge = Judge(read(sys.argv[1:]))
    gemm(judge)
    attention(judge)
    others(judge)
    print(f"{judge.failed} targets missed, {judge.missing} rows not measured")
    sys.exit(judge.failed > 0)


if __name__ == "__main__":
    main()
