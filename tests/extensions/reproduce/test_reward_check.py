"""Recorded completions are graded again while a run trains: a reward that changes or draws is an alarm, an honest one
is not, and a run has the same bytes with the check and without it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import hone
from hone.cli import main
from hone.environments import MultiTurnEnv, Rubric, SingleTurnEnv
from hone.environments.data import given_rows
from hone.extensions.agents.rewards import AgentLimits
from hone.extensions.agents.task import AgentTask
from hone.extensions.reproduce import reward_check
from hone.extensions.reproduce.reward_check import EVERY, not_checked
from hone.extensions.viewer.card.facts import facts_of
from hone.runs import Run

ROWS = [{"prompt": f"{i} + 1", "answer": str(i + 1)} for i in range(8)]
REWARDS = """
calls = 0

def text_of(completion):
    return completion[-1]["content"]

def honest(completion):
    return len(text_of(completion)) % 3 / 2

def ranked(completions, **columns):
    lengths = sorted({len(text) for text in completions})
    return [lengths.index(len(text)) / 4 for text in completions]

def jumps(completion):
    global calls
    calls += 1
    return float(calls > 30)

def jumps_in_group(completions, **columns):
    global calls
    calls += 1
    return [float(calls > 6)] * len(completions)
"""
STEPS = EVERY + 2


@pytest.fixture
def settings(tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Settings of runs in a folder with `graded_rewards.py`; the last check is waited for on a slow machine, too."""
    monkeypatch.setattr(reward_check, "LAST_SECONDS", 600.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "graded_rewards.py").write_text(REWARDS)
    sys.modules.pop("graded_rewards", None)
    settings = {"model": str(tiny_model_dir), "max_steps": STEPS, "seq_len": 48, "display": "none", "audit": False}
    settings |= {"orchestrator.batch_size": 8, "orchestrator.rollouts_per_example": 4, "report": False}
    settings |= {"orchestrator.sampling.max_tokens": 6, "orchestrator.grading.workers": 1}
    return settings | {"trainer.optim.lr": 1e-4, "alarms.no_signal": "off", "alarms.dead_pool": "off"}


def train(settings: dict, *funcs, out: str = "out", **more) -> Run:
    return hone.rl(dataset=ROWS, reward_funcs=list(funcs), output_dir=out, **settings | more)


def alarms(run: Run) -> list[dict]:
    return [event for event in run.events() if event["kind"] == "alarm" and event["name"] == "regraded"]


def contents(run: Run) -> dict[str, bytes]:
    files = [run.path / "metrics.jsonl", run.path / "hashes.jsonl", *run.path.glob("rollouts/*")]
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.parametrize("func", ["jumps", "jumps_in_group"])
def test_a_reward_that_jumps_from_0_to_1_is_an_alarm_and_marks_the_run(settings, func):
    """Its memory is of one process: the completions of the last step get what they are worth in another."""
    run = train(settings, f"graded_rewards:{func}")
    (alarm,) = alarms(run)
    assert alarm["action"] == "warn" and EVERY - 1 <= alarm["step"] < STEPS and alarm["value"] > 0
    text = alarm["evidence"]
    assert "had 1 (correct), and now 0 (" in text and any(f" of step {i} (example " in text for i in range(3, STEPS))
    info = run.info
    assert not info["exact"] and info["status"] == "done"
    (marked,) = info["inexact"]
    assert marked["cause"] == "completions that were graded again got other scores" and marked["step"] >= 3
    record = info["regraded"]
    assert 0 < record["differing"] < record["completions"] and record["left_out"] == ""
    card = facts_of(run.path)
    assert card.tables["What was checked"]["rewards graded again"] == [
        f"{record['differing']} of {record['completions']} differ"
    ]
    assert any(line.startswith("Alarms at the end: ") and "regraded" in line for line in card.caveats)


def test_the_alarm_stops_a_run_if_it_is_to(settings):
    def by_chance(completion):
        return random.random()

    with pytest.raises(hone.errors.UserError, match=f"stopped at step {EVERY - 1} by the alarm regraded"):
        train(settings, by_chance, **{"alarms.regraded": "stop"})
    assert Run("out").info["stopped_by"] == "regraded"


@pytest.mark.parametrize(("funcs", "compared"), [(["honest"], 2), (["honest", "ranked"], 4)])
def test_an_honest_reward_gives_no_alarm_and_the_same_bytes_as_without_the_check(settings, funcs, compared):
    """Two completions of each step are graded again, or a whole group of four."""
    names = [f"graded_rewards:{func}" for func in funcs]
    run = train(settings, *names)
    assert not alarms(run) and run.info["exact"]
    record = run.info["regraded"]
    assert record["differing"] == 0 and record["completions"] % compared == 0
    assert 4 * compared <= record["completions"] <= 6 * compared, "after step 9 and at the end, two or three steps each"
    words = f"{record['completions']} completions: all equal"
    assert facts_of(run.path).tables["What was checked"]["rewards graded again"] == [words]
    bare = train(settings, *names, out="bare", **{"alarms.regraded": "off"})
    assert contents(run) == contents(bare) and "regraded" not in bare.info


def test_what_draws_from_its_rng_draws_the_same(settings):
    def by_rng(completion, rng):
        return float(rng.random())

    run = train(settings, by_rng, max_steps=2)
    assert not alarms(run) and run.info["regraded"] == {"completions": 4, "differing": 0, "left_out": ""}


def test_a_resume_grades_again_what_was_recorded_before_it(settings):
    Path("environments").mkdir()
    Path("environments/outside.py").write_text(
        "from pathlib import Path\nfrom hone.environments import Rubric, SingleTurnEnv\n"
        "def by_file(completion):\n    return float(Path('paid').read_text())\n"
        "def load_environment():\n"
        "    return SingleTurnEnv(rubric=Rubric([by_file]), dataset=[{'question': f'{i}?'} for i in range(8)])\n"
    )
    flags = ["--model.name", settings["model"], "--seq-len", "48", "--display", "none", "--no-audit", "--ckpt"]
    flags += ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4", "--no-report"]
    flags += ["--orchestrator.sampling.max-tokens", "6", "--orchestrator.env.id", "outside", "--output-dir", "out"]
    Path("paid").write_text("0")
    assert main(["rl", *flags, "--max-steps", "1"]) == 0
    assert Run("out").info["regraded"] == {"completions": 2, "differing": 0, "left_out": ""}
    Path("paid").write_text("1")
    assert main(["rl", *flags, "--max-steps", "4", "--resume"]) == 0
    (alarm,) = alarms(Run("out"))
    assert "of step 0 (example " in alarm["evidence"] and "had 0 (wrong), and now 1 (correct)" in alarm["evidence"]
    assert Run("out").info["regraded"] == {"completions": 6, "differing": 2, "left_out": ""}


def test_a_task_that_cannot_be_graded_again_says_why(settings):
    def of_state(state):
        return 1.0

    def right(completion):
        return 1.0

    dated = [{"question": "?", "info": {"at": (1, 2)}}]
    rows = given_rows([{"prompt": "a"}], "dataset")
    reasons = [
        not_checked(env)
        for env in (
            AgentTask(None, "true", AgentLimits(), rows, rows),
            MultiTurnEnv(rubric=Rubric([of_state]), dataset=[{"question": "?"}], max_turns=1),
            SingleTurnEnv(rubric=Rubric([right]), dataset=dated),
            MultiTurnEnv(rubric=Rubric([right]), dataset=[{"question": "?"}]),
        )
    ]
    assert reasons == [
        "a program rewards its own rollouts",
        "reward functions read the state of a conversation, which no record has",
        "info holds values that no record has, such as dates or tuples",
        None,
    ]
    library = SingleTurnEnv(rubric=Rubric([right]), dataset=[{"question": "?"}])
    library.has_own_process = True
    assert not_checked(library) == "a library's process grades them"


def test_tasks_of_a_mix_are_checked_each(settings):
    Path("environments").mkdir()
    for name, body in {"steady": "0.5", "flips": "float(Path('out/weights').exists())"}.items():
        Path(f"environments/{name}.py").write_text(
            "from pathlib import Path\nfrom hone.environments import Rubric, SingleTurnEnv\n"
            f"def paid(completion):\n    return {body}\n"
            "def load_environment():\n"
            "    return SingleTurnEnv(rubric=Rubric([paid]), dataset=[{'question': f'{i}?'} for i in range(8)])\n"
        )
    mix = [{"id": "steady"}, {"id": "flips"}]
    run = hone.rl(output_dir="out", **settings | {"max_steps": 2, "orchestrator.envs": mix})
    (alarm,) = alarms(run)
    assert " recorded completions of flips got another score" in alarm["evidence"]
    assert run.info["regraded"]["left_out"] == "" and run.info["regraded"]["differing"] > 0
