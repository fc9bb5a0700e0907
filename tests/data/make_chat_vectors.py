#!/usr/bin/env python3
"""Renders random conversations through the Jinja template of a Qwen3 tokenizer_config.json; the results are chat_vectors.json.

usage: make_chat_vectors.py TOKENIZER_CONFIG_JSON > tests/data/chat_vectors.json
Needs `pip install jinja2`.
"""
import json
import random
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

CONTENTS = ["Hi", "", "\n\nline\n", "a\n<think>\nold\n</think>\n\nanswer", "<think>x</think>y</think>\nz", "no end <think> here", "tail</think>",
            "<tool_response>\n5\n</tool_response>", "é日本 \\boxed{1}", "<|im_end|>"]


def message(r, role):
    m = {"role": role, "content": r.choice(CONTENTS)}
    if role == "assistant" and r.random() < 0.4:
        m["reasoning_content"] = r.choice(["because", "", "\n\nwhy\n", None])
    return m


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        source = json.load(f)["chat_template"]
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    r = random.Random(1)
    seen, rows = set(), []
    while len(rows) < 60:
        messages = [message(r, "system")] if r.random() < 0.4 else []
        for _ in range(r.randrange(1, 6)):
            messages.append(message(r, r.choice(["user", "assistant", "user", "assistant", "system"])))
        flags = {"add_generation_prompt": r.random() < 0.7, "enable_thinking": r.random() < 0.5}
        text = template.render(messages=messages, **flags)
        if text not in seen:
            seen.add(text)
            rows.append(json.dumps({"messages": messages, **flags, "text": text}))
    print("[\n" + ",\n".join(rows) + "\n]")


if __name__ == "__main__":
    main()
