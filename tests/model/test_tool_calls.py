"""Tool calls of each family: what is one, what is a malformed one, and that hostile text costs nothing."""

from __future__ import annotations

import json

import pytest
from chat_templates import CHATML, LLAMA3, QWEN3, QWEN3_CODER

from hone.model.strict_json import MAX_CHARS, read_object
from hone.model.tokenizer import CHAT_TEMPLATE
from hone.model.tool_calls import HERMES, LLAMA, MAX_CALLS, XML, format_of_template, tool_calls, without_tools

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "array"}, "c": {"type": "string"}},
        },
    },
}
BAD = None


def calls(form, text, tools=None):
    """(name, arguments) of each call; of a malformed one (None, raw text)."""
    found = [call["function"] for call in tool_calls(text, form, tools)]
    return [(f["name"], json.loads(f["arguments"])) if f["name"] else (None, f["arguments"]) for f in found]


def hermes(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


GOOD, ONE = '{"name": "add", "arguments": {"a": 1}}', ("add", {"a": 1})
NOW = hermes('{"name": "now"}')


@pytest.mark.parametrize(("text", "expected"), [
    (hermes(GOOD), [ONE]),
    ("I add.\n" + hermes(f"\n{GOOD}\n") + "\n" + NOW + " bye", [ONE, ("now", {})]),
    (hermes(r'{"name": "add", "arguments": "{\"a\": 1}"}'), [ONE]),
    (hermes('{"name": "add", "arguments": {"c": "</tool_call> <think> é 🎲"}}'),
     [("add", {"c": "</tool_call> <think> é 🎲"})]),
    (hermes('{"name": "add", "arguments": {"c": "<tool_call> </think>"}}') + "\n" + hermes(GOOD),
     [("add", {"c": "<tool_call> </think>"}), ONE]),
    ("say <tool_call>" + hermes(GOOD) + "</think>" + NOW, [("now", {})]),
    ("<think>" + hermes(GOOD) + "</think>so", []),
    ("<think>" + hermes(GOOD), []),
    (hermes(GOOD) + "</think>" + NOW, [("now", {})]),
    ("<think>a</think>" + hermes(GOOD) + "<think>b</think>" + NOW, [ONE, ("now", {})]),
    ("no call", []),
    (GOOD, []),
    ("<tool_call>" + GOOD, [(BAD, GOOD)]),
    ("<tool_call>" + GOOD + hermes(GOOD), [(BAD, GOOD), ONE]),
    (hermes("print(1)") + hermes(GOOD), [(BAD, "print(1)"), ONE]),
])  # fmt: skip
def test_hermes(text, expected):
    assert calls(HERMES, text) == expected


@pytest.mark.parametrize(
    "arguments", ["[1]", '{"a": NaN}', '{"a": 1e999}', r'{"c": "\ud800"}', '{"c": "1\n2"}', '{"a": 1, "a": 2}']
)
def test_what_is_no_strict_json_object_is_malformed(arguments):
    for body in ("", "[1]", '{"arguments": {}}', GOOD + "}", f'{{"name": "add", "arguments": {arguments}}}'):
        assert calls(HERMES, hermes(body)) == [(BAD, body)]


TWICE = "<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>"


@pytest.mark.parametrize(("text", "expected"), [
    (hermes("\n<function=add>\n<parameter=a>\n7\n</parameter>\n<parameter=b>\n[1, 2]\n</parameter>\n</function>\n"),
     [("add", {"a": 7, "b": [1, 2]})]),
    (hermes("<function=add><parameter=c>\n\n 7 <b>\n\n</parameter></function>"), [("add", {"c": "\n 7 <b>\n"})]),
    (hermes("<function=add><parameter=a>seven</parameter></function>"), [("add", {"a": "seven"})]),
    (hermes("<function=other><parameter=a>7</parameter></function>"), [("other", {"a": "7"})]),
    (hermes("<function=add></function>"), [("add", {})]),
    (hermes(TWICE), [(BAD, TWICE)]),
    (hermes("<function=add><parameter=a>1</function>"), [(BAD, "<function=add><parameter=a>1</function>")]),
    ("<tool_call><function=add>", [(BAD, "<function=add>")]),
    (hermes(GOOD), [(BAD, GOOD)]),
])  # fmt: skip
def test_xml(text, expected):
    assert calls(XML, text, [ADD]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
        (
            ' {"type": "function", "name": "add", "parameters": {"a": 1}}; {"name": "now", "parameters": {}}',
            [("add", {"a": 1}), ("now", {})],
        ),
        ('{"name": "add", "parameters": {"a": 1}', [(BAD, '{"name": "add", "parameters": {"a": 1}')]),
        ("<|python_tag|>print(1)", [(BAD, "print(1)")]),
        ("{1, 2}", []),
        ('{"name": "Ada", "born": 1815}', [(BAD, '{"name": "Ada", "born": 1815}')]),
        ('{"answer": 42}', []),
        ('So {"name": "add", "parameters": {}}', []),
        ('<think>hm</think>\n{"name": "now", "parameters": {}}', [("now", {})]),
        ('{"name": "add", "parameters": {"c": "</think>"}}', [("add", {"c": "</think>"})]),
    ],
)
def test_llama(text, expected):
    assert calls(LLAMA, text) == expected


def test_the_format_is_read_from_the_template():
    templates = (CHAT_TEMPLATE, QWEN3, QWEN3_CODER, LLAMA3, CHATML, QWEN3 + "<arg_key>")
    assert [format_of_template(t) for t in templates] == [HERMES, HERMES, XML, LLAMA, None, None]


HOSTILE = {
    "nested": "[" * 5_000,
    "objects": '{"a":' * 5_000,
    "a megabyte": '{"name": "add", "arguments": {"c": "' + "x" * MAX_CHARS + '"}}',
    "deep": '{"name": "add", "arguments": {"c": ' + "[" * 150 + "]" * 150 + "}}",
    "a long number": '{"name": "add", "arguments": {"a": ' + "9" * 1_000_000 + "}}",
    "white space": " " * 1_000_000,
    "quotes": '"' * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_calls_are_malformed(name):
    body = HOSTILE[name]
    assert calls(HERMES, hermes(body)) == [(BAD, body.strip())]
    assert calls(XML, hermes(body)) == [(BAD, body.strip())]
    assert calls(LLAMA, "<|python_tag|>" + body) == ([(BAD, body.strip())] if body.strip() else [])
    assert read_object(body) is None


@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        hermes("["),
        "<think></think>",
        '<tool_call>"',
        "<think>",
        "</think>",
        '{"name"',
        "<tool_call><function=f><parameter=x>",
    ],
)
def test_many_tags_take_linear_time(unit):
    """In quadratic time this would not end."""
    text = unit * (300_000 // len(unit))
    for form in (HERMES, XML, LLAMA):
        assert len(tool_calls(text, form)) <= MAX_CALLS + 1


def test_a_template_without_tools_gets_them_as_hermes_does():
    call = tool_calls(hermes(GOOD), HERMES)[0]
    conversation = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    system, *rest = without_tools(conversation, [ADD])
    assert json.dumps(ADD) in system["content"] and system["role"] == "system"
    assert calls(HERMES, system["content"])[0][0] is None  # a placeholder in place of a name
    assert rest == [
        conversation[0],
        {"role": "assistant", "content": f"<tool_call>\n{GOOD}\n</tool_call>"},
        {"role": "user", "content": "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"},
    ]
    with_system = without_tools([{"role": "system", "content": "Hi."}, *conversation], [ADD])
    assert with_system[0]["content"] == "Hi.\n\n" + system["content"] and with_system[1:] == rest
    assert without_tools(conversation[:1], None) == conversation[:1]
