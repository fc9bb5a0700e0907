#!/usr/bin/env python3
"""Writes prompts.jsonl: small arithmetic word problems with label and worked solution, one object a line.

Deterministic (own generator, Python's standard library only): the same bytes on every machine.
Usage: make_prompts.py [FILE]
"""
import json
import os
import sys

ROWS = 3000
MASK = (1 << 64) - 1


class Random:
    """splitmix64: Python promises no stable bits for random.choice across versions."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return ((x ^ (x >> 31)) * n) >> 64 if n > 1 else 0

    def pick(self, items):
        return items[self.below(len(items))]

    def between(self, low, high):
        return low + self.below(high - low + 1)


NAMES = ["Ann", "Ben", "Eva", "Leo", "Mia", "Sam", "Tom", "Zoe"]
ITEMS = ["apples", "books", "coins", "cups", "eggs", "pens", "shells", "stamps"]
BOXES = ["bags", "boxes", "rows"]


def addition(r):
    a, b = r.between(3, 24), r.between(2, 12)
    text = r.pick(["{n} has {a} {i} and buys {b} more. How many {i} does {n} have?",
                   "{n} had {a} {i} and found {b} more. How many {i} now?",
                   "What is {a} plus {b}?"])
    return text, a, b, f"{a}+{b}={a + b}", a + b


def subtraction(r):
    a = r.between(12, 36)
    b = r.between(2, 11)
    text = r.pick(["{n} has {a} {i} and gives away {b}. How many {i} are left?",
                   "{n} had {a} {i} and lost {b}. How many {i} now?",
                   "What is {a} minus {b}?"])
    return text, a, b, f"{a}-{b}={a - b}", a - b


def multiplication(r):
    a, b = r.between(2, 9), r.between(2, 9)
    text = r.pick(["{n} has {a} {x} of {b} {i}. How many {i} is that?",
                   "{n} buys {a} {i} for {b} coins each. What is the price?",
                   "What is {a} times {b}?"])
    return text, a, b, f"{a}*{b}={a * b}", a * b


def row(r):
    kind = r.pick([addition, addition, subtraction, subtraction, multiplication])
    text, a, b, work, answer = kind(r)
    item = r.pick(ITEMS)
    if item == "coins" and "coins" in text:
        item = "cups"
    prompt = text.format(n=r.pick(NAMES), i=item, x=r.pick(BOXES), a=a, b=b)
    return {"prompt": prompt + "\n", "label": str(answer), "solution": f"{work} \\boxed{{{answer}}}"}


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "prompts.jsonl")
    r, seen, lines = Random(20250117), set(), []
    while len(lines) < ROWS:
        problem = row(r)
        if problem["prompt"] not in seen:
            seen.add(problem["prompt"])
            lines.append(json.dumps(problem) + "\n")
    with open(path, "w", encoding="ascii", newline="\n") as out:
        out.writelines(lines)


if __name__ == "__main__":
    main()
