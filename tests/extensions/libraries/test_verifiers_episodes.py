"""Tasksets that verifiers runs itself: tools, a user, a judge, several agents. What the policy says is scripted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_openai import FakeOpenAI, Say, Status
from processes import until, wait_until_gone
from real_server import serving, talking_model
from scripted_policy import RENDERER, played

from hone.cli import main
from hone.environments import load_environment
from hone.errors import UserError
from hone.extensions.libraries.verifiers import Episodes, Verifiers
from hone.runs import Run
from hone.types import Outcome, Rollout

FOLDER = Path(__file__).parent / "verifiers_tasksets"
CALL = '<tool_call>{"name": "counter_bump", "arguments": {}}</tool_call>'
pytestmark = pytest.mark.adapters


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Episodes]]:
    monkeypatch.chdir(FOLDER)
    made: list[Any] = []

    def given(name: str, **arguments: Any) -> Any:
        made.append(load_environment(f"verifiers:{name}", **arguments))
        return made[-1]

    yield given
    for env in made:
        if isinstance(env, Episodes):
            env.close_workers()


def score(env: Episodes, one: Rollout) -> Any:
    return env.grade(env.example(index=0), one)


def test_a_tool_with_state_is_called_and_what_the_policy_said_is_trained(load):
    env = load("counting")
    assert isinstance(env, Episodes)

    def says(messages: list[dict[str, Any]]) -> str:
        return CALL if sum(message["role"] == "tool" for message in messages) < 2 else "done"

    (one,) = played(env, says)
    assert one.failure is None, one.failure
    roles = [message["role"] for message in one.messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert "calls=2" in str(one.messages[4]["content"]) and len(one.segments) == 1
    assert RENDERER.tokenizer.decode(one.token_ids[one.sampled_mask].tolist()) == f"{CALL}{CALL}done"
    assert np.all(one.logprobs[one.sampled_mask] == -0.5)
    graded = score(env, one)
    assert graded.components["counted"] == pytest.approx(2 / 3) and graded.components["turns"] == 3
    assert graded.weights == {"counted": 1.0, "turns": 0.0} and graded.reward == pytest.approx(2 / 3)
    assert graded.outcome is Outcome.WRONG


def test_siblings_share_a_reward_of_their_group(load):
    env = load("chorus", env={"agent": {"harness": {"id": "direct"}}})
    replies = iter(["abc", "bcd", "bce"])
    (one,) = played(env, lambda _messages: next(replies))
    assert one.failure is None and len(one.segments) == 3
    assert score(env, one).components == {"together": pytest.approx(2 / 5)}


def test_a_user_opens_and_answers(load):
    env = load("talk")
    first, second = played(env, lambda messages: "aye" if "And then?" in messages[-1]["content"] else "mm", 2)
    for one in (first, second):
        assert [message["role"] for message in one.messages][-4:] == ["user", "assistant", "user", "assistant"]
        graded = score(env, one)
        assert graded.components == {"vowels": 0.5} and graded.reward == 1.0 and graded.outcome is Outcome.WRONG


def test_of_several_agents_those_that_are_not_trained_leave_no_tokens(load):
    env = load("duet")
    (one,) = played(env, lambda _messages: "ab")
    assert len(one.segments) == 1, "b is not trained"
    graded = score(env, one)
    assert graded.components == {"short": 1.0, "same": 1.0} and graded.outcome is Outcome.CORRECT


def test_a_judge_at_a_url_rewards_and_one_that_is_down_is_a_grader_error(load):
    answers: list[Say | Status] = [Say("0.25")]
    with FakeOpenAI(lambda _body: answers[-1], models=("judge",)) as judge:
        env = load("judged", task={"judge": {"base_url": judge.url, "api_key_var": "NO_KEY", "model": "judge"}})
        (one,) = played(env, lambda _messages: "x")
        assert score(env, one).components == {"rated": 0.25}
        answers.append(Status(503))
        (one,) = played(env, lambda _messages: "x")
        assert one.failure is not None and one.failure[0] is Outcome.GRADER_ERROR and "503" in one.failure[1]


def test_an_episode_that_takes_too_long_is_a_timeout_and_its_process_is_used_again(load):
    env = load("talk", agent_limits={"timeout": 4.0})

    def slow(messages: list[dict[str, Any]]) -> str:
        if env.agent_limits.timeout == 4.0:
            until(lambda: not env._driver._process._open, "the episode was given up")  # type: ignore[union-attr]
        return "a"

    env.check_rollouts()
    (late,) = played(env, slow)
    assert late.failure is not None and late.failure[0] is Outcome.GRADER_TIMEOUT
    pid = env._driver._process._process.pid  # type: ignore[union-attr]
    env.agent_limits = type(env.agent_limits)(timeout=600.0)
    (fine,) = played(env, slow)
    assert fine.failure is None and env._driver._process._process.pid == pid  # type: ignore[union-attr]


def test_a_process_that_a_reward_blocks_is_replaced(load, capsys):
    env = load("talk")
    assert not played(env, lambda _messages: "aye")[0].failure, "what is loaded at first takes no part of the limit"
    env.agent_limits = type(env.agent_limits)(timeout=25.0)
    blocked = env._driver._process._process.pid  # type: ignore[union-attr]
    (late,) = played(env, lambda _messages: "sleep")
    assert late.failure is not None and late.failure[0] is Outcome.GRADER_TIMEOUT
    env.agent_limits = type(env.agent_limits)(timeout=600.0)
    for one in played(env, lambda _messages: "aye", 2):
        assert score(env, one).components == {"vowels": 1.0}
    assert env._driver._process._process.pid != blocked  # type: ignore[union-attr]
    assert "is blocked and replaced: a reward, a tool or a hook that waits must `await`" in capsys.readouterr().err
    wait_until_gone({blocked})


def test_a_process_that_is_killed_costs_its_samples_and_is_replaced(load):
    env = load("talk")

    def says(messages: list[dict[str, Any]]) -> str:
        if not killed:
            killed.append(env._driver._process._process.pid)  # type: ignore[union-attr]
            env._driver._process._process.kill()  # type: ignore[union-attr]
        return "a"

    killed: list[int] = []
    (lost,) = played(env, says)
    assert lost.failure is not None and "process has ended" in lost.failure[1]
    (fine,) = played(env, says)
    assert fine.failure is None
    pid = env._driver._process._process.pid  # type: ignore[union-attr]
    env.close_workers()
    wait_until_gone({pid})


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("counting", {"env": {"agent": {"harness": {"id": "bash"}}}}, "would run what a model writes on this machine"),
        ("counting", {"env": {"agent": {"runtime": {"type": "podman"}}}}, "podman, which is not installed here"),
        ("counting", {"env": {"agnt": {}}}, "does not take 'agnt'"),
        ("capitals", {"agent_limits": {"timeout": 1.0}}, "agent_limits need rollouts by verifiers"),
    ],
)
def test_bad_input_is_one_sentence(load, name: str, arguments: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        load(name, **arguments)


def test_what_text_alone_scores_is_still_scored_as_text(load):
    assert isinstance(load("capitals"), Verifiers)


def test_an_empty_reply_is_gone_on_from(load):
    (one,) = played(load("talk", env={"agent": {"harness": {"id": "direct"}}}), lambda _messages: "")
    assert one.failure is None, "verifiers sends it back without content"


def test_rl_trains_on_episodes_and_replays_them(tmp_path: Path, tiny_model_dir: Path, monkeypatch, capfd):
    for name in ("counting", "duet"):
        (tmp_path / f"{name}.py").write_text((FOLDER / f"{name}.py").read_text())
    monkeypatch.chdir(tmp_path)
    flags = ["--model.name", str(tiny_model_dir), "--max-steps", "2", "--orchestrator.batch-size", "4"]
    flags += ["--orchestrator.rollouts-per-example", "2", "--seq-len", "1024"]
    flags += ["--orchestrator.sampling.max-tokens", "8", "--output-dir", "outputs"]
    flags += ["--display", "plain", "--orchestrator.grading.max-failed", "1.0"]
    assert main(["rl", "--orchestrator.env.id", "verifiers:duet", *flags]) == 0, capfd.readouterr().err
    run = Run("outputs")
    rows = [row for step in (0, 1) for row in run.rollouts(step).to_pylist()]
    assert len(rows) == 8 and all(set(dict(row["components"])) == {"short", "same"} for row in rows), rows
    assert main(["replay", "outputs"]) == 0
    few = ["-n", "1", "-r", "1", "--max-tokens", "4"]
    assert main(["eval", "verifiers:counting", "-m", str(tiny_model_dir), *few]) == 0, capfd.readouterr().err


def test_eval_runs_episodes_at_hones_own_server(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.py").write_text((FOLDER / "talk.py").read_text())
    monkeypatch.setenv("RIGHT", "secret")
    monkeypatch.setenv("WRONG", "guess")
    with serving(talking_model(), api_key="secret") as server:
        command = ["eval", "verifiers:talk", "-b", f"{server.url}/v1", "-n", "1", "--max-tokens", "8"]
        assert main([*command, "-m", "hone/tiny", "-k", "RIGHT", "-r", "2", "-s"]) == 0, capfd.readouterr().err
        (saved,) = Path().rglob("results.jsonl")
        rows = [json.loads(line) for line in saved.read_text().splitlines()]
        said = [[message["role"] for message in [*row["prompt"], *row["completion"]]] for row in rows]
        assert all(roles[-4:] == ["user", "assistant", "user", "assistant"] for roles in said), said
        assert len(rows) == 2 and all(set(row["components"]) == {"vowels"} for row in rows)
        capfd.readouterr()
        for words, why in (
            (["-m", "hone/tiny", "-k", "WRONG"], "API key"),
            (["-m", "nobody", "-k", "RIGHT"], "has no model 'nobody'"),
        ):
            assert main([*command, *words]) == 2
            err = capfd.readouterr().err
            assert why in err and err.startswith("error: ") and err.count("\n") == 1, err
