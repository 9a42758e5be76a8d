"""Tools: schemas from functions, arguments checked, answers in order, errors told to the model, and to nobody else."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal, Optional

import pytest

from hone.environments import Rubric, ToolEnv
from hone.environments.tools import ToolFunction
from hone.errors import UserError
from hone.grading import GraderFailure
from hone.types import Outcome


def add(a: int, b: int = 1) -> int:
    """Adds two numbers.

    Whole ones.

    Args:
        a: the first,
            which is needed
        b (int): the second

    Returns:
        Their sum.
    """
    return a + b


def find(
    where: Literal["here", "there"],
    names: list[str],
    limit: Optional[int] = None,  # noqa: UP045
    exact: bool = False,
    weight: float = 0.5,
    extra: dict[str, Any] | None = None,
):
    return {"where": where, "names": names, "limit": limit, "é": [exact, weight, extra]}


async def wait(seconds: float, state: dict) -> str:
    """Waits."""
    state["waits"] = state.get("waits", 0) + 1
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


def crash(how: str) -> None:
    """Fails."""
    if how == "exit":
        raise SystemExit(3)
    if how == "broken":
        raise OSError("no disk")
    if how == "object":
        raise KeyError(object())
    raise KeyError(how)


def reward(completion):
    return 1.0


def make(*tools, **kwargs) -> ToolEnv:
    return ToolEnv(tools=tools, rubric=Rubric([reward]), dataset=[{"prompt": "x"}], id="mine", **kwargs)


ENV = make(add, find, wait, crash, stop_errors=[OSError])


def call(name: str, arguments: Any, ident: str = "c1") -> dict:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": text}}


def says(*calls: dict) -> dict:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def respond(env: ToolEnv, message: dict, state: dict | None = None):
    """What the environment answers, and the state after it."""
    (answer,) = env.respond_many([([{"role": "user", "content": "x"}, message], state or {})])
    return answer


def texts(env: ToolEnv, message: dict) -> list[str]:
    return [m["content"] for m in respond(env, message)[0]]


def test_schemas() -> None:
    assert ENV.tool_schemas is not None
    assert ENV.tool_schemas[0] == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds two numbers.\n\nWhole ones.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first, which is needed"},
                    "b": {"type": "integer", "description": "the second", "default": 1},
                },
                "required": ["a"],
            },
        },
    }
    properties = ENV.tool_schemas[1]["function"]["parameters"]["properties"]
    assert properties == {
        "where": {"type": "string", "enum": ["here", "there"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "exact": {"type": "boolean", "default": False},
        "weight": {"type": "number", "default": 0.5},
        "extra": {"anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}], "default": None},
    }
    assert ENV.tool_schemas[1]["function"]["parameters"]["required"] == ["where", "names"]
    assert list(ENV.tool_schemas[2]["function"]["parameters"]["properties"]) == ["seconds"]  # the state is nobody's
    assert json.loads(json.dumps(ENV.tool_schemas)) == ENV.tool_schemas


def test_functions_that_are_no_tools_are_refused() -> None:
    def untyped(a):
        pass

    def many(*a: int):
        pass

    def odd(a: asyncio.Lock):
        pass

    for func, match in (
        (untyped, "tool untyped: the parameter a has no type hint; give it one, such as a: str"),
        (many, "passed by name"),
        (odd, "tool odd: a type hint has no JSON schema"),
    ):
        with pytest.raises(UserError, match=match):
            ToolFunction(func)
    for tools in ((), (add, add)):
        with pytest.raises(
            UserError, match=r"environment 'mine': tools are .* give at least one tool, and no name twice"
        ):
            make(*tools)


@pytest.mark.parametrize(
    ("one", "answer"),
    [
        (call("add", {"a": 2}), "3"),
        (call("add", {"a": "2", "b": 3.0}), "5"),
        (call("add", {"a": "two"}), "error: argument 'a' of add: input should be a valid integer, unable to parse"),
        (call("add", {"b": 2}), "error: add needs the argument 'a'"),
        (call("add", {"a": 1, "c": 2}), "error: add has no argument 'c'; it takes a, b"),
        (call("add", {"a": True, "b": None}), "error: argument 'b' of add: input should be a valid integer"),
        (call("add", "[1, 2]"), "error: the arguments of add are no JSON object: '[1, 2]'"),
        (call("add", '{"a": 1, "a": 2}'), "error: the arguments of add are no JSON object"),
        (call("add", "[" * 5000), "error: the arguments of add are no JSON object"),
        (call("", "print(1)"), "error: the call cannot be read: 'print(1)'"),
        (call("eval", {}), "error: there is no tool 'eval'; there is add, find, wait, crash"),
        ({"id": "c1"}, "error: the call cannot be read"),
        ("junk", "error: the call cannot be read"),
        (
            call("find", {"where": "here", "names": ["é"]}),
            '{"where": "here", "names": ["é"], "limit": null, "é": [false, 0.5, null]}',
        ),
        (
            call("find", {"where": "up", "names": []}),
            "error: argument 'where' of find: input should be 'here' or 'there'",
        ),
        (call("wait", {"seconds": 0}), "waited 0.0"),
        (call("wait", {"seconds": 0, "state": {}}), "error: wait has no argument 'state'; it takes seconds"),
        (call("crash", {"how": "x"}), "error: KeyError: 'x'"),
        (call("crash", {"how": "exit"}), "error: SystemExit: 3"),
        (call("crash", {"how": "object"}), "error: KeyError: <object object at 0x…>"),
    ],
)
def test_answers(one, answer) -> None:
    (text,) = texts(ENV, says(one))
    assert text == answer or (text.startswith(answer) and answer.startswith("error:"))


def test_long_answers_are_cut() -> None:
    def shout(n: int) -> str:
        return "a" * n

    env = make(shout, max_chars=10)
    assert texts(env, says(call("shout", {"n": 10}), call("shout", {"n": 13}))) == [
        "a" * 10,
        "a" * 10 + "… (3 more characters)",
    ]


def test_a_broken_tool_fails_the_sample_and_others_are_told() -> None:
    message = says(call("crash", {"how": "broken"}))
    failure = respond(ENV, message)
    assert isinstance(failure, GraderFailure) and failure.detail.endswith("OSError: no disk")
    assert ENV.failed_response([message], failure) is None
    two = says(call("add", {"a": 1}, "a"), call("wait", {"seconds": 9}, "b"))
    late = GraderFailure(Outcome.GRADER_TIMEOUT, "took longer than 10 s")
    assert ENV.failed_response([two], late) == [
        {"role": "tool", "name": n, "tool_call_id": i, "content": "error: it took too long and was stopped"}
        for n, i in (("add", "a"), ("wait", "b"))
    ]
    ended = GraderFailure(Outcome.GRADER_ERROR, "the process ended by signal 9", lost=True)
    assert ENV.failed_response([two], ended)[0]["content"] == "error: it ended without an answer"
    assert ENV.failed_response([{"role": "assistant", "content": "x"}], late) is None
    odd = GraderFailure(Outcome.GRADER_ERROR, "env_response left what is no JSON in its state")
    assert ENV.failed_response([two], odd) is None, "a mistake in the task is not told as one of the model's"
