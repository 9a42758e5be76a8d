"""What replay, verify, diff and regrade make of runs in several processes: to the bit, or on two ranks nearly so."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import tampering
from recorded import Bench
from split_runs import Run as Started
from split_runs import records

from hone.cli import main
from hone.processes import free_port
from hone.runs import Run

pytestmark = pytest.mark.split

STEPS = 6
INVARIANT = "--inference.batch-invariant"


def begin(bench: Bench, name: str, *more: str, steps: int = STEPS) -> Path:
    """A run of the task `parity` to its end, in three processes unless `more` says otherwise."""
    argv = ["--model.name", "model", "--max-steps", str(steps), "--precision", "fp32", "--seq-len", "48", "--no-audit"]
    argv += ["--ckpt.interval", "2", "--trainer.optim.lr", "1e-3", "--display", "plain", "--mode", "split"]
    argv += ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    argv += ["--orchestrator.sampling.max-tokens", "10", "--orchestrator.env.id", "parity"]
    argv += ["--orchestrator.eval.interval", "3", "--orchestrator.eval.num-examples", "4"]
    run = Started([*argv, "--inference.port", str(free_port()), *more], bench.folder / name)
    try:
        assert run.ended() == 0, run.output
    finally:
        run.kill()
    return bench.folder / name


def tool(bench: Bench, capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """The exit code of `hone ARGV`, and what it printed."""
    capsys.readouterr()
    with contextlib.chdir(bench.folder):
        code = main(list(argv))
    return code, capsys.readouterr().out


@pytest.fixture(scope="module")
def lock_step(bench: Bench) -> Path:
    return begin(bench, "lock-step", INVARIANT)


@pytest.fixture(scope="module")
def ahead(bench: Bench) -> Path:
    return begin(bench, "ahead", "--orchestrator.max-async-level", "2", steps=8)


@pytest.fixture(scope="module")
def two_ranks(bench: Bench) -> Path:
    """Four steps on two ranks, and two more in one process."""
    begin(bench, "ranks", INVARIANT, "--trainer.ranks", "2", steps=4)
    return begin(bench, "ranks", INVARIANT, "--mode", "colocated", "--resume")


def test_lock_step_is_done_again_in_one_process(
    bench: Bench, lock_step: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tampering.snapshot(lock_step)
    code, text = tool(bench, capsys, "verify", "lock-step", "--steps", str(STEPS))
    assert code == 0 and "6 steps and the evaluation at the end came out equal, bit for bit" in text, text
    assert "differ from the run" not in text and "note" not in text, text
    code, text = tool(bench, capsys, "replay", "lock-step")
    assert code == 0 and "verdict       equal: every update has the run's metrics and weights" in text
    assert tampering.snapshot(lock_step) == before


def test_tokens_of_several_versions_are_trained_on_again(
    bench: Bench, ahead: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = tool(bench, capsys, "replay", "ahead")
    assert code == 0 and "verdict       equal: every update has the run's metrics and weights" in text, text
    assert max(line["staleness/max"] for line in records(ahead / "metrics.jsonl")[:8]) > 0
    code, text = tool(bench, capsys, "verify", "ahead", "--steps", "8")
    assert code == 0 and "8 steps came out equal from their recorded completions, bit for bit" in text, text
    assert "completions were sampled by a server without inference.batch_invariant, which can't be asked again" in text
    code, text = tool(bench, capsys, "regrade", "ahead")
    assert code == 0 and "the recorded reward" in text, text
    code, text = tool(bench, capsys, "runs", "show", "ahead")
    assert "completions are sampled by a server without inference.batch_invariant" in " ".join(text.split())


def test_two_ranks_are_replayed_by_one_within_the_tolerance(
    bench: Bench, two_ranks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    info = Run(two_ranks).info
    assert (info["ranks"], info["exact"]) == (2, False)
    assert info["inexact"] == [{"step": 4, "cause": "resumed with other ranks (2, now 1)"}]
    code, text = tool(bench, capsys, "replay", "ranks")
    assert code == 0, text
    assert "verdict       equal within 1e-05: the run was trained on 2 ranks, this is one process" in text
    code, text = tool(bench, capsys, "verify", "ranks", "--steps", str(STEPS))
    assert code == 0 and "6 steps came out equal from their recorded completions, up to 1e-05" in text, text
