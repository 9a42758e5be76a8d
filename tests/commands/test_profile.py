"""`hone eval --profile` measures pass rates of training examples; `orchestrator.env.profile` trains within them."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from by_chance import TASK
from present import NO_AUDIT, QUIET, reproduced
from refusals import fails

from hone.cli import main
from hone.evaluation.intervals import wilson
from hone.runs import Run


@pytest.fixture
def here(here: Path) -> Path:
    (here / "by_chance.py").write_text(TASK)
    return here


def train(model: Path, *flags: str) -> int:
    few = "--orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4 --orchestrator.sampling.max-tokens 4"
    few += " --orchestrator.env.id by-chance --max-steps 6 --seq-len 64 --ckpt --display plain"
    few += " --output-dir outputs"
    return main(["rl", "--model.name", str(model), *few.split(), *NO_AUDIT, *flags])


def test_it_trains_on_examples_whose_pass_rate_is_within(here: Path, tiny_model_dir: Path, capsys):
    words = ["by-chance", "-m", str(tiny_model_dir), "--profile", "p.parquet", "-n", "8", "-r", "6", "-t", "4"]
    assert main(["eval", *words, "--output-dir", "measured"]) == 0
    printed = capsys.readouterr().out
    rows, samples = pq.read_table("p.parquet").to_pylist(), Run("measured").eval_rows()
    assert [row["example_id"] for row in rows] == list(dict.fromkeys(sample["example_id"] for sample in samples))
    for row in rows:
        own = [sample["outcome"] == "correct" for sample in samples if sample["example_id"] == row["example_id"]]
        ends = wilson(sum(own), 6)
        counts = {"graded": 6, "correct": sum(own), "pass_rate": sum(own) / 6, "low": ends.low, "high": ends.high}
        assert row == {"example_id": row["example_id"]} | counts
    assert [rows[i]["pass_rate"] for i in (0, 4, 5)] == [0, 1, 0]
    within = {row["example_id"] for row in rows if 0.1 <= row["pass_rate"] <= 0.9}
    assert f"p.parquet: {len(within)} of 8 training examples have correct and wrong completions" in printed

    profile = ["--orchestrator.env.profile", "p.parquet", "--orchestrator.env.pass-rate", "[0.1, 0.9]"]
    assert train(tiny_model_dir, *profile) == 0
    left_out = f"{len(within)} of 10 training examples are used: {8 - len(within)} have a pass rate below 0.1 or above"
    left_out += " 0.9 in p.parquet, 2 are not in it"
    run = Run("outputs")
    assert left_out in capsys.readouterr().out and run.info["profile"] == left_out
    assert run.info["pool"] == len(within) == len({entry["example_id"] for entry in run.ledger()})
    assert {entry["example_id"] for entry in run.ledger()} == within
    reproduced(Path("outputs"), 6)
    assert "report" not in QUIET or left_out in (here / "outputs" / "report.html").read_text()


def test_what_can_not_be_used_is_refused_in_a_sentence(here: Path, tiny_model_dir: Path, capsys):
    words = ["by-chance", "-m", str(tiny_model_dir), "--no-save", "-r", "2", "-t", "4", "--profile"]
    assert main(["eval", *words, "p.parquet", "-a", '{"word": "other"}']) == 0
    profile = ["--orchestrator.env.profile", "p.parquet", "--orchestrator.env.pass-rate"]
    capsys.readouterr()
    fails(capsys, train(tiny_model_dir, *profile, "[0, 1]"), "p.parquet has no training example of by-chance")
    fails(capsys, train(tiny_model_dir, *profile, "[0.9, 0.1]"), "pass_rate = [0.9, 0.1] is not two rates")
    fails(capsys, train(tiny_model_dir, *profile[:2]), "set both")
    flag = ["--orchestrator.env.args", '{"word": "other"}', *profile]
    fails(capsys, train(tiny_model_dir, *flag, "[0.01, 0.02]"), "no training example has a pass rate from 0.01 to 0.02")
    before = (here / "p.parquet").read_bytes()
    fails(capsys, main(["eval", *words, "p.parquet"]), "p.parquet already exists: name another file")
    assert (here / "p.parquet").read_bytes() == before
    absent = ["--orchestrator.env.profile", "q.parquet", "--orchestrator.env.pass-rate", "[0, 1]"]
    fails(capsys, train(tiny_model_dir, *absent), "q.parquet does not exist: `hone eval ENV")
    (here / "p.parquet").write_text("other")
    fails(capsys, train(tiny_model_dir, *profile, "[0, 1]"), "p.parquet is no profile that `hone eval` wrote")
    fails(capsys, main(["eval", *words, "nowhere/p.parquet"]), "there is no folder nowhere")
    assert not (here / "outputs").exists()
