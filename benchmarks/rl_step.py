"""Seconds per RL step: hone against TRL's GRPOTrainer, same model, sizes and threads, in one run.

    .venv/bin/python benchmarks/rl_step.py --out benchmarks/results/rl_step.json

hone is measured in both precisions. `profile` says where a step's time goes.

One step = 8 prompts x 16 completions x 64 new tokens (no early stop) on the tiny preset, graded by a cheap reward, one
update. Both sides take turns, round by round; figures are medians.
TRL needs the extra `bench`; without it only hone is measured. The arithmetic limit beside the figures is 6 FLOP per
parameter and trained token (hone trains a prompt once for its group) plus 2 per sampled token, over the GEMM rate
measured in the same run.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from recording import show

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

PROMPT_CHARS = 24


@dataclass(frozen=True)
class Sizes:
    """Of one step."""

    prompts: int = 8
    rollouts: int = 16
    new_tokens: int = 64


def reward(text: str) -> float:
    """Share of distinct characters: cheap, never constant within a group."""
    return len(set(text)) / max(1, len(text))


def prompt_texts(step: int, count: int) -> list[str]:
    """The prompts of one step: different strings of `PROMPT_CHARS` characters."""
    from hone import rng

    letters = list("abcdefghijklmnopqrstuvwxyz ")
    return ["".join(rng.stream(0, "bench", step, i).choice(letters, PROMPT_CHARS)) for i in range(count)]


class HoneStep:
    """hone's own step, made of the pieces that the RL loop runs."""

    def __init__(self, folder: Path, precision: str, sizes: Sizes = Sizes()) -> None:
        from hone.algorithms.losses import policy_objective
        from hone.config.rl import LossConfig
        from hone.config.shared import OptimConfig, SchedulerConfig
        from hone.environments import Environment, Rubric
        from hone.inference.conversations import RolloutSettings
        from hone.inference.engine import Engine
        from hone.loops.colocated import EnginePolicy
        from hone.model.chat import load_renderer
        from hone.model.hf import load_model
        from hone.trainer.step import Trainer

        self.sizes = sizes
        model = load_model(str(folder), precision=precision)
        renderer = load_renderer(str(folder))
        objective = policy_objective(LossConfig())
        self.trainer = Trainer(model, OptimConfig(lr=1e-5), SchedulerConfig(), 10**6, objective)
        self.policy = EnginePolicy(Engine(model), renderer, lambda: self.trainer.version)
        self.env = Environment(rubric=Rubric([lambda completion: 0.0]))
        self.settings = RolloutSettings(renderer, sizes.rollouts, 2048, sizes.new_tokens, 0, "rollout")

    def __call__(self, step: int) -> dict[str, float]:
        import numpy as np

        from hone.algorithms.advantages import advantages as step_advantages
        from hone.config.rl import RLConfig
        from hone.inference.conversations import roll_out
        from hone.inference.types import SamplingParams
        from hone.loops.groups import trainable
        from hone.types import Example, Group, Outcome, Score

        prompts, rollouts = self.sizes.prompts, self.sizes.rollouts
        start = time.perf_counter()
        examples = [Example([{"role": "user", "content": text}]) for text in prompt_texts(step, prompts)]
        made = roll_out(
            self.env, self.policy, self.settings, examples, range(prompts), step, SamplingParams(ignore_eos=True)
        )
        sampled = time.perf_counter()
        groups = []
        for i, example in enumerate(examples):
            members = made[i * rollouts : (i + 1) * rollouts]
            scores = [Score(reward(rollout.completion_text), {}, {}, Outcome.WRONG) for rollout in members]
            rewards = np.array([score.reward for score in scores])
            advantages = step_advantages(rewards[None], np.ones((1, rollouts), dtype=bool))[0]
            groups.append(Group(example, i, members, scores, advantages))
        self.trainer.step(self.trainer.deal(trainable(groups, RLConfig()), None, share_prompts=True))
        end = time.perf_counter()
        assert all(rollout.first.num_sampled == self.sizes.new_tokens for rollout in made)
        return {"step": end - start, "sample": sampled - start, "train": end - sampled}


class TRLStep:
    """TRL's GRPOTrainer, timed per optimiser step by a callback. A step is trained in so many micro-batches."""

    def __init__(
        self, folder: Path, bf16: bool, steps: int, workdir: Path, sizes: Sizes = Sizes(), micro_batches: int = 1
    ) -> None:
        import torch
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        class Clock(TrainerCallback):
            def __init__(self) -> None:
                self.times: list[float] = []

            def on_step_begin(self, args, state, control, **kwargs):
                self.start = time.perf_counter()

            def on_step_end(self, args, state, control, **kwargs):
                self.times.append(time.perf_counter() - self.start)

        rows = [
            {"prompt": [{"role": "user", "content": t}]} for s in range(steps) for t in prompt_texts(s, sizes.prompts)
        ]
        args = GRPOConfig(
            output_dir=str(workdir / f"trl-{bf16}"),
            per_device_train_batch_size=sizes.prompts * sizes.rollouts // micro_batches,
            gradient_accumulation_steps=micro_batches,
            num_generations=sizes.rollouts,
            max_completion_length=sizes.new_tokens,
            generation_kwargs={"min_new_tokens": sizes.new_tokens},
            max_steps=steps,
            learning_rate=1e-5,
            beta=0.0,
            bf16=bf16,
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        self.clock = Clock()
        self.trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=lambda completions, **_: [reward(c[0]["content"]) for c in completions],
            args=args,
            train_dataset=Dataset.from_list(rows),
            callbacks=[self.clock],
        )

    def run(self) -> list[float]:
        """Seconds of each step, the first (warm-up) left out."""
        self.trainer.train()
        return self.clock.times[1:]


KINDS = {
    "products": ("mm", "addmm", "bmm", "baddbmm", "linear"),
    "attention": ("_scaled_dot_product_flash",),
    "exponentials": ("silu", "_softmax", "_log_softmax", "exp", "sigmoid"),
}
"""Operations of each kind, by how their names begin."""


def profile_step(step: HoneStep) -> dict[str, float]:
    """Shares of a step's seconds, by the kinds of operations."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        seconds = step(1)["step"]
    shares = dict.fromkeys((*KINDS, "other operations"), 0.0)
    for event in profiled.key_averages():
        name = event.key.removeprefix("aten::").removeprefix("mkldnn::")
        kinds = [kind for kind, begins in KINDS.items() if name.startswith(begins)]
        shares[kinds[0] if kinds else "other operations"] += event.self_cpu_time_total / 1e6 / seconds
    return shares | {"between operations": 1 - sum(shares.values())}


def gemm_gflops(dtype_name: str) -> float:
    """GFLOP/s of the shape that dominates the train step: [4096, 128] x [128, 384]."""
    import torch

    dtype = getattr(torch, dtype_name)
    a, b = torch.randn(4096, 128).to(dtype), torch.randn(128, 384).to(dtype)
    for _ in range(5):
        a @ b
    start = time.perf_counter()
    for _ in range(50):
        a @ b
    return 50 * 2 * 4096 * 128 * 384 / (time.perf_counter() - start) / 1e9


def limit_seconds(parameters: int, tokens_trained: int, tokens_sampled: int, gflops: float) -> float:
    """Arithmetic limit of one step: products only, at the measured rate."""
    return (6 * parameters * tokens_trained + 2 * parameters * tokens_sampled) / (gflops * 1e9)


def trl_version() -> str | None:
    try:
        return version("trl")
    except PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=2, help="decoder layers (default 2, the tiny preset)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="turns that each side takes")
    parser.add_argument("--steps", type=int, default=5, help="counted steps per turn")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)

    from hone.commands import init_model
    from hone.config.init import InitModelConfig
    from hone.config.shared import InitConfig
    from hone.loops.machine import configure

    configure(args.threads, 0, deterministic=False)  # as the commands do; TRL runs in this process too
    with tempfile.TemporaryDirectory() as tmp:
        folder = Path(tmp) / "model"
        init_model.run(InitModelConfig(out=folder, init=InitConfig(layers=args.layers)))
        result = measure(args, folder, Path(tmp))
    show(result, args.out)


def measure(args: argparse.Namespace, folder: Path, workdir: Path) -> dict:
    import torch

    hone = {precision: HoneStep(folder, precision) for precision in ("fp32", "bf16_linear")}
    parameters = sum(p.numel() for p in hone["fp32"].trainer.model.parameters())
    prompt_tokens = len(hone["fp32"].settings.renderer.prompt_ids([{"role": "user", "content": "x" * PROMPT_CHARS}]))
    rounds: list[dict[str, float]] = []
    phases: dict[str, dict[str, list[float]]] = {name: {"sample": [], "train": []} for name in hone}
    for index in range(args.rounds):
        row: dict[str, float] = {}
        for name, step in hone.items():
            step(0)
            timed = [step(1 + s) for s in range(args.steps)]
            row[f"hone_{name}"] = median(t["step"] for t in timed)
            for phase in ("sample", "train"):
                phases[name][phase].append(median(t[phase] for t in timed))
        if trl_version():
            for name, bf16 in (("trl_fp32", False), ("trl_bf16", True)):
                row[name] = median(TRLStep(folder, bf16, args.steps + 1, workdir).run())
        rounds.append(row)
        print(f"round {index + 1}/{args.rounds}: " + ", ".join(f"{k} {v * 1000:.0f} ms" for k, v in row.items()))
    seconds = {name: median(row[name] for row in rounds) for name in rounds[0]}
    sizes = Sizes()
    sampled = sizes.prompts * sizes.rollouts * sizes.new_tokens
    trained = sizes.prompts * prompt_tokens + sampled
    fp32 = gemm_gflops("float32")
    rates = {"fp32": fp32, "bf16_linear": max(fp32, gemm_gflops("bfloat16"))}  # bf16 is slower on some CPUs: see linear
    result = {
        "workload": {
            **asdict(sizes),
            "prompt_tokens": prompt_tokens,
            "layers": args.layers,
            "parameters": parameters,
            "threads": args.threads,
        },
        "seconds_per_step": seconds,
        "hone_phases": {n: {p: median(v) for p, v in by_phase.items()} for n, by_phase in phases.items()},
        "profile": {name: profile_step(hone[name]) for name in ("fp32", "bf16_linear")},
        "arithmetic_limit_seconds": {n: limit_seconds(parameters, trained, sampled, r) for n, r in rates.items()},
        "gemm_gflops": rates,
        "rounds": len(rounds),
        "versions": {"torch": torch.__version__, "trl": trl_version(), "python": platform.python_version()},
    }
    if trl_version():
        fastest = [min(row["trl_fp32"], row["trl_bf16"]) for row in rounds]
        result["speedup"] = {
            "fp32_vs_trl_fp32": median(row["trl_fp32"] / row["hone_fp32"] for row in rounds),
            "default_vs_trl_faster": median(f / r["hone_bf16_linear"] for f, r in zip(fastest, rounds, strict=True)),
        }
    return result


if __name__ == "__main__":
    main()
