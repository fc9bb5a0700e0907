#!/usr/bin/env python3
"""What a run recorded, asked of score, generate, export and prepare again: on one GPU, or on the CPU.

usage: check_model_commands.py RLK [--backend cuda|cpu] [--shape SHAPE] [--transformers]
Exit code 1 when anything differs. Not part of the test suite, which has the same claims for the CPU: it is for a host with a GPU.

- score gives the tokens of a run's two steps the bits that the run recorded, with its first model and with its checkpoint
- generate gives the samples of the run's first step, and one prompt's text piece by piece
- export gives the run's last weights; with --transformers, compare_transformers.py judges them
- a synthetic model that a run makes in memory has the fingerprints of the one that prepare writes
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "profiles/tiny"
LENGTH, SAMPLES = 24, 4
SAMPLING = ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "20"]


def tensors(path):
    """Name -> (dtype, bytes) of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    return {name: (t["dtype"], data[8 + size:][slice(*t["data_offsets"])]) for name, t in header.items() if name != "__metadata__"}


def numbers(tensor):
    dtype, data = tensor
    return list(struct.unpack("<%d%s" % (len(data) // {"I64": 8, "I32": 4}[dtype], {"I64": "q", "I32": "i"}[dtype]), data))


class Checks:
    def __init__(self, rlk, backend, folder):
        self.rlk, self.backend, self.folder, self.bad = rlk, backend, folder, 0

    def run(self, *words, **options):
        done = subprocess.run([self.rlk, *map(str, words)], stdout=subprocess.PIPE, text=True, **options)
        if done.returncode:
            print(done.stdout[-2000:], f"rlk {words[0]}: exit code {done.returncode}", sep="\n")
            sys.exit(1)
        return done.stdout

    def check(self, claim, good):
        self.bad += not good
        print("pass" if good else "FAIL", claim, flush=True)

    def profile(self, name, **keys):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"schema_version": "rlk.profile.v1", "name": name,
                                    "requirements": {"backend": self.backend, "ranks": 1}, **keys}))
        return path

    def verify(self, run_id, profile, *options):
        self.run("verify", "--profile", profile, "--output-root", self.folder, "--run-id", run_id, *options)
        return self.folder / run_id


def check_score(c, run):
    for step, model in enumerate([TINY, run / "checkpoints/version-000001"]):
        recorded = tensors(run / f"sidecars/step-{step:06d}.safetensors")
        offsets, tokens, prompt_len = [numbers(recorded[k]) for k in ("token_offset", "tokens", "prompt_len")]
        lines = "".join(json.dumps({"ids": tokens[a:b], "prompt_len": n}) + "\n" for a, b, n in zip(offsets, offsets[1:], prompt_len))
        out = c.folder / f"score-{step}.safetensors"
        c.run("score", "--model", model, "--backend", c.backend, "--out", out, *SAMPLING, input=lines)
        got = tensors(out)["logp"]
        c.check(f"score, step {step}: {len(got[1]) // 4} log-probs are the run's bits",
                len(got[1]) > 0 and got == recorded["rollout_logp"] == recorded["train_logp"])


def check_generate(c, run, prompts):
    options = ["--model", TINY, "--backend", c.backend, "--samples", SAMPLES, "--max-response-len", LENGTH, *SAMPLING]
    lines = [json.loads(line) for line in c.run("generate", "--prompts", prompts, *options).splitlines()]
    recorded = tensors(run / "sidecars/step-000000.safetensors")
    where = {key: i for i, key in enumerate(zip(numbers(recorded["prompt"]), numbers(recorded["sample"])))}
    offsets, tokens, starts = [numbers(recorded[k]) for k in ("token_offset", "tokens", "response_offset")]
    same = 0
    for line in lines:
        i = where[line["prompt"], line["sample"]]
        logp = struct.pack("<%df" % len(line["logp"]), *line["logp"])
        same += line["ids"] == tokens[offsets[i]:offsets[i + 1]] and logp == recorded["rollout_logp"][1][4 * starts[i]:4 * starts[i + 1]]
    c.check(f"generate: {same} of {len(where)} samples are the run's", same == len(where) == len(lines))
    text = c.run("generate", "--prompt", json.loads(prompts.open().readline())["prompt"], *options)
    c.check("generate --prompt: the same text", text == "".join(line["text"] + "\n" for line in lines if line["prompt"] == 0))


def check_synthetic(c, shape):
    small = ["--steps", "1", "--rollout-batch-size", "4", "--max-response-len", "16"]
    made = c.verify("made", c.profile("made", model={"source": "synthetic", "shape": shape, "seed": 5, "prompt_tokens": 16},
                                      paths={}, task={"reward": "synthetic-hash"}), *small)
    c.run("prepare", "--synthetic", shape, "--seed", 5, "--tokenizer-dir", TINY, "--out", c.folder / "synthetic")
    paths = {"model_root": str(c.folder / "synthetic"), "prompt_data": str(TINY / "prompts.jsonl")}
    read = c.verify("read", c.profile("read", paths=paths, task={"reward": "synthetic-hash", "chat_template": False}), *small)
    a, b = [json.loads((run / "weights/version-000000.json").read_text())["tensors"] for run in (made, read)]
    c.check(f"synthetic {shape}: {len(a)} fingerprints, made in memory and read from files", len(a) > 0 and a == b)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("rlk")
    parser.add_argument("--backend", default="cuda")
    parser.add_argument("--shape", default="qwen3-0.6b")
    parser.add_argument("--transformers", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        c = Checks(args.rlk, args.backend, pathlib.Path(folder))
        prompts = c.folder / "prompts.jsonl"
        prompts.write_text("".join((TINY / "prompts.jsonl").open().readlines()[:4]))
        profile = c.profile("tiny", paths={"model_root": str(TINY), "prompt_data": str(prompts)},
                            task={"reward": "deepscaler", "chat_template": False})
        run = c.verify("tiny", profile, "--rollout-batch-size", 4, "--samples-per-prompt", SAMPLES, "--max-response-len", LENGTH,
                       "--lr", "3e-4", "--save-interval", 1, *SAMPLING)
        check_score(c, run)
        check_generate(c, run, prompts)
        out = c.folder / "exported"
        c.check("export: the run's fingerprints", "all fingerprints are those that the run recorded" in c.run("export", "--from", run, "--out", out))
        if args.transformers:
            script = pathlib.Path(__file__).with_name("compare_transformers.py")
            c.check("transformers agrees", subprocess.run([sys.executable, script, args.rlk, out, "--positions", "4"]).returncode == 0)
        check_synthetic(c, args.shape)
    sys.exit(1 if c.bad else 0)


if __name__ == "__main__":
    main()
