#!/usr/bin/env python3
"""Golden values: a Qwen3-shaped model as Hugging Face computes it in float64.

    make_golden.py DIR            makes a model with random bf16 weights and its expected values
    make_golden.py --check DIR    computes the values of an existing model directory again and compares

Runs on the CPU with torch 2.11.0, transformers 5.17.0 and numpy from PyPI (`pip install torch==2.11.0
transformers==5.17.0 numpy`). tests/golden/small is what the first form writes with these versions; the second form
accepts any directory of the same format:

    config.json            Hugging Face's
    model.safetensors      bf16
    expected.json          per sequence: length, first response token; response_tokens of all; the loss
    expected.safetensors   seqI.ids [T] int64, seqI.adv [T] f32
                           seqI.logits [T, V] f32
                           seqI.logp.T1.0, .T0.7, .T1.3 [T-1] f32: log-prob of ids[t+1] given ids[..t], whole vocabulary
                           seq0.hidden.L [T, D] f32: residual stream entering layer L; the last one after the final norm
                           grad.<parameter> bf16: gradient of
                           loss = -sum over response tokens of adv[t] * logp(T=0.7)[t] / response_tokens
"""

import argparse
import json
import pathlib
import sys

import numpy
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "eos_token_id": 1,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 4096,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 160,
}
SEQUENCES = [{"length": 20, "first_response_token": 7},
             {"length": 1, "first_response_token": 1},
             {"length": 60, "first_response_token": 25}]
TEMPERATURES = ["1.0", "0.7", "1.3"]
SEED = 1


def random_model(config):
    """Matrices of deviation 1.6 / sqrt(columns), norm weights of 1 +- 0.3: every op then matters to every value."""
    random = numpy.random.default_rng(SEED)
    with torch.device("meta"):
        parameters = {name: p.shape for name, p in Qwen3ForCausalLM(config).named_parameters()}
    weights = {}
    for name, shape in sorted(parameters.items()):
        values = random.standard_normal(tuple(shape))
        values = 1 + 0.3 * values if len(shape) == 1 else 1.6 * shape[1] ** -0.5 * values
        weights[name] = torch.from_numpy(values).to(torch.bfloat16).contiguous()
    inputs = {}
    for i, sequence in enumerate(SEQUENCES):
        # Never the pad token: torch gives its input embedding no gradient.
        ids = random.integers(config.pad_token_id + 1, config.vocab_size, sequence["length"])
        inputs[f"seq{i}.ids"] = torch.from_numpy(ids)
        inputs[f"seq{i}.adv"] = torch.from_numpy(random.standard_normal(sequence["length"])).float()
    return weights, inputs


def hidden_states(model, ids):
    """The residual stream entering every layer, then what the head reads."""
    kept = []
    hooks = [layer.register_forward_pre_hook(lambda _, args: kept.append(args[0])) for layer in model.model.layers]
    hooks.append(model.model.norm.register_forward_hook(lambda _, args, out: kept.append(out)))
    model(ids[None])
    for hook in hooks:
        hook.remove()
    return [h[0] for h in kept]


def expected_values(config, weights, inputs, sequences):
    model = Qwen3ForCausalLM(config)
    missing = model.load_state_dict({k: v.double() for k, v in weights.items()}, strict=False)
    assert not missing.unexpected_keys and missing.missing_keys in ([], ["lm_head.weight"]), missing
    model = model.double().eval()
    model.tie_weights()
    values = dict(inputs)
    total = sum(s["length"] - s["first_response_token"] for s in sequences)
    loss = torch.zeros((), dtype=torch.float64)
    for i, sequence in enumerate(sequences):
        ids, adv = inputs[f"seq{i}.ids"], inputs[f"seq{i}.adv"].double()
        logits = model(ids[None]).logits[0]
        values[f"seq{i}.logits"] = logits.detach()
        for temperature in TEMPERATURES:
            logp = torch.log_softmax(logits / float(temperature), -1)[:-1].gather(-1, ids[1:, None])[:, 0]
            values[f"seq{i}.logp.T{temperature}"] = logp.detach()
            first = sequence["first_response_token"]
            if temperature == "0.7" and first < len(ids):
                loss = loss - (adv[first:] * logp[first - 1:]).sum() / total
    loss.backward()
    with torch.no_grad():
        for l, h in enumerate(hidden_states(model, inputs["seq0.ids"])):
            values[f"seq0.hidden.{l}"] = h
    gradients = {f"grad.{name}": p.grad.to(torch.bfloat16) for name, p in model.named_parameters()}
    stored = {k: v if v.dtype == torch.int64 else v.float() for k, v in values.items()} | gradients
    return {k: v.contiguous() for k, v in stored.items()}, loss.item(), total


def make(folder):
    config = Qwen3Config(**CONFIG)
    weights, inputs = random_model(config)
    values, loss, total = expected_values(config, weights, inputs, SEQUENCES)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "expected.json").write_text(
        json.dumps({"loss": loss, "response_tokens": total, "sequences": SEQUENCES}, indent=2) + "\n")
    for name, tensors in (("model", weights), ("expected", values)):
        save_file(tensors, folder / f"{name}.safetensors")
        (folder / f"{name}.safetensors").chmod(0o644)


def check(folder):
    """Values that two versions of the library compute agree to fp32 rounding; gradients are stored as bf16."""
    config = Qwen3Config(**json.loads((folder / "config.json").read_text()))
    info = json.loads((folder / "expected.json").read_text())
    want = load_file(folder / "expected.safetensors")
    inputs = {k: v for k, v in want.items() if k.endswith((".ids", ".adv"))}
    weights = load_file(folder / "model.safetensors")
    got, loss, total = expected_values(config, weights, inputs, info["sequences"])
    assert got.keys() == want.keys(), got.keys() ^ want.keys()
    assert total == info["response_tokens"], total
    worst = {"values": (abs(loss - info["loss"]) / abs(info["loss"]), "loss"), "gradients": (0.0, "")}
    for name, a in got.items():
        b = want[name].double()
        error = ((a.double() - b).norm() / b.norm().clamp_min(1e-30)).item()
        kind = "gradients" if name.startswith("grad.") else "values"
        worst[kind] = max(worst[kind], (error, name))
    for kind, (error, name) in worst.items():
        print(f"{folder.name}: {len(got)} tensors, worst relative norm error of {kind} {error:.2e} ({name})")
    return worst["values"][0] <= 1e-5 and worst["gradients"][0] <= 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("dir", type=pathlib.Path)
    args = parser.parse_args()
    if args.check:
        sys.exit(0 if check(args.dir) else 1)
    make(args.dir)


if __name__ == "__main__":
    main()
