"""Against reasoning-gym itself, which `make test-adapters` installs."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from hone.cli import main
from hone.environments import load_environment
from hone.errors import UserError
from hone.extensions.libraries import reasoning_gym
from hone.extensions.libraries.reasoning_gym import REFUSED, SCORED
from hone.extensions.libraries.reasoning_gym_worker import start
from hone.types import Outcome

factory = pytest.importorskip("reasoning_gym.factory", reason="needs reasoning-gym: make test-adapters")
DATASETS, create_dataset = factory.DATASETS, factory.create_dataset
pytestmark = pytest.mark.adapters


def test_rows_are_those_of_reasoning_gym_and_its_score_is_the_reward():
    env = load_environment("reasoning-gym:spell-backward", seed=7)
    theirs = create_dataset("spell_backward", seed=7, size=10)
    example = env.example(index=4)
    assert example.prompt[0]["content"] == theirs[4]["question"] + reasoning_gym.FORMAT_HINT
    assert example.answer == theirs[4]["answer"] and env.id == "reasoning-gym:spell_backward"
    nearly = "_" + example.answer[1:]
    partial = theirs.score_answer(nearly, theirs[4])
    assert 0 < partial < 1
    right, near, none = (env.grade(example, text) for text in (f"<answer>{example.answer}</answer>", nearly, ""))
    assert (right.reward, right.outcome) == (1.0, Outcome.CORRECT)
    assert (none.reward, none.outcome, near.outcome) == (0.0, Outcome.UNPARSABLE, Outcome.UNPARSABLE)
    near = env.grade(example, f"So:\n<answer>\n{nearly}\n</answer>\n")
    assert near.components == {"format": 1.0, "correctness": partial} and near.outcome is Outcome.WRONG
    assert near.reward == pytest.approx(0.1 + 0.9 * partial)
    assert env.reference(example) == f"<answer>{example.answer}</answer>"


def test_the_splits_share_no_question_whatever_the_seed():
    texts: dict[str, set[str]] = {"train": set(), "eval": set()}
    for seed in (0, 1000):
        env = load_environment("reasoning-gym:leg_counting", seed=seed, num_train_examples=60, num_eval_examples=20)
        for name, found in texts.items():
            examples = list(env.split(name))
            found |= {example.prompt[0]["content"] for example in examples}
            assert len(examples) == len({example.id for example in examples}) == (60 if name == "train" else 20)
    assert len(texts["train"]) > 100 and not texts["train"] & texts["eval"]


def test_arguments_reach_the_task_and_wrong_ones_are_named():
    env = load_environment("reasoning-gym:leg_counting", min_animals=2, max_animals=2, format_hint=False)
    assert env.example(index=0).prompt[0]["content"].count(",") == 2 and "<answer>" not in str(env.example(index=0))
    for arguments, message in (
        ({"min_anmals": 2}, r"does not take 'min_anmals' \(did you mean 'min_animals'\?\)"),
        ({"min_animals": 0}, "min_animals must be positive"),
        ({"seed": "one"}, "seed is 'one': input should be a valid integer"),
        ({"size": 3}, "give num_train_examples"),
        ({"num_eval_examples": 0}, "num_eval_examples is 0: input should be greater than or equal to 1"),
    ):
        with pytest.raises(UserError, match=message):
            load_environment("reasoning-gym:leg_counting", **arguments).split("train")
    with pytest.raises(UserError, match="index is -1"):
        env.example(index=-1)
    with pytest.raises(UserError, match="generates its rows"):
        load_environment("reasoning-gym:leg_counting").use_template({"index": "{row}"})


def test_a_score_that_takes_too_long_or_raises_is_no_reward(monkeypatch):
    monkeypatch.setattr(reasoning_gym, "SCORE_SECONDS", 1)
    env = load_environment("reasoning-gym:coin_flip")
    example = env.example(index=0)
    texts = [f"<answer>{text}</answer>" for text in ("1e99999999", "1e9999", example.answer)]
    outcomes = [score.outcome for score in env.grade_many([(example, text) for text in texts])]
    assert outcomes == [Outcome.GRADER_TIMEOUT, Outcome.GRADER_ERROR, Outcome.CORRECT]


def test_rows_whose_answer_its_own_score_does_not_take_are_passed_over():
    """Row 664 of seed 11 has the answer -1, of which reasoning-gym's score reads no sign: SFT would end there."""
    theirs = create_dataset("gsm_symbolic", seed=11, size=700)
    assert theirs[664]["answer"] == "-1" and theirs.score_answer("-1", theirs[664]) < 1
    env = load_environment("reasoning-gym:gsm_symbolic", seed=11)
    assert not reasoning_gym.is_held_out(theirs[664]["question"])
    near = [env.split("train")[i] for i in range(660, 668)]
    assert 664 not in [example.info["index"] for example in near] and all(env.reference(example) for example in near)


def test_every_task_that_is_installed_is_scored_or_refused():
    assert SCORED | REFUSED.keys() == set(DATASETS) and not SCORED & REFUSED.keys()


@pytest.mark.parametrize("tasks", [sorted(SCORED)[i::4] for i in range(4)])
def test_code_in_an_answer_is_not_run(tasks: list[str], tmp_path: Path):
    for task in tasks:
        answer = start(task, {"seed": 0})
        canary = tmp_path / task
        for code in (f"__import__('pathlib').Path({str(canary)!r}).touch()", f"open({str(canary)!r},'w')"):
            with contextlib.suppress(Exception):
                answer(["score", 0, code])
        assert not canary.exists(), task


def test_rl_runs(tmp_path: Path, monkeypatch, tiny_model_dir: Path, capfd):
    monkeypatch.chdir(tmp_path)
    rl = ["rl", "--model.name", str(tiny_model_dir), "--max-steps", "1", "--display", "plain", "--seq-len", "512"]
    rl += ["--output-dir", "outputs"]
    rl += ["--orchestrator.env.id", "reasoning-gym:leg_counting", "--orchestrator.env.args.min_animals", "2"]
    rl += ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2"]
    assert main([*rl, "--orchestrator.sampling.max-tokens", "8"]) == 0, capfd.readouterr().err
    metrics = json.loads(Path("outputs/metrics.jsonl").read_text().splitlines()[0])
    assert {"reward/format/mean", "reward/correctness/mean"} <= metrics.keys()
