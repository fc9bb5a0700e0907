#!/usr/bin/env python3
"""Trains tokenizer.json on prompts.jsonl: byte-level BPE in the Hugging Face format, with Qwen3's pipeline.

Deterministic (ties go to the pair that sorts first; standard library only). The text is ASCII, so Python's re can stand in
for the \\p{L} classes of the pattern that the file carries.
Usage: make_tokenizer.py [PROMPTS [FILE]]
"""
import collections
import json
import os
import re
import sys

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
ASCII_PATTERN = re.compile(PATTERN.replace(r"[^\s\p{L}\p{N}]", r"[^\sA-Za-z0-9]")
                           .replace(r"[^\r\n\p{L}\p{N}]", r"[^\r\nA-Za-z0-9]")
                           .replace(r"\p{L}", "[A-Za-z]").replace(r"\p{N}", "[0-9]"))
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "</think>"]  # added tokens that decode to text, as in Qwen3
# Words of the chat template, so that a templated prompt stays short.
EXTRA_TEXT = "system\nuser\nassistant\n\n" * 8


def byte_alphabet():
    """The printable stand-in of every byte, in GPT-2's order: printable bytes first."""
    printable = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in printable]
    table = {b: chr(b) for b in printable}
    table.update({b: chr(256 + i) for i, b in enumerate(others)})
    return table


def train(words, alphabet):
    """All merges that some word of at least two occurrences still asks for."""
    pieces = {word: [alphabet[b] for b in word.encode()] for word in words}
    merges = []
    while True:
        pairs = collections.Counter()
        for word, parts in pieces.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        if not pairs:
            return merges
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] < 2:
            return merges
        merges.append(best)
        for word, parts in pieces.items():
            merged, i = [], 0
            while i < len(parts):
                step = 2 if tuple(parts[i:i + 2]) == best else 1
                merged.append("".join(parts[i:i + step]))
                i += step
            pieces[word] = merged


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    prompts = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "prompts.jsonl")
    path = sys.argv[2] if len(sys.argv) > 2 else os.path.join(here, "tokenizer.json")
    words = collections.Counter(ASCII_PATTERN.findall(EXTRA_TEXT))
    with open(prompts, encoding="ascii") as lines:
        for line in lines:
            row = json.loads(line)
            words.update(ASCII_PATTERN.findall(row["prompt"]))
            words.update(ASCII_PATTERN.findall(row["solution"]))
    alphabet = byte_alphabet()
    merges = train(words, alphabet)
    vocab = {}
    for token in list(alphabet.values()) + ["".join(pair) for pair in merges]:
        vocab.setdefault(token, len(vocab))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab) + i, "content": token, "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": token in SPECIAL}
                         for i, token in enumerate(SPECIAL + ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
            byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [list(pair) for pair in merges]},
    }
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        json.dump(tokenizer, out, ensure_ascii=False, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
