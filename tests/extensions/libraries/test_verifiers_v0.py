"""The package examples/extension_verifiers_v0; `make verifiers-v0-env` installs verifiers v0.

What the policy says is scripted.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_policy import RENDERER, played

from hone import trust
from hone.cli import main
from hone.environments import load_environment
from hone.errors import UserError
from hone.extension import extensions
from hone.extensions.libraries import verifiers
from hone.extensions.libraries.verifiers import Episodes
from hone.runs import Run
from hone.types import Outcome, Rollout

PACKAGE = Path(__file__).parents[3] / "examples" / "extension_verifiers_v0"
FOLDER = Path(__file__).parent / "verifiers_v0"
LOOK = '<tool_call>{{"name": "price", "arguments": {{"item": "{}"}}}}</tool_call>'


pytestmark = [
    pytest.mark.adapters,
    pytest.mark.skipif(
        not (verifiers.CHECKOUT / ".venv-verifiers-v0").exists(),
        reason="verifiers v0 is not installed: make verifiers-v0-env",
    ),
]


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package is on the path, with what its wheel would say."""
    site = tmp_path_factory.mktemp("site")
    info = site / "hone_verifiers_v0-0.1.dist-info"
    info.mkdir()
    entry = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]["entry-points"]["hone.extensions"]
    (info / "entry_points.txt").write_text(
        "[hone.extensions]\n" + "".join(f"{name} = {module}\n" for name, module in entry.items())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        patch.syspath_prepend(PACKAGE)
        extensions.cache_clear()
        yield
    extensions.cache_clear()


@pytest.fixture(scope="module")
def shared() -> Iterator[dict[str, Any]]:
    """Environments without arguments, loaded once: each takes seconds, and two processes."""
    made: dict[str, Any] = {}
    yield made
    for env in made.values():
        env.close_workers()


@pytest.fixture
def load(shared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Loads an environment of this folder; what runs it is ended."""
    monkeypatch.chdir(FOLDER)
    made: list[Any] = []

    def given(name: str, **arguments: Any) -> Any:
        if not arguments and name in shared:
            return shared[name]
        env = load_environment(f"verifiers-v0:{name}", **arguments)
        if not arguments:
            shared[name] = env
        else:
            made.append(env)
        return env

    yield given
    for env in made:
        env.close_workers()


def score(env: Episodes, one: Rollout) -> Any:
    assert one.failure is None, one.failure
    return env.grade(env.example(index=0), one)


def spoken(one: Rollout) -> str:
    assert np.all(one.logprobs[one.sampled_mask] == -0.5)
    return RENDERER.tokenizer.decode(one.token_ids[one.sampled_mask].tolist())


def test_one_turn_is_rewarded_by_each_function_with_its_weight(load):
    env = load("echo-words")
    example = env.example(index=0)
    assert example.prompt == [{"role": "system", "content": "You copy."}, {"role": "user", "content": "Write stone"}]
    assert example.answer == "stone"
    replies = iter(["stone", "brick", ""])
    right, wrong, empty = played(env, lambda _messages: next(replies), 3)
    graded = score(env, right)
    assert graded.components == {"same": 1.0, "as_long": 1.0, "num_turns": 1.0}
    assert graded.weights == {"same": 1.0, "as_long": 0.5, "num_turns": 0.0}
    assert (graded.reward, graded.outcome) == (1.5, Outcome.CORRECT)
    assert (score(env, wrong).reward, score(env, wrong).outcome) == (0.5, Outcome.WRONG)
    assert (score(env, empty).reward, score(env, empty).outcome) == (0.0, Outcome.WRONG)
    assert [spoken(one) for one in (right, wrong, empty)] == ["stone", "brick", ""]


def test_what_the_environment_answers_depends_on_its_state_and_is_not_trained(load):
    env = load("guessing")
    guesses = iter(["20", "70", "40"])
    (one,) = played(env, lambda _messages: next(guesses))
    said = [message["content"] for message in one.messages]
    assert said[2] == "Too low. Between 20 and 100?" and said[4] == "Too high. Between 20 and 70?"
    assert len(one.segments) == 1 and spoken(one) == "207040"
    graded = score(env, one)
    assert graded.components == {"found": 1.0, "narrowed": 0.5, "num_turns": 3.0}
    assert (graded.reward, graded.outcome) == (pytest.approx(1.1), Outcome.CORRECT)


@pytest.mark.parametrize("limits", [{"max_calls": 2}, {"max_tokens": 8}])
def test_a_policy_that_uses_up_its_bounds_is_rewarded_for_what_it_did(load, limits: dict[str, Any]):
    env = load("guessing", max_turns=-1, agent_limits=limits)
    (one,) = played(env, lambda _messages: "90")
    graded = score(env, one)
    assert graded.components["found"] == 0.0 and graded.components["narrowed"] == pytest.approx(0.1)
    assert graded.components["num_turns"] >= 2 and next(iter(limits)) in graded.detail


def test_tools_are_called_and_their_calls_are_metrics(load):
    env = load("shop")

    def says(messages: list[dict[str, Any]]) -> str:
        prices = [message["content"] for message in messages if message["role"] == "tool"]
        return LOOK.format(["apple", "bread"][len(prices)]) if len(prices) < 2 else str(sum(map(int, prices)))

    (one,) = played(env, says)
    assert [message["role"] for message in one.messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert spoken(one) == LOOK.format("apple") + LOOK.format("bread") + "8"
    graded = score(env, one)
    metrics = {"num_turns": 3.0, "total_tool_calls": 2.0, "price_calls": 2.0}
    assert graded.components == {"right": 1.0, "paid": 0.0, **metrics}
    assert graded.weights == {"right": 1.0, "paid": 0.1, **dict.fromkeys(metrics, 0.0)}
    assert (graded.reward, graded.outcome) == (1.0, Outcome.CORRECT)


def test_a_tool_of_a_stateful_environment_gets_what_the_model_does_not_see(load):
    env = load("shop", stateful=True)
    calls = iter(['<tool_call>{"name": "pay", "arguments": {"amount": 8}}</tool_call>', LOOK.format("gold"), "no"])
    (one,) = played(env, lambda _messages: next(calls))
    assert [message["content"] for message in one.messages if message["role"] == "tool"] == ["1 paid", "'gold'"]
    graded = score(env, one)
    assert graded.components["paid"] == 8.0 and graded.components["pay_calls"] == 1.0
    assert (graded.reward, graded.outcome) == (pytest.approx(0.8), Outcome.WRONG)


def test_each_row_of_a_group_of_environments_goes_to_its_own(load):
    env = load("both")
    (echo,), (shop,) = (played(env, lambda _messages: "stone", index=index) for index in (0, 10))
    assert score(env, echo).components == {"same": 1.0, "as_long": 1.0, "num_turns": 1.0}
    assert score(env, shop).components["right"] == 0.0 and score(env, echo).reward == 1.5


def test_a_rubric_that_computes_the_reward_itself_is_believed(load):
    env = load("echo-words", broken="bonus")
    (one,) = played(env, lambda _messages: "brick")
    graded = score(env, one)
    assert graded.components == {"reward": 10.5, "same": 0.0, "as_long": 1.0, "num_turns": 1.0}
    assert graded.weights["reward"] == 1.0 and sum(graded.weights.values()) == 1.0 and graded.reward == 10.5


@pytest.mark.parametrize(
    ("name", "reply", "words"),
    [
        ("echo-words", "raise", "RuntimeError: no such word"),
        ("echo-words", "nan", "the program gave nan as"),
        ("guessing", "raise", "RuntimeError: a fault of the environment"),
        ("guessing", "stop", "ValueError: a fault of a tool"),
    ],
)
def test_what_raises_is_a_grader_error_and_never_a_reward_of_0(load, name: str, reply: str, words: str):
    env = load(name)
    (one,) = played(env, lambda _messages: reply)
    assert one.failure is not None and one.failure[0] is Outcome.GRADER_ERROR and words in one.failure[1]
    graded = env.grade(env.example(index=0), one)
    assert math.isnan(graded.reward) and not graded.components


def test_an_environment_that_ran_out_of_its_own_time_is_a_timeout(load):
    (one,) = played(load("echo-words", broken="slow"), lambda _messages: "stone")
    assert one.failure is not None and one.failure[0] is Outcome.GRADER_TIMEOUT
    assert "longer than the environment's 0.5 s" in one.failure[1]


def test_held_out_are_the_environments_own_rows_or_a_share_of_the_prompts(load):
    env = load("echo-words", polite=True)
    found = [[example.prompt[1]["content"] for example in env.split(name)] for name in ("train", "eval")]
    assert len(found[0]) == 8 and found[1] == ["Write raven, please", "Write tiger, please"]
    env = load("echo-words", own_eval=False, held_out=0.3)
    halves = [{example.answer for example in env.split(name)} for name in ("train", "eval")]
    assert len(halves[0]) == 7 and len(halves[1]) == 3 and not halves[0] & halves[1]
    assert env.digests(("train",))["verifiers"] == "0.3.1"
    env = load("echo-words", max_tasks=3)
    assert len(env.split("train")) == 3 and len(env.split("eval")) == 2


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("nowhere", {}, "cannot be loaded: .*No module named 'nowhere'"),
        ("echo-words", {"polit": True}, "unexpected keyword argument 'polit'"),
        ("echo-words", {"broken": "group"}, "compares the rollouts of a group"),
        ("echo-words", {"broken": "none"}, "its rubric has no reward function with a weight"),
        ("echo-words", {"held_out": 0.2}, "rows of its own for evaluation: leave out held_out"),
        ("guessing", {"max_tasks": 1}, "it must be at least 2"),
        ("echo-words", {"held_out": 1.5}, "a share between 0 and 1"),
        ("echo-words", {"agent_limits": {"calls": 1}}, "agent_limits is"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(load, name: str, arguments: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        load(name, **arguments).split("train")


def test_without_v0_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verifiers, "CHECKOUT", tmp_path)
    with pytest.raises(UserError, match=r"needs verifiers 0.3.1.*make verifiers-v0-env"):
        load_environment("verifiers-v0:guessing")


def test_the_environment_of_a_strangers_run_is_not_loaded(load, tmp_path: Path):
    with trust.opened_run(tmp_path, {}, trusted=False), pytest.raises(trust.NotTrusted, match="verifiers-v0:shop"):
        load("shop", stateful=True)


def test_rl_trains_and_replays_and_eval_evaluates(tmp_path: Path, tiny_model_dir: Path, monkeypatch, capfd):
    for name in ("echo_words", "guessing"):
        (tmp_path / f"{name}.py").write_text((FOLDER / f"{name}.py").read_text())
    monkeypatch.chdir(tmp_path)
    flags = ["--model.name", str(tiny_model_dir), "--max-steps", "2", "--orchestrator.batch-size", "4"]
    flags += ["--orchestrator.rollouts-per-example", "2", "--seq-len", "512"]
    flags += ["--orchestrator.sampling.max-tokens", "8", "--display", "plain", "--output-dir", "outputs"]
    assert main(["rl", "--orchestrator.env.id", "verifiers-v0:guessing", *flags]) == 0, capfd.readouterr().err
    rows = [row for step in (0, 1) for row in Run("outputs").rollouts(step).to_pylist()]
    assert len(rows) == 8 and all(set(dict(row["components"])) == {"found", "narrowed", "num_turns"} for row in rows)
    assert main(["replay", "outputs"]) == 0
    few = ["-n", "1", "-r", "2", "--max-tokens", "4", "-s"]
    assert main(["eval", "verifiers-v0:echo-words", "-m", str(tiny_model_dir), *few]) == 0, capfd.readouterr().err
    (saved,) = Path().rglob("results.jsonl")
    found = [json.loads(line) for line in saved.read_text().splitlines()]
    assert len(found) == 2 and all(set(row["components"]) == {"same", "as_long", "num_turns"} for row in found)
