"""Messages become turns: tool calls with their arguments, whatever a model wrote in their place."""

from __future__ import annotations

import json

from hone.extensions.viewer.conversation import Call, messages_of, text_of, turns, turns_of_row


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


def test_texts_of_messages() -> None:
    assert text_of({"content": [{"type": "text", "text": "a"}, "b", {"image": 1}]}) == 'a\nb\n{"image": 1}'
    assert text_of({"content": None}) == "" == text_of({}) and text_of({"content": {"a": 1}}) == '{"a": 1}'


def test_a_column_that_is_no_list_of_messages_is_shown() -> None:
    assert messages_of(None) == [] and messages_of("") == []
    assert messages_of("{torn") == [{"role": "?", "content": "{torn"}] and messages_of("[1]")[0]["content"] == "[1]"
    assert [turn.text for turn in turns_of_row({"completion": None, "text": "a"})] == ["a"]
    two = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert [turn.role for turn in turns_of_row({"completion": json.dumps(two), "text": "a"})] == ["assistant", "user"]
