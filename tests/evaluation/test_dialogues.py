"""Conversations with a server: rounds of chat requests, over real HTTP, with a server that says what the test wants."""

from __future__ import annotations

import json
import threading
from typing import Any

import adding
import guessing
import pytest
from fake_openai import FakeOpenAI, Say, Status

from hone import client, rng
from hone.client import Endpoint
from hone.environments import Environment
from hone.evaluation.remote import evaluate_url
from hone.types import Outcome

ADD = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "delay", lambda *_: 0.0)


def evaluated(server: FakeOpenAI, env: Environment, examples: int = 1, rollouts: int = 1, **body: Any):
    endpoint = Endpoint(server.url, concurrency=4, max_retries=1)
    counts = {"num_examples": examples, "rollouts_per_example": rollouts}
    return evaluate_url(endpoint, "toy", env, body=body, seed=5, **counts)


def roles(messages: list[dict]) -> list[str]:
    return [message["role"][0] for message in messages]


def calling(body: dict[str, Any]) -> Any:
    """Calls the tool first, and answers after it has."""
    if body["messages"][-1]["role"] == "tool":
        return Say("It is 3.")
    return Say(None, "tool_calls", extra={"tool_calls": [ADD]})


def test_a_conversation_is_a_request_for_each_turn_with_a_seed_of_its_own():
    with FakeOpenAI(lambda body: Say(str(len(body["messages"])))) as server:
        result = evaluated(server, guessing.load_environment(), max_tokens=9)
    (sample,) = result.samples
    assert [roles(body["messages"]) for body in server.bodies] == [["u"], ["u", "a", "u"], ["u", "a", "u", "a", "u"]]
    assert [m["content"] for m in sample.trajectory.messages if m["role"] == "assistant"] == ["1", "3", "5"]
    names = [(), (1,), (2,)]
    assert [body["seed"] for body in server.bodies] == [rng.key(5, "eval", 0, 0, 0, *more) >> 33 for more in names]
    assert {body["max_tokens"] for body in server.bodies} == {9} and "tools" not in server.bodies[0]
    assert sample.trajectory.turns == 3 and sample.score.components == {"correctness": 0.9, "guesses": 3.0}
    row = sample.row()
    assert row["turns"] == 3 and roles(row["completion"]) == ["a", "u", "a", "u", "a"]
    assert sample.completion_tokens == 3 and sample.prompt_tokens == 11 and row["seconds"] > 0


def test_calls_that_the_server_reads_go_back_as_it_told_them():
    with FakeOpenAI(calling) as server:
        result = evaluated(server, adding.load_environment(max_turns=5))
    (sample,) = result.samples
    first, second = server.bodies
    assert first["tools"] == second["tools"] == [adding.SCHEMA]
    asked, tool = second["messages"][1:]
    assert asked == {"role": "assistant", "content": "", "tool_calls": [ADD]}
    assert tool == {"role": "tool", "name": "add", "tool_call_id": "call_1", "content": "3"}
    assert sample.score.outcome is Outcome.CORRECT and sample.trajectory.turns == 2
    assert sample.trajectory.messages[-1] == {"role": "assistant", "content": "It is 3."}


def test_calls_that_it_does_not_read_are_read_here_and_go_back_as_text():
    def script(body: dict[str, Any]) -> Any:
        return Say("3" if body["messages"][-1]["role"] == "tool" else adding.SAID)

    with FakeOpenAI(script) as server:
        (sample,) = evaluated(server, adding.load_environment()).samples
    assert sample.score.outcome is Outcome.CORRECT
    assert server.bodies[1]["messages"][1] == {"role": "assistant", "content": adding.SAID}
    (read,) = sample.trajectory.messages[1]["tool_calls"]
    assert json.loads(read["function"]["arguments"]) == adding.CALL["arguments"]


def test_a_server_that_offers_tools_but_reads_no_calls_is_asked_not_to():
    def script(body: dict[str, Any]) -> Any:
        if "tool_choice" not in body:
            return Status(400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
        return Say("3" if body["messages"][-1]["role"] == "tool" else adding.SAID)

    with FakeOpenAI(script) as server:
        result = evaluated(server, adding.load_environment(), examples=2)
    assert [s.score.outcome for s in result.samples] == [Outcome.CORRECT] * 2 and not result.failed
    assert {body.get("tool_choice") for body in server.bodies} == {None, "none"}
    assert all(body["tools"] == [adding.SCHEMA] for body in server.bodies)


def test_so_many_requests_are_under_way_as_asked_for_and_no_more():
    gate = threading.Barrier(4)

    def script(body: dict[str, Any]) -> Any:
        gate.wait(300)  # passes only if four are here together
        return Say("fine")

    with FakeOpenAI(script) as server:
        result = evaluated(server, guessing.load_environment(max_turns=1), examples=4, rollouts=3)
    assert server.most_at_once == 4
    assert [(s.index, s.rollout) for s in result.samples] == [(i, r) for i in range(4) for r in range(3)]


def test_limits_are_those_of_conversations_here():
    with FakeOpenAI(lambda body: Say("7", "length" if len(body["messages"]) == 3 else "stop")) as server:
        (sample,) = evaluated(server, guessing.load_environment()).samples
    assert len(server.bodies) == 2 and sample.trajectory.truncated and sample.trajectory.turns == 2
    assert sample.score.components["guesses"] == 2.0, "the environment hears a cut message too"
    with FakeOpenAI(lambda body: Say("7")) as server:
        (sample,) = evaluated(server, guessing.load_environment(max_turns=2)).samples
    assert len(server.bodies) == 2 and not sample.trajectory.truncated
    assert sample.score.components["guesses"] == 2.0


def test_a_conversation_that_outgrows_the_context_is_truncated_there():
    full = Status(400, "This model's maximum context length is 64 tokens.")
    with FakeOpenAI(lambda body: full if len(body["messages"]) > 1 else Say("7")) as server:
        result = evaluated(server, guessing.load_environment())
    (sample,) = result.samples
    assert sample.trajectory.truncated and not result.failed
    assert roles(sample.row()["completion"]) == ["a"] and sample.score.components["guesses"] == 1.0


def test_an_environment_that_fails_costs_its_own_sample():
    with FakeOpenAI(lambda body: Say("3" if body["messages"][0]["content"] == "Guess r" else "4")) as server:
        result = evaluated(server, guessing.load_environment(broken="3"), examples=3)
    assert [s.score.outcome for s in result.samples] == [Outcome.WRONG, Outcome.GRADER_ERROR, Outcome.WRONG]
    assert "ValueError: no guess of 3 is wanted" in result.samples[1].score.detail


def test_conversations_side_by_side_keep_their_answers():
    with FakeOpenAI(lambda body: Say(str(rng.key(body["seed"]) % 10))) as server:
        result = evaluated(server, guessing.load_environment(slow=0.002), examples=4, rollouts=4)
    for sample in result.samples:
        seeds = [rng.key(5, "eval", 0, sample.index, sample.rollout, *more) >> 33 for more in ((), (1,), (2,))]
        text = [m["content"] for m in sample.trajectory.messages if m["role"] == "assistant"]
        assert text == [str(rng.key(seed) % 10) for seed in seeds][: len(text)]
