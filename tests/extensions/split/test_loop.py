"""Runs in three processes against the same run in one: tokens, draws, versions, and what the directory holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from processes import until
from split_runs import Run as Started
from split_runs import draws, hone, records

from hone.processes import free_port
from hone.runs import Run

pytestmark = pytest.mark.split

STEPS, PROMPTS = 10, 3


@pytest.fixture(scope="module")
def recipe(warm_model: Path) -> list[str]:
    return [
        *("--model.name", str(warm_model), "--max-steps", str(STEPS), "--seed", "3", "--seq-len", "96", "--no-audit"),
        *("--ckpt.interval", "4", "--trainer.optim.lr", "1e-3", "--orchestrator.batch-size", str(4 * PROMPTS)),
        *("--orchestrator.rollouts-per-example", "4", "--orchestrator.sampling.max-tokens", "16"),
        *("--orchestrator.env.id", "reverse-text", "--orchestrator.eval.interval", "5"),
        *("--orchestrator.eval.num-examples", "8", "--orchestrator.max-examples", "8", "--display", "plain"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def begin(recipe: list[str], out: Path, *more: str) -> Path:
    """A run to its end, in the mode that `more` says."""
    command = Started([*recipe, "--inference.port", str(free_port()), *more], out)
    try:
        assert command.ended() == 0, command.output
    finally:
        command.kill()
    return out


@pytest.fixture(scope="module")
def invariant(recipe: list[str], folder: Path) -> tuple[Path, Path]:
    """One process, and three in lock-step, both with a sampler that is batch invariant."""
    flag = "--inference.batch-invariant"
    return begin(recipe, folder / "one", flag), begin(recipe, folder / "three", flag, "--mode", "split")


@pytest.fixture(scope="module")
def ahead(recipe: list[str], folder: Path) -> Path:
    return begin(recipe, folder / "ahead", "--mode", "split", "--orchestrator.max-async-level", "2")


def test_lock_step_is_the_run_of_one_process_to_the_byte(invariant: tuple[Path, Path]) -> None:
    one, three = invariant
    files = sorted(path.relative_to(one) for kind in ("rollouts", "tokens", "evals") for path in one.glob(f"{kind}/*"))
    files += [Path("metrics.jsonl"), Path("hashes.jsonl")]
    for step in (4, 8, STEPS):
        files += [Path(f"checkpoints/step_{step}/{name}.safetensors") for name in ("model", "optimizer")]
        files += [Path(f"weights/step_{step}/model.safetensors"), Path(f"weights/step_{step}/config.json")]
    assert len(files) == 2 * STEPS + 3 + 2 + 12
    assert [str(file) for file in files if (one / file).read_bytes() != (three / file).read_bytes()] == []
    ledgers = [(out / "checkpoints/step_8/state.json").read_text() for out in invariant]
    assert ledgers[0] == ledgers[1]
    assert sorted(p.name for p in (one / "weights/step_8").iterdir()) == sorted(
        p.name for p in (three / "weights/step_8").iterdir()
    )


def test_every_token_carries_a_version_that_is_not_too_old(ahead: Path) -> None:
    run, seen = Run(ahead), set()
    for step in run.rollout_steps():
        for row in run.rollouts(step).select(["versions", "sampled_mask"]).to_pylist():
            versions = np.array(row["versions"])[np.array(row["sampled_mask"])]
            assert (versions >= max(0, step - 2)).all() and (versions <= step).all()
            assert (np.diff(versions) >= 0).all(), "weights never go back"
            seen |= {step - int(version) for version in versions}
    assert seen - {0}, "the sampler ran ahead"
    lines = records(ahead / "metrics.jsonl")[:STEPS]
    assert max(line["staleness/mean"] for line in lines) > 0


def test_a_run_goes_on_in_another_mode(invariant: tuple[Path, Path], recipe: list[str], folder: Path) -> None:
    """From checkpoint 8 of one process in three, and the reverse: the same end, for both are exact."""
    one, three = invariant
    for source, mode in ((one, "split"), (three, "colocated")):
        flags = ("--inference.batch-invariant", "--mode", mode, "--resume.dir", str(source), "--resume.step", "8")
        out = begin(recipe, folder / f"to-{mode}", *flags)
        end = f"weights/step_{STEPS}/model.safetensors"
        assert (out / end).read_bytes() == (one / end).read_bytes()
        assert (out / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()


CUT = ("--orchestrator.sampling.max-tokens", "4", "--alarms", "off", "--alarms.window", "2")
CUT += ("--alarms.truncation.threshold", "1e-6", "--orchestrator.max-async-level", "2", "--mode", "split")
"""Completions are cut: the alarm is raised at step 1, when up to two more batches are on their way."""


def test_an_alarm_pauses_all_processes_at_a_checkpoint(recipe: list[str], folder: Path) -> None:
    flags = [*recipe, *CUT, "--ckpt", "None", "--inference.port", str(free_port())]
    command = Started([*flags, "--alarms.truncation.action", "pause"], folder / "paused")
    try:
        until(lambda: (command.out / "paused.json").exists() or command.process.poll() is not None)
        (step,) = Run(command.out).checkpoints.steps()
        assert 2 <= step <= 5 and hone(folder, "runs", "show", "paused").count("paused by an alarm") == 1
        hone(folder, "runs", "continue", "paused")
        assert command.ended() == 0, command.output
    finally:
        command.kill()
    assert Run(command.out).info["status"] == "done" and sum(draws(command.out).values()) == STEPS * PROMPTS
