"""hone beside its peers on a real model, SmolLM2-135M-Instruct: sampling, a step of RL, a step of SFT.

    .venv/bin/python benchmarks/real_model.py --out benchmarks/results/real_model.json

- sampling: 64 different prompts of 32 tokens, 64 new tokens each, against transformers' `generate` and vLLM with
  logprobs, each in fp32 and bf16.
- rl: a step of 8 prompts x 16 completions of 24 new tokens against TRL's GRPOTrainer, fp32 and bf16. TRL takes its
  batch in four parts, for the whole does not fit into 24 GiB.
- sft: a step of 16 conversations of 64 tokens against transformers' model with torch's fused AdamW, fp32 and bf16.

On one thread and on two; what `--threads` and `--cases` leave out stays in the file as it is. All sides of a case take
turns, round by round; figures are medians. TRL needs the extra `bench`, vLLM an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import sampling
import torch
from limits import gemm_gflops, read_gigabytes, sampling_limits
from recording import show
from rl_step import HoneStep, Sizes, TRLStep, limit_seconds, prompt_texts

from hone import rng
from hone.algorithms.losses.objective import sft_objective
from hone.config.shared import OptimConfig, SchedulerConfig
from hone.loops.machine import configure
from hone.model.fetch import cached
from hone.model.hf import load_model
from hone.runs.provenance import hardware
from hone.trainer.packing import Batch, Sequence
from hone.trainer.step import Trainer

PRECISIONS = ("fp32", "bf16_linear")
THEIRS = ("float32", "bfloat16")
SAMPLING, RL, SFT_ROWS, SFT_TOKENS = sampling.Workload(64, 32, 64), Sizes(8, 16, 24), 16, 64
STEPS = 1
"""Counted steps of each turn, after one that warms up."""


class HoneSFT:
    """A train step of hone's SFT."""

    def __init__(self, folder: Path, precision: str) -> None:
        model = load_model(folder, precision=precision)
        self.trainer = Trainer(model, OptimConfig(lr=1e-6), SchedulerConfig(), 10**6, sft_objective)

    def __call__(self, ids: np.ndarray) -> None:
        mask = np.arange(ids.shape[1]) >= ids.shape[1] // 2
        self.trainer.step(self.trainer.deal(Batch([Sequence(row, mask) for row in ids]), None, share_prompts=False))


class TransformersSFT:
    """The same by transformers' model: the loss of the second halves of the rows, clipping, AdamW."""

    def __init__(self, folder: Path, dtype: str) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def __call__(self, ids: np.ndarray) -> None:
        ids_BT, kept = torch.from_numpy(ids), ids.shape[1] // 2
        logits_BTV = self.model(input_ids=ids_BT, logits_to_keep=kept + 1, use_cache=False).logits[:, :-1].float()
        torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, -kept:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure_sampling(folder: Path, args: argparse.Namespace, threads: int, rates: dict[str, Any]) -> dict[str, Any]:
    """Tokens/s of all sides."""
    work = sampling.QUICK_LARGE if args.quick else SAMPLING
    with ExitStack() as ends, open(os.devnull, "w") as log:
        sides: dict[str, sampling.Side] = {f"hone_{p}": sampling.HoneSide(folder, p) for p in PRECISIONS}
        for dtype in THEIRS:
            sides[f"transformers_{dtype}"] = sampling.TransformersSide(folder, getattr(torch, dtype))
            if args.vllm_python:
                print(f"Starting vLLM, {dtype} (half a minute)", flush=True)
                side = sampling.VllmSide(args.vllm_python, folder, dtype, True, work, threads, log)
                ends.callback(side.close)
                sides[f"vllm_{dtype}"] = side
        config = sides["hone_fp32"].engine.model.config  # type: ignore[attr-defined]
        title = f"sampling, {threads} thread{'s' * (threads > 1)}"
        rounds = sampling.take_turns(sides, work, config.vocab_size, args.rounds, title)
    shape = (work.prompts, work.prompt_tokens, work.new_tokens)
    limits = {p: sampling_limits(config, p, *shape, rates["gflops"], rates["read_gigabytes"]) for p in PRECISIONS}
    return {
        "workload": asdict(work),
        "tokens_per_second": {name: median(row[name] for row in rounds) for name in sides},
        "faster": {peer: faster(rounds, peer, least=False) for peer in ("transformers", "vllm")},
        "limits_tokens_per_second": limits,
        "rounds": len(rounds),
    }


def measure_rl(folder: Path, args: argparse.Namespace, threads: int, rates: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step of both."""
    sizes = Sizes(2, 2, 4) if args.quick else RL
    steps = {f"hone_{precision}": HoneStep(folder, precision, sizes=sizes) for precision in PRECISIONS}
    first = next(iter(steps.values()))
    prompt = len(first.settings.renderer.prompt_ids([{"role": "user", "content": prompt_texts(0, 1)[0]}]))
    parameters = first.trainer.model.num_parameters
    rounds, phases = [], {name: {"sample": [], "train": []} for name in steps}
    for number in range(args.rounds):
        row = {}
        for name, step in steps.items():
            step(0)
            timed = [step(1 + index) for index in range(STEPS)]
            row[name] = median(one["step"] for one in timed)
            for phase, seconds in phases[name].items():
                seconds.append(timed[-1][phase])
        for dtype in THEIRS:
            if dtype == args.slower:
                continue
            with tempfile.TemporaryDirectory() as scratch:
                side = TRLStep(folder, dtype == "bfloat16", STEPS + 1, Path(scratch), sizes, 1 if args.quick else 4)
                row[f"trl_{dtype}"] = median(side.run())
        rounds.append(row)
        if args.slower is None:
            args.slower = max(THEIRS, key=lambda dtype: row[f"trl_{dtype}"])
        _say(f"rl, {threads} threads", number, args.rounds, row)
    sampled = sizes.prompts * sizes.rollouts * sizes.new_tokens
    trained = sizes.prompts * prompt + sampled
    return {
        "workload": {**asdict(sizes), "prompt_tokens": prompt},
        "seconds": {name: median(row[name] for row in rounds if name in row) for name in rounds[0]},
        "hone_phases": {n: {p: median(v) for p, v in by_phase.items()} for n, by_phase in phases.items()},
        "faster": {"trl": faster(rounds, "trl")},
        "limit_seconds": {n: limit_seconds(parameters, trained, sampled, r) for n, r in rates["gflops"].items()},
        "rounds": len(rounds),
    }


def measure_sft(folder: Path, args: argparse.Namespace, threads: int, rates: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step of both."""
    count, tokens = (2, 8) if args.quick else (SFT_ROWS, SFT_TOKENS)
    sides: dict[str, Any] = {f"hone_{precision}": HoneSFT(folder, precision) for precision in PRECISIONS}
    sides |= {f"transformers_{dtype}": TransformersSFT(folder, dtype) for dtype in THEIRS}
    parameters, vocab = (
        sides["hone_fp32"].trainer.model.num_parameters,
        sides["hone_fp32"].trainer.model.config.vocab_size,
    )
    rounds = []
    for number in range(args.rounds + 1):
        ids, row = rng.stream(0, "sft", number).integers(3, vocab, (count, tokens)), {}
        for name, side in sides.items():
            began = time.perf_counter()
            side(ids)
            row[name] = time.perf_counter() - began
        if number:
            rounds.append(row)
            _say(f"sft, {threads} threads", number - 1, args.rounds, row)
    limits = {name: limit_seconds(parameters, count * tokens, 0, rate) for name, rate in rates["gflops"].items()}
    return {
        "workload": {"rows": count, "tokens": tokens},
        "seconds": {name: median(row[name] for row in rounds) for name in sides},
        "faster": {"transformers": faster(rounds, "transformers")},
        "limit_seconds": limits,
        "rounds": len(rounds),
    }


def faster(rounds: list[dict[str, float]], peer: str, least: bool = True) -> dict[str, float]:
    """How many times as fast hone is as the faster side of a peer, median of the rounds: `fp32` and the default."""
    best = min if least else max
    found = {}
    for precision in PRECISIONS:
        pairs = [(row[f"hone_{precision}"], [row[n] for n in row if n.startswith(peer)]) for row in rounds]
        if pairs[0][1]:
            ratios = [best(theirs) / ours if least else ours / best(theirs) for ours, theirs in pairs]
            found[precision] = median(ratios)
    return found


def _say(title: str, number: int, rounds: int, row: dict[str, float]) -> None:
    said = ", ".join(f"{name} {value:.2f} s" for name, value in row.items())
    print(f"{title}, round {number + 1}/{rounds}: {said}", flush=True)


CASES = {"sampling": measure_sampling, "rl": measure_rl, "sft": measure_sft}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side that count")
    parser.add_argument("--model", type=Path, help="folder of another model")
    parser.add_argument("--vllm-python", type=Path, help="the Python of vLLM's environment (default: .venv-vllm's)")
    parser.add_argument("--slower", choices=THEIRS, help="the precision in which TRL is known to be slower")
    parser.add_argument("--quick", action="store_true", help="a toy of everything: says nothing but that it runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    here = sampling.ROOT / ".venv-vllm/bin/python"
    args.vllm_python = args.vllm_python or (here if here.exists() and not args.quick else None)
    folder = args.model or cached("smollm2-135m")
    result: dict[str, Any] = json.loads(args.out.read_bytes()) if args.out and args.out.exists() else {}
    for threads in args.threads:
        configure(threads, 0, deterministic=False)  # as the commands do; the peers run in this process too
        gflops = {name: gemm_gflops(getattr(torch, name)) for name in THEIRS}
        rates = {"gflops": gflops, "read_gigabytes": read_gigabytes()}
        known = result.setdefault(f"threads_{threads}", {})
        known |= rates | {name: CASES[name](folder, args, threads, rates) for name in args.cases}
    result["versions"] = {name: version(name) for name in ("torch", "transformers", "trl")}
    result["machine"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
