"""`hone regrade`: another grader on what a run recorded. Numbers by hand, failures counted, runs left as they are."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tampering
from refusals import fails
from run_folders import make_run

from hone.cli import main
from hone.environments.task_files import source_digest
from hone.runs.rollouts import write_rollouts

TASK = '''
from hone.environments import Parser, Rubric, SingleTurnEnv

class Early(Parser):
    """The text before ` is`, in the first `reads` characters."""

    expects = "an answer before is"

    def __init__(self, reads):
        self.reads = reads

    def parse(self, text):
        found = text[: self.reads].split(" is")
        return found[0].split()[-1] if len(found) > 1 and found[0].split() else None


def correctness(completion, answer, parser):
    """1 if the answer is right; a text with `boom` raises."""
    if "boom" in completion[-1]["content"]:
        raise ValueError("boom was said")
    return float(parser.parse_answer(completion) == answer)


def load_environment(reads: int = 8):
    rows = [{"question": "which?", "answer": "yes"}]
    return SingleTurnEnv(rubric=Rubric([correctness]), parser=Early(reads), dataset=rows, eval_dataset=rows)
'''


def row(step: int, index: int, text: str, right: bool, **more: Any) -> dict[str, Any]:
    """A rollout that the task `early` graded; `more` are columns that differ."""
    return {
        "step": step,
        "draw": step,
        "group": 0,
        "sample_id": f"{step}-0-{index}",
        "example_id": "example",
        "token_ids": [1, 2, 3, 4],
        "sampled_mask": [False, True, True, True],
        "reward": float(right),
        "components": [("correctness", float(right))],
        "weights": [("correctness", 1.0)],
        "outcome": "correct" if right else "unparsable",
        "detail": "as recorded",
        "stop_reason": "stop",
        "prompt": json.dumps([{"role": "user", "content": "which?"}]),
        "text": text,
        "answer": "yes",
        "info": "{}",
    } | more


def record(folder: Path, steps: list[list[dict[str, Any]]]) -> Path:
    digest = source_digest(folder.parent / "environments" / "early.py")
    run = make_run(folder, steps=len(steps), max_steps=len(steps), sources={"environment": digest})
    config = (run / "config.toml").read_text().replace('id = "reverse-text"', 'id = "early"')
    (run / "config.toml").write_text(config)
    (run / "rollouts").mkdir()
    for step, rows in enumerate(steps):
        write_rollouts(run / "rollouts" / f"step_{step:06d}.parquet", rows)
    return run


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "early.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "early", raising=False)
    return tmp_path


@pytest.fixture
def drifted(folder) -> Path:
    """20 steps of 4: three of four are right all along; from step 10 on so late that the task reads none of them."""
    right, late, wrong = "yes is it", "I think that yes is it", "no is it"
    steps = [[row(s, 0, wrong, False, outcome="wrong")] for s in range(20)]
    for s, of_step in enumerate(steps):
        of_step += [row(s, i, right if s < 10 else late, s < 10) for i in (1, 2, 3)]
    return record(folder / "drifted", steps)


def regrade(run: Path, *flags: str) -> dict[str, Any]:
    out = run.parent / "result.json"
    assert main(["regrade", str(run), *flags, "--json", str(out)]) == 0
    return json.loads(out.read_text())


def test_a_parser_that_lost_the_answers_is_told_from_a_model_that_lost_them(drifted, capsys):
    before = tampering.snapshot(drifted)
    found = regrade(drifted, "--env", "early", "--env.args.reads", "100")
    assert tampering.snapshot(drifted) == before
    verdict = found["verdict"]
    change = {"recorded": -0.75, "parser": -0.75, "skill": 0.0, "truncation": 0.0, "format": 0.0}
    assert verdict["cause"] == "parser" and verdict["change"] == pytest.approx(change)
    assert [(w["recorded"], w["regraded"]) for w in found["windows"]] == [(0.75, 0.75)] * 5 + [(0.0, 0.75)] * 5
    assert [w["right_new"] for w in found["windows"]] == [0.0] * 5 + [0.75] * 5
    assert found["check"] == {"completions": 80, "same": 80, "impossible": None}
    printed = capsys.readouterr().out
    assert "Your parser lost it: the model did not get worse." in printed
    assert "| I think that yes is it\n  recorded: unparsable (0), as recorded\n  now:      correct (1)" in printed
    assert "To see what else the recorded grader rejects:\n  hone audit early\n" in printed


def test_a_reward_that_does_not_come_out_again_is_named(drifted, capsys, monkeypatch):
    tampering.edit_rollouts(drifted, 3, lambda rows: rows[2].update(reward=0.0, outcome="wrong"))
    assert regrade(drifted)["check"]["same"] == 79
    assert "the first that differs: sample 3-0-2 was wrong (0), and is now correct (1)" in capsys.readouterr().out
    monkeypatch.setattr("hone.extensions.reproduce.regrade.CHECKED", 20)
    found = regrade(drifted, "--env.args.reads", "100")
    assert found["check"] == {"completions": 20, "same": 20, "impossible": None}


def test_a_grader_that_fails_too_often_ends_it(folder, capsys):
    steps = [[row(s, i, "boom", False) for i in range(64)] for s in range(5)]
    run = record(folder / "run", steps)
    fails(capsys, main(["regrade", str(run)]), "256 of the first 256", "ValueError: boom was said", "--grading.max-fai")
    few = record(folder / "few", steps[:2])
    fails(capsys, main(["regrade", str(few)]), "no completion of", "was graded both times", "128 now")


def test_spans_and_samples(drifted, capsys):
    found = regrade(drifted, "--env.args.reads", "100", "--from", "12:14", "--to", "18:")
    assert (found["verdict"]["from"]["first"], found["verdict"]["to"]["last"]) == (12, 19)
    assert found["verdict"]["change"]["recorded"] == 0
    assert regrade(drifted, "--steps", "4:8")["steps"] == [4, 5, 6, 7]
    capsys.readouterr()
    for flags, words in (
        (["--steps", "5"], "'5' is no span of steps: write 60:80"),
        (["--steps", "8:4"], "'8:4' is no span of steps"),
        (["--steps", "40:"], "--steps 40: names no recorded step; the recorded steps are 0 to 19"),
        (["--from", "0:4"], "--from 0:4 needs --to: add --to A:B"),
        (["--from", "0:4", "--to", "30:"], "--to 30: names no recorded step"),
    ):
        fails(capsys, main(["regrade", str(drifted), *flags]), words)


def test_new_scores_as_a_table(drifted, tmp_path):
    out = tmp_path / "scores.parquet"
    regrade(drifted, "--env.args.reads", "100", "--output", str(out))
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 80 and sum(r["reward"] for r in rows) == 60 and sum(r["recorded_reward"] for r in rows) == 30
    expected = {"step": 19, "sample_id": "19-0-3", "recorded_outcome": "unparsable", "outcome": "correct"}
    expected |= {"components": [("correctness", 1.0)], "detail": "expected 'yes', got 'yes'; correctness 1"}
    assert expected.items() <= rows[-1].items()


def test_nothing_is_written_into_a_run(drifted, tmp_path, capsys):
    before = tampering.snapshot(drifted)
    for flag, name in (("--output", "rollouts/a.parquet"), ("--json", "weights/a.json")):
        fails(capsys, main(["regrade", str(drifted), flag, str(drifted / name)]), "lies in the run", f"another {flag}")
    fails(capsys, main(["regrade", str(drifted), "--output", str(tmp_path)]), "is a folder: name a file in it")
    fails(capsys, main(["regrade", str(drifted), "--output", "no/where.parquet"]), "there is no folder no")
    assert tampering.snapshot(drifted) == before


def test_a_run_whose_task_is_gone_needs_another(drifted, folder, capsys):
    (folder / "environments" / "early.py").rename(folder / "environments" / "later.py")
    fails(capsys, main(["regrade", str(drifted)]), "the run's own task can't be loaded", "--env ID")
    found = regrade(drifted, "--env", "later", "--env.args.reads", "100")
    assert found["verdict"]["cause"] == "parser" and found["check"]["completions"] == 0
    assert "no environment 'early'" in found["check"]["impossible"]


def test_the_answer_and_info_of_another_task_are_made_by_a_template(folder):
    steps = [[row(s, i, "yes is it", True, answer="old", info='{"want": "yes"}') for i in range(2)] for s in range(2)]
    run = record(folder / "run", steps)
    assert regrade(run, "--env", "early")["windows"][0]["regraded"] == 0
    found = regrade(run, "--env", "early", "--env.template", '{"answer": "{info.want}"}')
    assert found["windows"][0]["regraded"] == 1
    with contextlib.redirect_stderr(None):
        assert main(["regrade", str(run), "--env", "early", "--env.template", '{"prompt": "a"}']) == 2


def test_what_is_no_run_of_rl_is_refused(folder, sft_run, capsys):
    fails(capsys, main(["regrade", str(sft_run)]), "is a run of `hone sft`, which records no rollouts")
    empty = record(folder / "empty", [])
    fails(capsys, main(["regrade", str(empty)]), "has no rollouts yet: there is nothing to grade")
