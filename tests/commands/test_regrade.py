"""`hone regrade`: another grader on what a run recorded. Numbers by hand, failures counted, runs left as they are."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tampering
from refusals import fails
from run_folders import held, make_run

from hone.cli import main
from hone.runs import Run
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
RECORDED = '[orchestrator.env]\nid = "early"\n'


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
    """A run of the task `early` with these rollouts."""
    run = make_run(folder, steps=len(steps), max_steps=len(steps))
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
    early = [[row(s, i, wrong if i == 0 else right, i > 0) for i in range(4)] for s in range(10)]
    for of_step in early:
        of_step[0]["outcome"] = "wrong"
    grown = [[row(s, i, wrong if i == 0 else late, False) for i in range(4)] for s in range(10, 20)]
    for of_step in grown:
        of_step[0]["outcome"] = "wrong"
    return record(folder / "drifted", early + grown)


def regrade(run: Path, *flags: str) -> dict[str, Any]:
    """The result as JSON."""
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
    assert "To see what else the recorded grader loses:\n  hone audit early\n" in printed
    assert "hone rl @" in printed and """--orchestrator.env.args '{"reads": "100"}'""" not in printed
    assert """--orchestrator.env.args '{"reads": 100}'""" in printed


def test_arguments_alone_override_those_of_the_run(drifted):
    found = regrade(drifted, "--env.args.reads", "100")
    assert found["graded_by"] == "early (reads 100)" and found["verdict"]["cause"] == "parser"


def test_the_runs_own_task_gives_the_recorded_rewards(drifted, capsys):
    found = regrade(drifted)
    assert found["check"] == {"completions": 80, "same": 80, "impossible": None}
    assert found["verdict"]["cause"] == "undecided"
    printed = capsys.readouterr().out
    assert "graded by     the same task" in printed and "name another one with --env" in printed


def test_a_reward_that_does_not_come_out_again_is_named(drifted, capsys):
    tampering.edit_rollouts(drifted, 3, lambda rows: rows[2].update(reward=0.0, outcome="wrong"))
    assert regrade(drifted)["check"]["same"] == 79
    assert "the first that differs: sample 3-0-2 was wrong (0), and is now correct (1)" in capsys.readouterr().out
    assert regrade(drifted, "--env.args.reads", "100", "--check", "20")["check"] == {
        "completions": 20,
        "same": 20,
        "impossible": None,
    }


def test_failures_are_counted_and_in_no_mean(folder, capsys):
    """Of 16 completions one failed when it was recorded, and another now."""
    failed = {"reward": None, "outcome": "grader_timeout", "components": []}
    steps = [[row(s, i, "yes is it", True) for i in range(4)] for s in range(4)]
    steps[1][0] |= failed
    steps[2][0] |= {"text": "yes is boom"}
    found = regrade(record(folder / "run", steps), "--env.args.reads", "100")
    assert found["failed"] == {"recorded": 1, "now": 1}
    assert [w["graded"] for w in found["windows"]] == [4, 3, 3, 4]
    assert [w["recorded"] for w in found["windows"]] == [1.0] * 4
    printed = capsys.readouterr().out
    assert "without 1 that could not be graded then and 1 now (ValueError: boom was said)" in printed


def test_a_grader_that_fails_too_often_ends_it(folder, capsys):
    steps = [[row(s, i, "boom", False) for i in range(64)] for s in range(5)]
    run = record(folder / "run", steps)
    fails(capsys, main(["regrade", str(run)]), "256 of the first 256", "ValueError: boom was said", "--grading.max-fai")
    few = record(folder / "few", steps[:2])
    fails(capsys, main(["regrade", str(few)]), "no completion of", "was graded both times", "128 now")


def test_the_length_limit_is_a_part_of_its_own(folder):
    """From the second half on, half of the completions are cut off before they say what is right."""
    cut = {"stop_reason": "length", "outcome": "truncated"}
    whole = [[row(s, i, "yes is it", True) for i in range(4)] for s in range(10)]
    half = [
        [row(s, i, "ye", False, **cut) if i < 2 else row(s, i, "yes is it", True) for i in range(4)]
        for s in range(10, 20)
    ]
    verdict = regrade(record(folder / "run", whole + half))["verdict"]
    assert verdict["cause"] == "truncation" and verdict["change"]["truncation"] == pytest.approx(-0.5)
    assert verdict["change"]["skill"] == verdict["change"]["parser"] == 0


def test_spans_and_samples(drifted, capsys):
    found = regrade(drifted, "--env.args.reads", "100", "--from", "12:14", "--to", "18:")
    assert (found["verdict"]["from"]["first"], found["verdict"]["to"]["last"]) == (12, 19)
    assert found["verdict"]["change"]["recorded"] == 0
    assert regrade(drifted, "--steps", "4:8")["steps"] == [4, 5, 6, 7]
    assert regrade(drifted, "--every", "8")["steps"] == [0, 8, 16]
    assert regrade(drifted, "--max-rollouts", "18")["steps"] == [0, 5, 10, 15]
    capsys.readouterr()
    for flags, words in (
        (["--steps", "5"], "'5' is no span of steps: write 60:80"),
        (["--steps", "8:4"], "'8:4' holds no step"),
        (["--steps", "40:"], "--steps 40: holds none of the recorded steps 0 to 19"),
        (["--from", "0:4"], "--from 0:4 needs its counterpart: say --to A:B"),
        (["--from", "0:4", "--to", "30:"], "--to 30: holds none of the recorded steps"),
    ):
        fails(capsys, main(["regrade", str(drifted), *flags]), words)


def test_new_scores_as_a_table(drifted, tmp_path):
    out = tmp_path / "scores.parquet"
    regrade(drifted, "--env.args.reads", "100", "--output", str(out))
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 80 and sum(r["reward"] for r in rows) == 60 and sum(r["recorded_reward"] for r in rows) == 30
    last = rows[-1]
    assert (last["step"], last["sample_id"], last["recorded_outcome"], last["outcome"]) == (
        19,
        "19-0-3",
        "unparsable",
        "correct",
    )
    assert last["components"] == [("correctness", 1.0)] and last["detail"] == "expected 'yes', got 'yes'; correctness 1"


def test_nothing_is_written_into_a_run(drifted, tmp_path, capsys):
    before = tampering.snapshot(drifted)
    for flag, name in (("--output", "rollouts/a.parquet"), ("--json", "weights/a.json")):
        fails(capsys, main(["regrade", str(drifted), flag, str(drifted / name)]), "lies in the run", f"another {flag}")
    fails(capsys, main(["regrade", str(drifted), "--output", str(tmp_path)]), "is a folder: name a file in it")
    fails(capsys, main(["regrade", str(drifted), "--output", "no/where.parquet"]), "there is no folder no")
    assert tampering.snapshot(drifted) == before


def test_a_run_whose_task_is_gone_needs_another(drifted, folder, capsys):
    (folder / "environments" / "early.py").rename(folder / "environments" / "later.py")
    fails(capsys, main(["regrade", str(drifted)]), "the run's own task can't be had", "--env ID")
    found = regrade(drifted, "--env", "later", "--env.args.reads", "100")
    assert found["verdict"]["cause"] == "parser" and found["check"]["completions"] == 0
    assert "no environment 'early'" in found["check"]["impossible"]


def test_a_run_of_one_step_has_no_change(folder):
    run = record(folder / "run", [[row(0, i, "yes is it", True) for i in range(4)]])
    verdict = regrade(run, "--env.args.reads", "100")["verdict"]
    assert (verdict["cause"], verdict["change"]["recorded"]) == ("none", 0.0)
    assert verdict["sentence"] == "there is no change to split: all that was graded both times is of the steps 0."


def test_flags_that_would_keep_arguments_of_the_recorded_task_are_not_suggested(drifted, capsys):
    """Tables of a config are merged: `reads` would stay."""
    (drifted / "config.toml").write_text(
        (drifted / "config.toml").read_text() + "\n[orchestrator.env.args]\nreads = 8\n"
    )
    regrade(drifted, "--env", "early", "--env.args.reads", "100")
    assert "--orchestrator.env.id early" in capsys.readouterr().out
    (drifted.parent / "environments" / "later.py").write_text(TASK.replace("reads: int = 8", "reads: int = 100"))
    capsys.readouterr()
    regrade(drifted, "--env", "later")
    told = capsys.readouterr().out
    assert "in a copy of" in told and '  [orchestrator.env]\n  id = "later"\n' in told and "hone rl @" not in told


def test_what_a_task_prints_is_not_in_the_json_and_what_it_says_is_escaped(drifted, capfd):
    module = drifted.parent / "environments" / "loud.py"
    loud = TASK.replace('    if "boom"', '    print("loud")\n    if "boom"').replace(
        "import Parser", "import inline, Parser"
    )
    module.write_text(loud.replace("def correctness", "@inline\ndef correctness"))
    assert main(["regrade", str(drifted), "--env", "loud", "--env.args.reads", "100", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["disagreements"] == 30, "all, not only those that are kept"
    module = drifted.parent / "environments" / "angry.py"
    module.write_text(TASK.replace('    if "boom"', '    if "I think"').replace("boom was said", "\\x1b[2J was said"))
    capfd.readouterr()
    assert main(["regrade", str(drifted), "--env", "angry", "--grading.max-failed", "1"]) == 0
    printed = capfd.readouterr().out
    assert "ValueError: \\x1b[2J was said" in printed and "\x1b" not in printed


def test_the_answer_and_info_of_another_task_are_made_by_a_template(folder):
    steps = [[row(s, i, "yes is it", True, answer="old", info='{"want": "yes"}') for i in range(2)] for s in range(2)]
    run = record(folder / "run", steps)
    assert regrade(run, "--env", "early")["windows"][0]["regraded"] == 0
    found = regrade(run, "--env", "early", "--env.template", '{"answer": "{info.want}"}')
    assert found["windows"][0]["regraded"] == 1
    with contextlib.redirect_stderr(None):
        assert main(["regrade", str(run), "--env", "early", "--env.template", '{"prompt": "a"}']) == 2


def test_of_a_conversation_the_messages_are_graded_and_a_state_that_is_not_recorded_is_said(folder, capsys):
    turns = [
        {"role": "assistant", "content": "3"},
        {"role": "user", "content": "cold, higher"},
        {"role": "assistant", "content": "7"},
    ]
    facts = {"answer": "7", "completion": json.dumps(turns)}
    parts = {"components": [("correctness", 1.0), ("guesses", 2.0)], "weights": [("correctness", 1.0), ("guesses", 0)]}
    run = record(folder / "run", [[row(0, i, "3\n\n7", True, **facts, **parts) for i in range(2)]])
    config = (run / "config.toml").read_text().replace('"early"', '"guessing"')
    (run / "config.toml").write_text(config)
    found = regrade(run)
    assert found["check"]["same"] == 2 and found["windows"][0]["regraded"] == 1.0
    assert "reward functions read the state of a conversation, which is not recorded" in capsys.readouterr().out


def test_a_run_that_is_at_work_is_regraded_as_far_as_it_is(drifted, capsys):
    info = json.loads((drifted / "run.json").read_text())
    (drifted / "run.json").write_text(json.dumps(info | {"status": "running"}))
    with held(drifted):
        before = tampering.snapshot(drifted)
        assert regrade(drifted)["check"]["same"] == 80
        assert tampering.snapshot(drifted) == before
    assert "drifted: running" in capsys.readouterr().out


def test_what_is_no_run_of_rl_is_refused(folder, sft_run, capsys):
    fails(capsys, main(["regrade", str(sft_run)]), "is a run of `hone sft`, which records no rollouts")
    empty = record(folder / "empty", [])
    fails(capsys, main(["regrade", str(empty)]), "has no rollouts yet: there is nothing to grade")


def test_a_copied_run_of_hone_is_regraded_without_its_model_and_without_torch(bench, rl_run, tmp_path):
    """In a process of its own, which sees the task but not the model."""
    copied = shutil.copytree(rl_run, tmp_path / "copied")
    shutil.rmtree(copied / "weights")
    (tmp_path / "environments").mkdir()
    shutil.copy(bench.folder / "environments" / "parity.py", tmp_path / "environments")
    script = "import sys; from hone.cli import main; code = main(['regrade', 'copied', '--json']); "
    script += "assert 'torch' not in sys.modules and 'transformers' not in sys.modules; sys.exit(code)"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rewards = [reward for step in range(6) for reward in Run(rl_run).rollouts(step)["reward"].to_pylist()]
    assert found["check"] == {"completions": 48, "same": 48, "impossible": None} and len(rewards) == 48
    assert sum(w["recorded"] * w["graded"] for w in found["windows"]) == pytest.approx(sum(rewards))
