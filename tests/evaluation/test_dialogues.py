"""Conversations with a server: rounds of chat requests, over real HTTP, with a server that says what the test wants."""

from __future__ import annotations

import json
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


def test_a_conversation_that_outgrows_the_context_is_truncated_there():
    full = Status(400, "This model's maximum context length is 64 tokens.")
    with FakeOpenAI(lambda body: full if len(body["messages"]) > 1 else Say("7")) as server:
        result = evaluated(server, guessing.load_environment())
    (sample,) = result.samples
    assert sample.trajectory.truncated and not result.failed
    assert roles(sample.row()["completion"]) == ["a"] and sample.score.components["guesses"] == 1.0
