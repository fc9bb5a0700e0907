#!/usr/bin/env python3
"""Compares rlk with Hugging Face transformers (CPU, float32) on a model folder, for example one that `rlk export` wrote.

usage: compare_transformers.py RLK MODEL_DIR [--sequences N] [--length T] [--positions P] [--vocabulary V] [--seed S]
Exit code 1 when they disagree. Not part of the test suite: it needs `pip install torch transformers`.

- tokens: transformers' tokenizer and `rlk tokenize` on some texts, exactly
- log-probs: of every token of N random sequences of T tokens
- logits: at P places, of V tokens of the vocabulary (all of them by default): `rlk score` gives the log-prob of each as a
  continuation; both sides are centred, since a log-prob is a logit up to a constant

rlk's weights, activations and logits are bf16. So is transformers' own bfloat16 forward pass, which rounds at other places and
whose error against its float32 one is measured on the same tokens: rlk's mean log-prob error and relative norm error of the
logits may be 1.5 times as large (they are a few numbers' statistics), and its worst log-prob error twice.
"""
import argparse
import json
import math
import random
import subprocess
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

TEXTS = ["Hello, world!", "  12345 + 678.9 = ?\n\n\\boxed{42}", "naïve café — “quotes” 日本語 👩‍👩‍👧", "<think>\nno\n</think>\n\n<|im_end|>"]


def lines(command, objects):
    done = subprocess.run(command, input="".join(json.dumps(o) + "\n" for o in objects).encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def check_tokens(rlk, model_dir):
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    ours = lines([rlk, "tokenize", "--tokenizer", model_dir + "/tokenizer.json"], [{"text": t} for t in TEXTS])
    wrong = sum(o["ids"] != tokenizer.encode(t) for o, t in zip(ours, TEXTS))
    print(f"tokens: {len(TEXTS)} texts, {wrong} differ")
    return wrong == 0


def logits_of(model_dir, dtype, sequences):
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()
    with torch.no_grad():
        return [model(torch.tensor([s])).logits[0].double() for s in sequences]


def log_softmax(logits):
    return torch.log_softmax(logits, -1)


def centred(x):
    return x - x.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlk")
    parser.add_argument("model_dir")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    good = check_tokens(args.rlk, args.model_dir)
    config = AutoConfig.from_pretrained(args.model_dir)
    r = random.Random(args.seed)
    sequences = [[r.randrange(config.vocab_size) for _ in range(args.length)] for _ in range(args.sequences)]
    exact, rounded = [logits_of(args.model_dir, dtype, sequences) for dtype in (torch.float32, torch.bfloat16)]
    score = [args.rlk, "score", "--model", args.model_dir]

    scored = lines(score, [{"ids": s} for s in sequences])
    ours, theirs = [], []
    for s, x, y, line in zip(sequences, exact, rounded, scored):
        index = torch.tensor(s[1:]).unsqueeze(1)
        truth = log_softmax(x[:-1]).gather(1, index).squeeze(1)
        ours.append((torch.tensor(line["logp"], dtype=torch.double) - truth).abs())
        theirs.append((log_softmax(y[:-1]).gather(1, index).squeeze(1) - truth).abs())
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    print(f"log-probs of {len(ours)} tokens, against float32: mean error {ours.mean():.2e} (transformers' bfloat16: "
          f"{theirs.mean():.2e}), worst {ours.max():.2e} ({theirs.max():.2e})")
    good = good and ours.mean() <= 1.5 * theirs.mean() and ours.max() <= 2 * theirs.max()

    tokens = r.sample(range(config.vocab_size), args.vocabulary) if args.vocabulary else list(range(config.vocab_size))
    errors, norm = [0.0, 0.0], 0.0
    for _ in range(args.positions):
        i, t = r.randrange(args.sequences), r.randrange(args.length - 1)
        prefix = sequences[i][:t + 1]
        rows = lines(score, [{"ids": prefix + [v], "prompt_len": len(prefix)} for v in tokens])
        mine = centred(torch.tensor([row["logp"][0] for row in rows], dtype=torch.double))
        truth, other = centred(exact[i][t][tokens]), centred(rounded[i][t][tokens])
        norm += (truth ** 2).sum().item()
        for k, x in enumerate((mine, other)):
            errors[k] += ((x - truth) ** 2).sum().item()
    mine, other = [math.sqrt(e / norm) for e in errors]
    print(f"logits of {args.positions} places x {len(tokens)} tokens, against float32: relative norm error {mine:.2e} "
          f"(transformers' bfloat16: {other:.2e})")
    good = good and mine <= 1.5 * other
    print("agree" if good else "DISAGREE")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
