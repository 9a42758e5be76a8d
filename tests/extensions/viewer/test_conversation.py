"""Messages become turns: tool calls with their arguments, whatever a model wrote in their place."""

from __future__ import annotations

from hone.extensions.viewer.conversation import Call, turns


def call(name, arguments) -> dict:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_that_cannot_be_read_are_shown_as_they_are() -> None:
    def of(one) -> Call:
        (turn,) = turns([{"role": "assistant", "content": None, "tool_calls": [one]}])
        return turn.calls[0]

    assert of(call("", '{"name": 1')) == Call("", [], '{"name": 1')
    assert of(call("", '{"a": 1}')) == Call("", [], '{"a": 1}')
    assert of(call("f", "[1]")) == Call("f", [], "[1]") and of(call("f", None)) == Call("f", [])
    assert of(call("f", {"x": {"y": [1]}})) == Call("f", [("x", '{"y": [1]}')])
    assert of("nonsense") == Call("", [], "nonsense") and of({"function": 3}).raw
    assert turns([{"role": "assistant", "tool_calls": 5}])[0].calls == ()
    assert of(call("f", '{"a": 46, "b": "60"}')) == Call("f", [("a", "46"), ("b", "60")])
    assert [turn.policy for turn in turns([{"role": "assistant", "content": ""}], sampled=False)] == [None]
