"""The command lines of the contracts: small, with everything that a run can write, and a result that depends on it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import run_folders
import states
import trials
from present import NO_AUDIT
from traps import At, Op, Trap

STEPS = 8
KEEP_LAST = 2
PROMPTS, ROLLOUTS = 3, 4
LATE, FOREGROUND = Trap(At("write", "metrics.jsonl", STEPS, "half")), "--no-ckpt.background"
"""Within a line of metrics of step 7; saved in the foreground, checkpoint 6 is there whichever thread is ahead."""
FEW = '{"num_train_examples": 500}'
"""Arguments of reverse-text: the start of a run makes all examples, for a digest."""
TINY = ["--model.name", "hone/tiny", "--model.init.layers", "1", "--model.init.hidden", "48"]


@dataclass(frozen=True)
class Recipe:
    """A command line without its output directory, and the run of it that nothing ever happened to."""

    args: tuple[str, ...]
    unbroken: Path
    ops: tuple[Op, ...] = field(repr=False)
    """What the unbroken run did to its directory."""

    def argv(self, out: Path, *more: str) -> list[str]:
        return [*self.args, "--output-dir", str(out), *more]

    def killed_and_resumed(self, trap: Trap, folder: Path, *more: str) -> Path:
        """Run into `folder`/run, with flags `more`, and be killed at the trap; resume, and end like the unbroken run.
        Returns that run.
        """
        out, log = folder / "run", folder / "log"
        assert trials.run(self.argv(out, *more), log, trap) == trials.KILLED, log.read_text()
        states.intact_checkpoints(out)
        assert trials.run(self.argv(out, "--resume"), log) == 0, log.read_text()
        states.assert_ended_like(out, self.unbroken)
        return out

    def stop_late(self, out: Path, log: Path) -> None:
        """Run into `out`, and be killed in step 7, with checkpoints 4 and 6 complete."""
        assert trials.run(self.argv(out, FOREGROUND), log, LATE) == trials.KILLED, log.read_text()

    def rebuilt(self, folder: Path, *more: list[str]) -> str:
        """Verify and replay a copy of the unbroken run, `folder`/copied, into `folder`/replayed; then run `more`, each
        a command and its flags. The copy stays as it is. Returns what was printed.
        """
        run, log = shutil.copytree(self.unbroken, folder / "copied"), folder / "log"
        before = run_folders.snapshot(run)
        replay = ["replay", "--output-dir", str(folder / "replayed")]
        for command, *flags in (["verify", "--steps", str(STEPS)], *([replay] if self.args[0] == "rl" else []), *more):
            assert trials.run([*command.split(), str(run), *flags], log) == 0, log.read_text()
        assert run_folders.snapshot(run) == before
        for file in (folder / "replayed").rglob("*.safetensors"):
            name = file.relative_to(folder / "replayed")
            assert file.read_bytes() == (run / "weights" / f"step_{STEPS}" / name).read_bytes()
        return log.read_text()

    @property
    def seconds(self) -> float:
        """How long the unbroken run took, from its run.json on."""
        return sum(line["time/step"] for line in states.lines(self.unbroken / "timings.jsonl"))

    @classmethod
    def cook(cls, args: list[str], folder: Path) -> Recipe:
        """Run it once, in `folder`/unbroken."""
        out, log, record = folder / "unbroken", folder / "log", folder / "ops.json"
        argv = [*args, "--output-dir", str(out)]
        assert trials.run(argv, log, record=record) == 0, log.read_text()
        return cls(tuple(args), out, tuple(trials.operations(record)))


def chosen(ops: tuple[Op, ...]) -> list[Op]:
    """Of each kind of operation on each kind of file: the first and the last."""
    classes: dict[tuple[str, str], list[Op]] = {}
    for op in ops:
        classes.setdefault((op.kind, re.sub(r"step_\d+", "step_N", op.path)), []).append(op)
    return [op for found in classes.values() for op in dict.fromkeys((found[0], found[-1]))]


def side_by_side(meet: Callable[[Trap, Path, Path], None], met: list[Trap], folder: Path) -> None:
    """Each trap in a run directory and with a log of its own, as many at once as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda n: meet(met[n], folder / f"{n}-run", folder / f"{n}-log"), range(len(met))))


def warm_model(folder: Path) -> Path:
    """A tiny model after a short SFT, so that rewards differ within a group and every step really updates."""
    args = ["sft", *TINY, "--output-dir", str(folder / "sft"), "--max-steps", "60", "--data.env.id", "reverse-text"]
    args += ["--data.batch-size", "16", "--no-data.pack", "--data.seq-len", "96", "--optim.lr", "3e-3"]
    args += ["--precision", "fp32", "--data.env.args", FEW]
    assert trials.run(args, folder / "log") == 0, (folder / "log").read_text()
    return folder / "sft" / "weights" / "step_60"


_RL = f"""rl --max-steps {STEPS} --seed 3 --seq-len 96 --ckpt.interval 2 --ckpt.keep-last {KEEP_LAST}
    --trainer.optim.lr 1e-3 --orchestrator.batch-size {PROMPTS * ROLLOUTS}
    --orchestrator.rollouts-per-example {ROLLOUTS} --orchestrator.sampling.max-tokens 16
    --orchestrator.eval.interval 4 --orchestrator.eval.num-examples 6"""
_SFT = f"""sft --max-steps {STEPS} --seed 3 --optim.lr 1e-3 --data.env.id reverse-text --data.env.args '{FEW}'
    --data.seq-len 128 --data.batch-size 3 --data.micro-batch-tokens 200 --val.interval 4 --val.max-examples 8
    --ckpt.interval 2 --ckpt.keep-last {KEEP_LAST}"""
_TASKS = [
    {"id": "chances", "weight": 3, "sampling": {"max_tokens": 12, "top_k": 20}},
    {"id": "chances", "name": "parity", "args": {"parity": 0}, "sampling": {"stop": ["a"]}},
    {"id": "reverse-text", "weight": 0.5, "args": json.loads(FEW)},
]
_EVALS = [{"id": "chances"}, {"id": "reverse-text", "name": "reversed", "sampling": {"max_tokens": 4}}]
KINDS = {
    # 8 steps, a checkpoint every two of which the newest two stay, an evaluation every four.
    "none": ("", _RL),
    "rl": ("none", f"--orchestrator.env.id reverse-text --orchestrator.env.args '{FEW}'"),
    # Packed demonstrations, validation.
    "sft": ("", _SFT),
    # Prompts are retired, parked and tried again.
    "pool": (
        "none",
        """--orchestrator.env.id chances --orchestrator.curriculum.pool
        --orchestrator.curriculum.pool.park-after 2 --orchestrator.curriculum.pool.retry-parked 2""",
    ),
    # Prompts are drawn until the batch is full of groups whose rewards differ.
    "refill": (
        "pool",
        """--orchestrator.env.args '{"parity": 0}' --orchestrator.refill.max-rounds 3
        --orchestrator.refill.oversample 1.5""",
    ),
    # Three tasks of unequal weights, two of them one with other arguments; evaluated on two others.
    "mix": (
        "pool",
        f"""--orchestrator.envs '{json.dumps(_TASKS)}' --orchestrator.eval.envs '{json.dumps(_EVALS)}'
        --orchestrator.refill.oversample 1.5 --orchestrator.refill.max-rounds 2""",
    ),
    # Several turns.
    "talk": (
        "none",
        """--orchestrator.env.id guessing --orchestrator.sampling.max-tokens 6
        --orchestrator.eval.num-examples 4""",
    ),
    # Distributions are cut, a text stops; several updates a step, the KL in the reward, a reference that follows.
    "cut": (
        "rl",
        """--orchestrator.sampling.top-p 0.9 --orchestrator.sampling.top-k 20 --orchestrator.sampling.min-p 0.05
        --orchestrator.sampling.stop a --trainer.loss.kl-coef 0.1 --trainer.loss.kl-in reward
        --trainer.loss.kl-estimator k1 --trainer.loss.reference-interval 3 --trainer.minibatches 2
        --trainer.updates-per-batch 2 --orchestrator.truncated penalize --trainer.optim.lr 3e-4
        --orchestrator.eval.sampling.min-p 0.2 --orchestrator.eval.sampling.stop '</answer>'""",
    ),
    # An adapter, with a KL term that refers to the model without it.
    "lora": ("rl", "--model.lora.rank 4 --trainer.optim.lr 1e-2 --trainer.loss.kl-coef 0.1"),
}
"""Command lines without a model: each adds flags to those of another."""


def argv(kind: str, model: Path, precision: str) -> list[str]:
    base, words = KINDS[kind]
    if base:
        return [*argv(base, model, precision), *shlex.split(words), *([] if kind == "rl" else NO_AUDIT)]
    of = TINY if kind == "sft" else ["--model.name", str(model)]
    return [*shlex.split(words), *of, "--precision", precision]
