"""How far apart the engine's and the trainer's logprobs are by rounding alone, by depth and precision, as JSON.

    .venv/bin/python benchmarks/gap_depth.py --out benchmarks/results/gap_depth.json
    .venv/bin/python benchmarks/gap_depth.py --model folder-of-a-model --out benchmarks/results/gap_depth.json

`hone/tiny`, and random decoders with layers as wide as Qwen3-0.6B's and a small vocabulary, whose logits are as wide as
those of contract 3's models (standard deviation 1.4). `on a GPU` rounds what attention there rounds (in prefill and
trainer its kernel's weights too, in decoding not), by emulation. `--model` adds a trained model. About 15 minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recording import cpu_model, keep

from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.model import attention, decoder
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.hf import load_model
from hone.model.presets import random_decoder, tiny_config
from hone.trainer.logprobs import token_logprobs
from hone.trainer.packing import Sequence, pack

DEPTHS = (4, 28, 36)
"""Layers: of the tiny model, of Qwen3-0.6B and 1.7B, of Qwen3-4B and 8B."""
SEEDS = (0, 1)
JOBS, TOKENS = 8, 24
"""Completions of each model, and tokens of a completion."""
WAYS = [("fp32", False), ("bf16_linear", False), ("bf16_linear", True), ("bf16", False), ("bf16", True)]
"""Precision, and if rounding is that of a GPU."""


def layers_as_qwen3(depth: int, width: int) -> DecoderConfig:
    """Return Qwen3-0.6B's shape (`width` 1,024), or a narrower one, with `depth` layers and 8,192 tokens."""
    return DecoderConfig(
        family="qwen3",
        vocab_size=8192,
        hidden_size=width,
        intermediate_size=3 * width,
        num_layers=depth,
        num_heads=width // 64,
        num_kv_heads=width // 128,
        head_dim=128,
        rope_theta=1e6,
        qk_norm=True,
        eos_token_ids=(2,),
    )


def peaked(config: DecoderConfig, seed: int) -> dict[str, torch.Tensor]:
    """Draw the weights of contract 3's models: N(0, 1 / fan-in), norms of 1 ± 0.3, and logits of deviation 1.4."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, parameter in Decoder(config).named_parameters():
        values = torch.randn(parameter.shape, generator=generator)
        scale = (1.4 if name == "embed" else 1.0) * parameter.shape[-1] ** -0.5
        weights[name] = 1.0 + 0.3 * values if parameter.dim() == 1 else values * scale
    return weights


def in_precision(config: DecoderConfig, weights: dict[str, torch.Tensor], precision: str) -> Decoder:
    model = Decoder(config, precision)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    model.refresh()
    return model


@contextmanager
def kernels(of_gpu: bool) -> Iterator[None]:
    """Round as a GPU does, if asked: queries, keys and values are bf16, and so are the weights of packed attention."""
    split, plain = decoder.split_and_rotate, attention.sdpa

    def in_bf16(*args: Any) -> tuple[torch.Tensor, ...]:
        return tuple(x.bfloat16() for x in split(*args))

    def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        assert mask is None
        k, v = attention.repeat_heads(q, k, v)
        scores = q @ k.mT * q.shape[-1] ** -0.5
        unseen = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = (scores := scores.masked_fill_(unseen, -torch.inf)).sub_(scores.amax(-1, keepdim=True)).exp_()
        return weights.bfloat16().float() @ v / weights.sum(-1, keepdim=True)

    if of_gpu:
        decoder.split_and_rotate, attention.sdpa = in_bf16, flash
    try:
        yield
    finally:
        decoder.split_and_rotate, attention.sdpa = split, plain


@torch.no_grad()
def measure(model: Decoder, of_gpu: bool, prompts: list[tuple[int, ...]]) -> np.ndarray:
    """Return |engine - trainer| of the logprob of each token that the engine samples, in nats."""
    with kernels(of_gpu):
        jobs = [Job(ids, i, TOKENS) for i, ids in enumerate(prompts)]
        completions = Engine(model).run(jobs, SamplingParams())
        sequences = []
        for job, completion in zip(jobs, completions, strict=True):
            ids = np.array([*job.prompt, *completion.token_ids])
            sequences.append(Sequence(ids, np.arange(len(ids)) >= len(job.prompt)))
        batch = pack(sequences)
        trained = token_logprobs(model, batch, batch.loss_indices)[0].double().numpy()
    sampled = np.concatenate([completion.logprobs for completion in completions])
    return np.abs(sampled - trained)


def summary(found: np.ndarray) -> dict[str, float]:
    """Return mean, p99 and maximum of |Δ|; and, as the canary has so few tokens, the largest mean of twelve."""
    twelves = found[: len(found) // 12 * 12].reshape(-1, 12).mean(1)
    values = {"mean": found.mean(), "p99": np.quantile(found, 0.99), "max": found.max(), "mean_of_12": twelves.max()}
    return {"tokens": len(found), **{name: float(f"{value:.3g}") for name, value in values.items()}}


def name_of(precision: str, of_gpu: bool) -> str:
    return f"{precision} on a GPU" if of_gpu else precision


def prompts_of(config: DecoderConfig, seed: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(3, config.vocab_size, rng.integers(8, 49)).tolist()) for _ in range(JOBS)]


def tiny_models(seeds: tuple[int, ...]) -> dict[str, Any]:
    """Measure the tiny preset as it begins, in every precision, the tokens of all seeds together."""
    result, config = {"layers": tiny_config().num_layers}, tiny_config()
    for way in WAYS:
        parts = [measure(random_decoder(config, seed, way[0]), way[1], prompts_of(config, seed)) for seed in seeds]
        result[name_of(*way)] = summary(np.concatenate(parts))
        print(name_of(*way), result[name_of(*way)], flush=True)
    return result


def random_models(depths: tuple[int, ...], seeds: tuple[int, ...], width: int) -> dict[str, Any]:
    """Measure every depth and precision, the tokens of all seeds together."""
    result: dict[str, Any] = {}
    for depth in depths:
        config, found = layers_as_qwen3(depth, width), {way: [] for way in WAYS}
        for seed in seeds:
            weights, prompts = peaked(config, seed), prompts_of(config, seed)
            for way in WAYS:
                found[way].append(measure(in_precision(config, weights, way[0]), way[1], prompts))
        result[str(depth)] = {name_of(*way): summary(np.concatenate(parts)) for way, parts in found.items()}
        print(depth, json.dumps(result[str(depth)]), flush=True)
    return result


def trained_model(folder: Path) -> dict[str, Any]:
    """Measure a model of a folder on completions of questions, put as its chat template has it."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = []
    for i in range(JOBS):
        message = [{"role": "user", "content": f"Tell me something about the number {7 * i + 3}, in two sentences."}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        prompts.append(tuple(tokenizer(text, add_special_tokens=False)["input_ids"]))
    whole = load_model(folder)
    weights, config = {name: p.detach() for name, p in whole.named_parameters()}, whole.config
    result = {"layers": config.num_layers, "hidden": config.hidden_size, "vocabulary": config.vocab_size}
    for way in WAYS:
        result[name_of(*way)] = summary(measure(in_precision(config, weights, way[0]), way[1], prompts))
        print(name_of(*way), result[name_of(*way)], flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", type=Path, help="measure this model only, and add it to what --out holds")
    parser.add_argument("--depths", type=int, nargs="*", default=DEPTHS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--width", type=int, default=1024, help="hidden size, a multiple of 128")
    args = parser.parse_args()
    known = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    if args.model:
        known["trained"] = known.get("trained", {}) | {args.model.resolve().name: trained_model(args.model)}
    else:
        known["tiny"] = tiny_models(tuple(args.seeds))
        if args.depths:
            known["random"] = random_models(tuple(args.depths), tuple(args.seeds), args.width)
    known |= {"torch": torch.__version__, "cpu": cpu_model(), "python": platform.python_version()}
    if args.out:
        keep(known, args.out)


if __name__ == "__main__":
    main()
