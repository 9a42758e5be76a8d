"""Contracts 1, 2 and 4 for a run that stops at a target and keeps its best checkpoint: it ends with the version that
came to the target, in the bytes of the longer run up to there, however often it is killed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import states
import trials
from recipes import STEPS, Recipe
from traps import At, Call, Trap

from hone.runs import Run
from hone.runs.summary import status_text, summarize

REWARD = "eval/reverse-text/reward/mean"
KILLS = {
    "evaluated": Call("hone.loops.parts.evaluate", 4, "after"),
    "noted": At("rename", "run.json", 3, "after"),
    "last metrics": At("write", "metrics.jsonl", 7, "half"),
    "last checkpoint": At("rename", "checkpoints/step_6"),
}


@pytest.fixture(scope="session")
def longer(rl, tmp_path_factory) -> Recipe:
    """Evaluates every two steps, and keeps the newest checkpoint and the best."""
    args = [*rl.args, "--orchestrator.eval.interval", "2", "--ckpt.keep-last", "1", "--ckpt.best", REWARD]
    return Recipe.cook(args, tmp_path_factory.mktemp("longer"))


def target(run: Path, metric: str) -> tuple[int, list[str]]:
    """The last step before the end whose value is beyond all before, and flags that make it the first at the target."""
    values = {line["step"]: line[metric] for line in states.lines(run / "metrics.jsonl") if metric in line}
    for step in sorted(values, reverse=True):
        before = [value for earlier, value in values.items() if earlier < step]
        if 0 < step < STEPS and not min(before) <= values[step] <= max(before):
            way = "above" if values[step] > max(before) else "below"
            return step, ["--stop.metric", metric, f"--stop.{way}", repr(values[step])]
    raise AssertionError(f"{metric} stays as it is: {values}")


@pytest.fixture(scope="session")
def stopped(longer, tmp_path_factory) -> Recipe:
    """Stops at the target of an evaluation, in the longer run."""
    _, flags = target(longer.unbroken, REWARD)
    return Recipe.cook([*longer.args, *flags], tmp_path_factory.mktemp("stopped"))


def test_it_ends_with_the_version_that_was_measured(longer, stopped):
    step, _ = target(longer.unbroken, REWARD)
    run, whole = Run(stopped.unbroken), longer.unbroken
    mine, theirs = states.lines(run.path / "metrics.jsonl"), states.lines(whole / "metrics.jsonl")
    evaluation = {name: v for name, v in theirs[step].items() if name.startswith(("step", "canary/", "eval/"))}
    assert mine == [*theirs[:step], evaluation]
    files = [f for kind in ("rollouts", "evals") for f in sorted(path.name for path in (run.path / kind).iterdir())]
    assert len(files) == step + step // 2 + 1
    same = [f"weights/step_{step}/model.safetensors", f"evals/step_{step:06d}.jsonl", "rollouts/step_000001.parquet"]
    if (whole / same[0]).exists():
        assert all(states.sha256(run.path / name) == states.sha256(whole / name) for name in same)
    assert run.info["status"] == "done" and run.info["target"]["step"] == step
    assert run.info["target"]["value"] == theirs[step][REWARD]


def test_a_metric_of_training_ends_it_after_its_step(longer, tmp_path):
    step, flags = target(longer.unbroken, "reward/mean")
    out, log = tmp_path / "run", tmp_path / "log"
    assert trials.run([*longer.argv(out), *flags], log) == 0, log.read_text()
    mine, theirs = (states.lines(run / "metrics.jsonl") for run in (out, longer.unbroken))
    assert mine[:-1] == theirs[: step + 1] and mine[-1]["step"] == step + 1 and REWARD in mine[-1]
    assert f"Done: {step + 1} steps of {STEPS}, for reward/mean was" in log.read_text()
    ended = status_text(summarize(out)).partition(": ")[2]
    assert ended.startswith(f"done, {step + 1} of {STEPS} steps, for reward/mean was ") and f"at step {step}" in ended


@pytest.mark.parametrize("event", KILLS)
def test_killed_and_resumed_equals_never_killed(event, stopped, tmp_path):
    out = stopped.killed_and_resumed(Trap(KILLS[event]), tmp_path)
    assert Run(out).info["target"] == Run(stopped.unbroken).info["target"]


@pytest.mark.needs("reproduce")
def test_it_is_verified_replayed_and_goes_on_with_another_target(longer, stopped, tmp_path):
    run, log = shutil.copytree(stopped.unbroken, tmp_path / "run"), tmp_path / "log"
    for words in (["verify", str(run), "--steps", "9"], ["replay", str(run), "--output-dir", str(tmp_path / "again")]):
        assert trials.run(words, log) == 0, log.read_text()
    before = states.everything(run)
    assert trials.run(stopped.argv(run, "--resume"), log) == 0, log.read_text()
    assert "Nothing left to do in" in log.read_text() and states.everything(run) == before
    assert trials.run(longer.argv(run, "--resume"), log) == 0, log.read_text()
    assert states.fingerprint(run) == states.fingerprint(longer.unbroken) and "target" not in Run(run).info


def test_the_best_checkpoint_stays(longer):
    values = {line["step"]: line[REWARD] for line in states.lines(longer.unbroken / "metrics.jsonl") if REWARD in line}
    best = max([step for step in values if 0 < step < STEPS], key=lambda step: values[step])
    run, log = Run(longer.unbroken), longer.unbroken.parent / "log"
    assert run.checkpoints.steps() == list(run.weights()) == [best, STEPS]
    assert trials.run(["runs", "show", str(run.path)], log) == 0
    shown = max((best, STEPS), key=lambda step: values[step])
    assert f"best         step_{shown}, whose {REWARD} was {values[shown]:.4g}" in log.read_text()
