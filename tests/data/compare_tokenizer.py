#!/usr/bin/env python3
"""Compares `rlk tokenize` with the `tokenizers` package on random strings, and with a file of vectors.

usage: compare_tokenizer.py RLK TOKENIZER_JSON [--count N] [--seed S] [--vectors FILE] [--write FILE]
Exit code 1 when anything differs. Not part of the test suite: it needs `pip install tokenizers`. --write keeps the package's
answers; tokenizer_vectors.json is `--count 80 --write tests/data/tokenizer_vectors.json` on profiles/tiny/tokenizer.json.
"""
import argparse
import json
import random
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

WORDS = ("the a don't I'LL we've can't ſ's 'ſ x=1 f(x) \\frac{1}{2} \\boxed{42} 3.14 1,000,000 naïve café Straße Привет мир "
         "日本語 テスト 한국어 हिन्दी العربية ไทย 👩‍👩‍👧 🇩🇪 é ﬁ Å Ω ① ½ ² Ⅳ ٣ 𝟘 𝒳 e\u0301 \u1100\u1161\u11a8 \u0344 \u2126").split(" ")
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\u1680",
          "\x0b", "\x1c", "\u202f", "\ufeff"]
RANGES = [(0x20, 0x7F), (0, 0x100), (0x300, 0x370), (0x400, 0x530), (0x900, 0xE00), (0x1100, 0x1200), (0x2000, 0x2100),
          (0x3040, 0x3100), (0x4E00, 0x5200), (0xAC00, 0xB000), (0xF900, 0xFB50), (0x1D400, 0x1D800), (0x1F300, 0x1F700),
          (0, 0xD800), (0xE000, 0x110000)]


def code_point(r):
    low, high = r.choice(RANGES)
    return chr(r.randrange(low, high))


def one(r, added):
    parts = []
    for _ in range(r.randrange(1, 12)):
        kind = r.randrange(10)
        if kind < 3:
            parts.append(r.choice(WORDS))
        elif kind < 5:
            parts.append(r.choice(SPACES))
        elif kind < 6:
            parts.append("".join(r.choice(SPACES) for _ in range(r.randrange(1, 6))))
        elif kind < 9:
            low, high = r.choice(RANGES)
            parts.append("".join(chr(r.randrange(low, high)) for _ in range(r.randrange(1, 9))))
        else:
            token = r.choice(added)
            parts.append(token if r.random() < 0.7 else token[:r.randrange(1, len(token))])
    text = "".join(parts)
    return "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)


def rlk_lines(rlk, tokenizer, objects, *flags):
    lines = "".join(json.dumps(o) + "\n" for o in objects)
    done = subprocess.run([rlk, "tokenize", "--tokenizer", tokenizer, *flags], input=lines.encode(), stdout=subprocess.PIPE,
                          check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlk")
    parser.add_argument("tokenizer")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vectors")
    parser.add_argument("--write")
    args = parser.parse_args()
    reference = Tokenizer.from_file(args.tokenizer)
    added = sorted(t.content for t in reference.get_added_tokens_decoder().values())
    r = random.Random(args.seed)
    cases = [one(r, added) for _ in range(args.count)]
    expected = [{"text": text, "ids": e.ids, "decoded": reference.decode(e.ids, skip_special_tokens=False)}
                for text, e in zip(cases, reference.encode_batch(cases, add_special_tokens=True))]
    if args.vectors:
        with open(args.vectors, encoding="utf-8") as f:
            expected += json.load(f)
    if args.write:
        with open(args.write, "w", encoding="ascii") as f:
            f.write("[\n" + ",\n".join(json.dumps(e) for e in expected) + "\n]\n")
    # Decoding is also compared on ids that no text gives.
    decodes = [[r.randrange(reference.get_vocab_size()) for _ in range(r.randrange(20))] for _ in range(args.count // 10)]
    encoded = rlk_lines(args.rlk, args.tokenizer, [{"text": e["text"]} for e in expected])
    decoded = rlk_lines(args.rlk, args.tokenizer, [{"ids": e["ids"]} for e in expected] + [{"ids": d} for d in decodes],
                        "--decode")
    wrong = 0
    for e, got in zip(expected, encoded):
        if e["ids"] != got["ids"]:
            wrong += 1
            if wrong <= 20:
                print("encode", ascii(e["text"]), "expected", e["ids"], "got", got["ids"])
    wanted = [e["decoded"] for e in expected] + [reference.decode(d, skip_special_tokens=False) for d in decodes]
    for text, got in zip(wanted, decoded):
        if text != got["text"]:
            wrong += 1
            if wrong <= 20:
                print("decode: expected", ascii(text), "got", ascii(got["text"]))
    print(f"{len(expected)} texts and {len(decodes)} random id lists: {wrong} differences "
          f"(Unicode data here: {unicodedata.unidata_version})")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
