"""`hone diff`: the first step and the first quantity that differ between two runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import tampering
from refusals import fails

from hone.cli import main


@pytest.fixture
def diff(bench, capsys):
    def call(first: Path, second: Path) -> tuple[int, str]:
        with contextlib.chdir(bench.folder):
            capsys.readouterr()
            code = main(["diff", str(first), str(second)])
        return code, capsys.readouterr().out

    return call


def test_equal_runs(bench, rl_run, diff):
    again = bench.rl("again")
    before = tampering.snapshot(rl_run), tampering.snapshot(again)
    code, printed = diff(rl_run, again)
    assert code == 0 and (tampering.snapshot(rl_run), tampering.snapshot(again)) == before
    assert "config        no setting differs" in printed and "equal         steps 0 to 5" in printed
    assert "verdict       equal in examples, tokens, logprobs, rewards, metrics and weights\n" in printed


def test_an_evaluation_that_one_run_lost_is_missing(rl_run, copied, diff):
    (lost, *_) = sorted((copied / "evals").iterdir())
    lost.unlink()
    code, printed = diff(rl_run, copied)
    assert code == 1 and "evaluation: " in printed and f"{lost.name} is there in A and missing in B" in printed


def test_another_learning_rate_from_step_3_on(bench, diff):
    flags = ["--ckpt.interval", "3"]
    plain = bench.rl("plain", *flags)
    drifted = bench.rl("drift", *flags)
    bench.rl("drift", *flags, "--trainer.optim.lr", "2e-3", "--resume.step", "3", "--allow-drift")
    code, printed = diff(plain, drifted)
    assert code == 1
    assert "config        trainer.optim.lr: 0.001 in A, 0.002 in B" in printed
    assert "equal         steps 0 to 2" in printed
    assert "verdict       they first differ at step 3, metrics: lr is 0.001 in A and 0.002 in B" in printed
    assert "B is not reproducible: resumed with other" in printed


def test_a_planted_divergence_is_found_at_its_step_and_quantity(rl_run, copied, diff):
    """Each other quantity is in tests/extensions/reproduce/test_compare.py."""
    tampering.edit_rollouts(copied, 4, lambda rows: rows[1].update(reward=0.25), fit_hashes=True)
    tampering.edit_metrics(copied, 4, "grad_norm", 0.5, fit_hashes=True)  # what follows from it
    code, printed = diff(rl_run, copied)
    assert code == 1 and "they first differ at step 4, rewards: the reward of sample 4-8-1 is" in printed
    assert "equal         steps 0 to 3" in printed


def test_what_can_not_be_compared_says_why(bench, rl_run, sft_run, tmp_path, capsys):
    fails(capsys, main(["diff", str(rl_run), str(sft_run)]), "a run of `hone rl`", "one of `hone sft`")
    fails(capsys, main(["diff", str(rl_run)]), "B is missing: write `hone diff A B`")
    fails(capsys, main(["diff", str(rl_run), str(tmp_path)]), "is not a run of hone")
    fails(capsys, main(["diff", str(rl_run), str(rl_run), "more"]), "unexpected argument 'more'")
