"""Recorded runs for the tests of replay, verify and diff: in a folder with a model and a task of its own."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from present import NO_AUDIT

from hone.cli import main

PARITY = '''
from hone.environments import Rubric, SingleTurnEnv, inline

ROWS = [{"question": f"q{i}", "answer": str(i)} for i in range(8)]


def load_environment():
    """A reward that differs between the completions of any model."""
    return SingleTurnEnv(rubric=Rubric([parity]), dataset=ROWS, eval_dataset=ROWS[:4])


@inline
def parity(completion) -> float:
    return (len(completion[-1]["content"]) % 2) / 1
'''


class Bench:
    """A folder with a model and a task `parity`, in which runs are made."""

    def __init__(self, folder: Path, model: Path, task: str = PARITY) -> None:
        self.folder = folder
        (folder / "environments").mkdir()
        (folder / "environments" / "parity.py").write_text(task)
        shutil.copytree(model, folder / "model")

    def hone(self, *argv: str, code: int = 0) -> None:
        with contextlib.chdir(self.folder):
            assert main(list(argv)) == code, argv

    def rl(self, name: str, *flags: str, code: int = 0) -> Path:
        """An RL run of six steps with checkpoints at 2, 4 and 6, unless the flags say otherwise."""
        base = ["rl", "--model.name", "model", "--output-dir", name, "--max-steps", "6", "--display", "none"]
        base += ["--precision", "fp32", "--seq-len", "48", "--ckpt.interval", "2", "--trainer.optim.lr", "1e-3"]
        base += ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
        base += ["--orchestrator.sampling.max-tokens", "10", "--orchestrator.env.id", "parity", *NO_AUDIT]
        base += ["--orchestrator.eval.interval", "3", "--orchestrator.eval.num-examples", "4"]
        self.hone(*base, *flags, code=code)
        return self.folder / name

    def sft(self, name: str, *flags: str) -> Path:
        base = ["sft", "--model.name", "model", "--output-dir", name, "--max-steps", "6", "--display", "none"]
        base += ["--data.env.id", "reverse-text", "--data.seq-len", "96", "--data.batch-size", "4", "--no-data.pack"]
        base += ["--precision", "fp32", "--ckpt.interval", "2", "--val.interval", "3", "--val.max-examples", "4"]
        self.hone(*base, "--optim.lr", "1e-3", *flags)
        return self.folder / name
