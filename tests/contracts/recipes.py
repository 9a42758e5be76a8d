"""The command lines of the contracts: small, with everything that a run can write, and a result that depends on it."""

from __future__ import annotations

import json
import shutil
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

    def killed_and_resumed(self, trap: Trap, folder: Path) -> Path:
        """Run into `folder`/run and be killed at the trap; resume, and end like the unbroken run. Returns that run."""
        out, log = folder / "run", folder / "log"
        assert trials.run(self.argv(out), log, trap) == trials.KILLED, log.read_text()
        states.intact_checkpoints(out)
        assert trials.run(self.argv(out, "--resume"), log) == 0, log.read_text()
        states.assert_ended_like(out, self.unbroken)
        return out

    def stop_late(self, out: Path, log: Path) -> None:
        """Run into `out`, and be killed in step 7 within a line of metrics, with checkpoints 4 and 6 complete."""
        late = Trap(At("write", "metrics.jsonl", STEPS, "half"))
        # In the foreground, so that checkpoint 6 is there whichever thread is ahead.
        assert trials.run(self.argv(out, "--no-ckpt.background"), log, late) == trials.KILLED, log.read_text()

    def stopped_late_and_resumed(self, folder: Path) -> Path:
        """Run into `folder`/run and `stop_late`; resume, and end like the unbroken run. Returns that run."""
        out, log = folder / "run", folder / "log"
        self.stop_late(out, log)
        assert trials.run(self.argv(out, "--resume"), log) == 0, log.read_text()
        states.assert_ended_like(out, self.unbroken)
        return out

    def rebuilt(self, folder: Path, *more: list[str]) -> str:
        """Verify and replay a copy of the unbroken run, `folder`/copied, into `folder`/replayed; then run `more`, each
        a command and its flags. The copy stays as it is. Returns what was printed.
        """
        run, log = shutil.copytree(self.unbroken, folder / "copied"), folder / "log"
        before = run_folders.snapshot(run)
        replay = ["replay", "--output-dir", str(folder / "replayed")]
        for command, *flags in (["verify", "--steps", str(STEPS)], replay, *more):
            assert trials.run([*command.split(), str(run), *flags], log) == 0, log.read_text()
        assert run_folders.snapshot(run) == before
        last = run / "weights" / f"step_{STEPS}" / "model.safetensors"
        assert (folder / "replayed" / "model.safetensors").read_bytes() == last.read_bytes()
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


def warm_model(folder: Path) -> Path:
    """A tiny model after a short SFT, so that rewards differ within a group and every step really updates."""
    args = ["sft", *TINY, "--output-dir", str(folder / "sft"), "--max-steps", "60", "--data.env.id", "reverse-text"]
    args += ["--data.batch-size", "16", "--no-data.pack", "--data.seq-len", "96", "--optim.lr", "3e-3"]
    args += ["--precision", "fp32"]
    assert trials.run(args, folder / "log") == 0, (folder / "log").read_text()
    return folder / "sft" / "weights" / "step_60"


def rl(model: Path, precision: str) -> list[str]:
    """RL: 8 steps, a checkpoint every two of which the newest two stay, an evaluation every four."""
    return [
        *("rl", "--model.name", str(model), "--max-steps", str(STEPS), "--seed", "3", "--precision", precision),
        *("--seq-len", "96", "--ckpt.interval", "2", "--ckpt.keep-last", str(KEEP_LAST), "--trainer.optim.lr", "1e-3"),
        *("--orchestrator.batch-size", str(PROMPTS * ROLLOUTS), "--orchestrator.rollouts-per-example", str(ROLLOUTS)),
        *("--orchestrator.sampling.max-tokens", "16", "--orchestrator.env.id", "reverse-text"),
        *("--orchestrator.eval.interval", "4", "--orchestrator.eval.num-examples", "6"),
    ]


def pool(model: Path, precision: str) -> list[str]:
    """RL whose prompts are retired, parked and tried again."""
    return [
        *(*rl(model, precision), "--orchestrator.env.id", "chances", "--orchestrator.curriculum.pool", *NO_AUDIT),
        *("--orchestrator.curriculum.pool.park-after", "2", "--orchestrator.curriculum.pool.retry-parked", "2"),
    ]


def refill(model: Path, precision: str) -> list[str]:
    """RL with such a pool, of which prompts are drawn until the batch is full of groups whose rewards differ."""
    return [
        *(*pool(model, precision), "--orchestrator.env.args", '{"parity": 0}', "--orchestrator.refill.max-rounds", "3"),
        *("--orchestrator.refill.oversample", "1.5"),
    ]


def mix(model: Path, precision: str) -> list[str]:
    """RL of three tasks of unequal weights, two of them one with other arguments; evaluated on two others."""
    tasks = [
        {"id": "chances", "weight": 3, "sampling": {"max_tokens": 12, "top_k": 20}},
        {"id": "chances", "name": "parity", "args": {"parity": 0}, "sampling": {"stop": ["a"]}},
        {"id": "reverse-text", "weight": 0.5},
    ]
    evals = [{"id": "chances"}, {"id": "reverse-text", "name": "reversed", "sampling": {"max_tokens": 4}}]
    return [
        *(
            *pool(model, precision),
            "--orchestrator.envs",
            json.dumps(tasks),
            "--orchestrator.eval.envs",
            json.dumps(evals),
        ),
        *("--orchestrator.refill.oversample", "1.5", "--orchestrator.refill.max-rounds", "2"),
    ]


def talk(model: Path, precision: str) -> list[str]:
    return [
        *(*rl(model, precision), "--orchestrator.env.id", "guessing", "--orchestrator.sampling.max-tokens", "6"),
        *("--orchestrator.eval.num-examples", "4", *NO_AUDIT),
    ]


def cut(model: Path, precision: str) -> list[str]:
    """RL that cuts distributions and stops at a text, with several updates a step and the KL in the reward."""
    return [
        *(*rl(model, precision), "--orchestrator.sampling.top-p", "0.9", "--orchestrator.sampling.top-k", "20"),
        *("--orchestrator.sampling.min-p", "0.05", "--orchestrator.sampling.stop", "a"),
        *("--trainer.loss.kl-coef", "0.1", "--trainer.loss.kl-in", "reward", "--trainer.loss.kl-estimator", "k1"),
        *("--trainer.loss.reference-interval", "3", "--trainer.minibatches", "2"),
        *("--trainer.updates-per-batch", "2", "--orchestrator.truncated", "penalize", "--trainer.optim.lr", "3e-4"),
        *("--orchestrator.eval.sampling.min-p", "0.2", "--orchestrator.eval.sampling.stop", "</answer>", *NO_AUDIT),
    ]


def lora_4bit(model: Path, precision: str) -> list[str]:
    """That, beside weights in 4 bits."""
    return [*lora(model, precision), "--model.lora.base", "4bit"]


def lora(model: Path, precision: str) -> list[str]:
    """RL of an adapter, with a KL term that refers to the model without it."""
    return [
        *(*rl(model, precision), "--model.lora.rank", "4", "--trainer.optim.lr", "1e-2"),
        *("--trainer.loss.kl-coef", "0.1"),
    ]


def sft(precision: str) -> list[str]:
    """SFT of a model from nothing: 8 steps of packed demonstrations, checkpoints and pruning as above, validation."""
    return [
        *("sft", *TINY, "--max-steps", str(STEPS), "--seed", "3", "--precision", precision, "--optim.lr", "1e-3"),
        *("--data.env.id", "reverse-text", "--data.seq-len", "128", "--data.batch-size", "3"),
        *("--data.micro-batch-tokens", "200", "--val.interval", "4", "--val.max-examples", "8"),
        *("--ckpt.interval", "2", "--ckpt.keep-last", str(KEEP_LAST)),
    ]
