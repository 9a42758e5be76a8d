"""Seconds of a train step of RL: hone's against transformers' Qwen3 with the same loss, same weights, rows and thread.

    .venv/bin/python benchmarks/train_step.py --out benchmarks/results/train_step.json

- tiny: the tiny preset, 8 prompts x 16 completions of 24 + 64 tokens.
- medium: Qwen3's shape with 100M parameters, 1 prompt x 4 completions of 24 + 64 tokens.
- varied: the tiny preset, completions of 1 to 64 tokens. transformers pads them, as TRL does; hone packs.

A step is packing or padding, forward, PPO's clipped surrogate, backward, clipping and AdamW; nothing is sampled.
transformers gets the loss written plainly, torch's fused AdamW and sdpa. It takes all rows at once, or (`…_micro`) the
tokens of hone's micro-batches at a time; the faster of both counts in each round. hone computes the entropies besides,
and its bf16 keeps fp32 masters of the weights. `hone_…_shared` computes a prompt once for its group, as a run does.

All sides take turns, round by round; figures are medians of the processor's seconds. Gradients of a step are compared
before any update, by the norm of their difference.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from recording import cpu_model, show
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hone import rng
from hone.algorithms.losses import policy_objective
from hone.config.rl import LossConfig
from hone.config.shared import InitConfig, OptimConfig, SchedulerConfig
from hone.loops.machine import configure
from hone.model.config import DecoderConfig
from hone.model.hf import load_model, save_model
from hone.model.names import hf_slices
from hone.model.presets import random_decoder, tiny_config
from hone.trainer import MICRO_BATCH_TOKENS
from hone.trainer.optim import _SUM
from hone.trainer.packing import Batch, Sequence
from hone.trainer.step import Trainer

EPS_LOW, EPS_HIGH, LR = 0.2, 0.28, 1e-6
MEDIUM = DecoderConfig(
    family="qwen3",
    vocab_size=32_000,
    hidden_size=768,
    intermediate_size=2048,
    num_layers=12,
    num_heads=12,
    num_kv_heads=4,
    head_dim=64,
    qk_norm=True,
    max_position_embeddings=4096,
)


@dataclass(frozen=True)
class Case:
    """A model and the shape of its batch; `shortest` and `longest` are tokens of completions."""

    config: DecoderConfig
    prompts: int
    group: int
    prompt_tokens: int
    shortest: int
    longest: int
    precisions: tuple[str, ...]
    steps: int = 3
    """Counted steps a turn."""
    micro_batch: int = MICRO_BATCH_TOKENS["cpu"]

    def rows(self, seed: int) -> list[Sequence]:
        """Return random rows, whose old logprobs are 0 as yet.

        Without the ids below 3, of which one pads: transformers gives it no gradient as an input.
        """
        generator = rng.stream(seed, "bench")
        vocab, made = self.config.vocab_size, []
        for i in range(self.prompts * self.group):
            if i % self.group == 0:
                prompt = generator.integers(3, vocab, self.prompt_tokens)
            length = int(generator.integers(self.shortest, self.longest + 1))
            ids = np.concatenate([prompt, generator.integers(3, vocab, length)])
            mask = np.arange(len(ids)) >= self.prompt_tokens
            advantage = float(generator.standard_normal())
            made.append(Sequence(ids, mask, None, advantage, group=i // self.group, sample=i % self.group))
        return made


BOTH = ("fp32", "bf16_linear", "bf16")
CASES = {
    "tiny": Case(tiny_config(), 8, 16, 24, 64, 64, BOTH),
    "medium": Case(MEDIUM, 1, 4, 24, 64, 64, ("fp32", "bf16_linear"), steps=1),
    "varied": Case(tiny_config(), 8, 16, 24, 1, 64, ("fp32", "bf16_linear")),
}
TOY = DecoderConfig(**(vars(tiny_config(InitConfig(hidden=32, layers=1, heads=2, kv_heads=1, intermediate=48)))))


class HoneStep:
    """hone's own step; with `share`, a prompt is computed once for its group."""

    def __init__(self, folder: Path, precision: str, share: bool) -> None:
        self.share = share
        objective = policy_objective(LossConfig(eps_low=EPS_LOW, eps_high=EPS_HIGH))
        model = load_model(folder, precision=precision)
        self.trainer = Trainer(model, OptimConfig(lr=LR), SchedulerConfig(), 10**6, objective)

    def __call__(self, rows: list[Sequence]) -> None:
        self.trainer.step(self.trainer.deal(Batch(rows), None, share_prompts=self.share))

    def gradient(self, rows: list[Sequence]) -> dict[str, Tensor]:
        """Return the gradient of a step by transformers' names, without an update."""
        taken: dict[str, Tensor] = {}
        optimizer = self.trainer.optimizer
        step = optimizer.step

        def take(lr: float) -> float:
            taken.update({name: getattr(p, _SUM, p.grad).clone() for name, p in optimizer.params.items()})
            optimizer.clear()
            return 0.0

        optimizer.step = take
        self(rows)
        optimizer.step = step
        slices = hf_slices(self.trainer.model.config)
        return {name: taken[parameter][first:end] for name, (parameter, first, end) in slices.items()}


class TransformersStep:
    """The same step with transformers' model, `tokens` (padding included) at a time."""

    def __init__(self, folder: Path, dtype: torch.dtype, tokens: int) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=OptimConfig().betas, weight_decay=0.0, fused=True
        )
        self.tokens = tokens

    def __call__(self, rows: list[Sequence]) -> None:
        self.backward(rows)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self, rows: list[Sequence]) -> None:
        total = sum(row.num_loss_tokens for row in rows)
        count = max(1, self.tokens // max(len(row) for row in rows))
        for first in range(0, len(rows), count):
            part = rows[first : first + count]
            logprobs_BT, mask_BT = self.logprobs(part)
            old_BT = padded([row.logprobs[row.prompt_length :] for row in part if row.logprobs is not None])
            advantages_B1 = torch.tensor([[row.advantage] for row in part])
            ratio_BT = (logprobs_BT - old_BT).exp()
            clipped_BT = ratio_BT.clamp(1 - EPS_LOW, 1 + EPS_HIGH)
            loss_BT = -torch.minimum(ratio_BT * advantages_B1, clipped_BT * advantages_B1)
            ((loss_BT * mask_BT).sum() / total).backward()

    def logprobs(self, rows: list[Sequence]) -> tuple[Tensor, Tensor]:
        """Return the logprobs `[B, T]` of the completions' tokens, and their mask; prompts have one length."""
        ids_BT, longest = padded([row.token_ids for row in rows]), max(row.num_loss_tokens for row in rows)
        lengths = torch.tensor([[len(row)] for row in rows])
        mask_BT = (torch.arange(ids_BT.shape[1]) < lengths).long()
        attention = None if bool(mask_BT.all()) else mask_BT
        out = self.model(input_ids=ids_BT, attention_mask=attention, logits_to_keep=longest + 1, use_cache=False)
        logprobs_BTV = out.logits[:, :-1].float().log_softmax(-1)
        return logprobs_BTV.gather(2, ids_BT[:, -longest:, None]).squeeze(2), mask_BT[:, -longest:]

    def gradient(self, rows: list[Sequence]) -> dict[str, Tensor]:
        """Return the gradient of a step, without an update."""
        self.backward(rows)
        taken = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad()
        return taken


def padded(values: list[np.ndarray]) -> Tensor:
    return pad_sequence([torch.from_numpy(v) for v in values], batch_first=True)


@torch.no_grad()
def with_old_logprobs(rows: list[Sequence], model: TransformersStep) -> list[Sequence]:
    """Return the rows with logprobs that are near the model's: most ratios are within the clip, some are not."""
    logprobs_BT, _ = model.logprobs(rows)
    noise = rng.stream(0, "bench", "old").normal(0, 0.15, logprobs_BT.shape)
    old = []
    for row, values in zip(rows, logprobs_BT.numpy() + noise, strict=True):
        logprobs = np.zeros(len(row), dtype=np.float32)
        logprobs[row.prompt_length :] = values[: row.num_loss_tokens]
        old.append(replace(row, logprobs=logprobs))
    return old


def relative(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Return |one - other| / |other|, over all parameters."""
    assert one.keys() == other.keys()
    apart = sum(float((one[n].double() - other[n].double()).square().sum()) for n in other)
    return (apart / sum(float(t.double().square().sum()) for t in other.values())) ** 0.5


def measure(case: Case, folder: Path, rounds: int) -> dict[str, Any]:
    """Time all sides on one case; in each turn the first step warms up."""
    save_model(random_decoder(case.config, seed=0), folder)
    rows = case.rows(0)
    longest = max(map(len, rows))
    dtypes = {"fp32": torch.float32} | ({"bf16": torch.bfloat16} if "bf16" in case.precisions else {})
    makers: dict[str, Callable[[], HoneStep | TransformersStep]] = {}
    for precision in case.precisions:
        makers[f"hone_{precision}"] = partial(HoneStep, folder, precision, False)
        makers[f"hone_{precision}_shared"] = partial(HoneStep, folder, precision, True)
    for name, dtype in dtypes.items():
        makers[f"transformers_{name}"] = partial(TransformersStep, folder, dtype, 10**9)
        if len(rows) * longest > case.micro_batch:
            makers[f"transformers_{name}_micro"] = partial(TransformersStep, folder, dtype, case.micro_batch)
    sides = {name: make() for name, make in makers.items()}
    plain = sides["transformers_fp32"]
    assert isinstance(plain, TransformersStep)
    rows = with_old_logprobs(rows, plain)
    expected = plain.gradient(rows)
    gradients = {name: relative(side.gradient(rows), expected) for name, side in sides.items() if side is not plain}
    del expected
    found: list[dict[str, float]] = []
    for number in range(rounds):
        names = [*sides][number % len(sides) :] + [*sides][: number % len(sides)]
        found.append({name: median(timed(sides[name], rows, case.steps)) for name in names})
        print(
            f"round {number + 1}/{rounds}: " + ", ".join(f"{n} {found[-1][n] * 1000:.0f} ms" for n in sides), flush=True
        )
    seconds = {name: median(row[name] for row in found) for name in sides}
    tokens = sum(map(len, rows))
    parameters = sum(p.numel() for p in plain.model.parameters())
    return {
        "workload": {
            "prompts": case.prompts,
            "group": case.group,
            "prompt_tokens": case.prompt_tokens,
            "completion_tokens": [case.shortest, case.longest],
            "tokens": tokens,
            "padding": len(rows) * longest - tokens,
            "parameters": parameters,
        },
        "seconds": seconds,
        "tokens_per_second": {name: tokens / value for name, value in seconds.items()},
        "speedup": speedups(found),
        "gradients_relative": gradients,
        "rounds": found,
    }


def timed(side: Callable[[list[Sequence]], None], rows: list[Sequence], steps: int) -> list[float]:
    side(rows)
    seconds = []
    for _ in range(steps):
        began = time.process_time()
        side(rows)
        seconds.append(time.process_time() - began)
    return seconds


def speedups(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return how many times as fast hone is, by round, as the faster of transformers' ways in the same precision.

    "default…" is hone's bf16_linear against the fastest of all.
    """
    found = {}
    for name in (name for name in rounds[0] if name.startswith("hone_")):
        precision = name.removeprefix("hone_").removesuffix("_shared")
        default = precision == "bf16_linear"
        others = [o for o in rounds[0] if o.startswith("transformers_" if default else f"transformers_{precision}")]
        key = name.removeprefix("hone_").replace("bf16_linear", "default")
        found[key] = median(min(row[other] for other in others) / row[name] for row in rounds)
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--quick", action="store_true", help="toys of the models: says nothing but that it runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    configure(1, 0, deterministic=False)  # as the commands do; transformers runs in this process too
    cases = {name: CASES[name] for name in args.cases}
    if args.quick:
        cases = {
            n: replace(c, config=TOY, prompts=2, group=2, longest=9, shortest=min(9, c.shortest), micro_batch=66)
            for n, c in cases.items()
        }
        args.rounds = 1
    result: dict[str, Any] = {}
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as tmp:
            result[name] = measure(case, Path(tmp), args.rounds)
    versions = {name: version(name) for name in ("torch", "transformers")}
    result["machine"] = {
        "cpu": cpu_model(),
        "threads": 1,
        "load": os.getloadavg()[1],
        "python": platform.python_version(),
    }
    show(result | {"versions": versions}, args.out)


if __name__ == "__main__":
    main()
