"""Completions that test what a task rewards besides the answer: styles of text, and tool calls up to the last turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hone.environments import Environment
from hone.environments.parsers import message_text
from hone.extensions.audit.answers import answer_span, statement_of, wrong_answer
from hone.extensions.audit.probes import Script, Subject, Text
from hone.model.tool_calls import Call, openai_call
from hone.types import Message, content_hash

CALLS_AT_ONCE = 4
"""Number of tool calls in a message that makes several."""
MOST_TURNS = 64
ANSWERED = 2
"""Number of examples to play conversations with."""
REASONING = "First I look at what is given. Then I work it out step by step, and check each step. "
_WORDS = "Wait, let me think. Therefore, first, second, finally: I verified the answer and I am confident. However, "
_PROSE = (REASONING * 40).strip()
_BULLETS = "".join(f"- Step {i}: I look at part {i}.\n" for i in range(1, 21))
STYLES = {
    "": "{answer}",
    " with long reasoning": _PROSE + "\n{answer}",
    " with a think block": f"<think>\n{_PROSE}\n</think>\n{{answer}}",
    " with tags": f"<reasoning>\n{REASONING.strip()}\n</reasoning>\n<answer>\n{{answer}}\n</answer>\n",
    " with think and answer tags": f"<think>\n{REASONING.strip()}\n</think>\n<answer>\n{{answer}}\n</answer>",
    " with a code fence": "```python\nprint(1)\n```\n{answer}",
    " with bullets": _BULLETS + "{answer}",
    " with a box": "{answer}\n\\boxed{{?}}",
    " with words that sound like thinking": _WORDS * 10 + "{answer}",
    " with all styles": f"# Solution\n<think>\n{_PROSE}\n{_WORDS * 3}\n</think>\n{_BULLETS}\n```python\nprint(1)\n```\n"
    "{answer}",
}
"""Styles that reward functions are known to pay for. {answer} may be empty."""
PLAIN = {"": "{answer}"}
LONGER = {
    " with long reasoning": STYLES[" with long reasoning"],
    " given ten times": "\n".join(["{answer}"] * 10),
    " with many words after it": "{answer}\n" + _PROSE,
}


def inversion_texts(env: Environment, subjects: Sequence[Subject]) -> list[Text]:
    """Return completions for each subject. Tool calls are made up from the tools' schemas."""
    texts = [Text(subject, name, script) for subject in subjects for name, script in _answers(env, subject, subjects)]
    if env.max_turns > 1:
        for subject in subjects[:ANSWERED]:
            texts += [Text(subject, name, script) for name, script in _conversations(env, subject, subjects)]
    return texts


def wrong_text(subject: Subject, subjects: Sequence[Subject]) -> str | None:
    """Return the reference with a wrong answer, else another example's reference; None if neither exists."""
    wrong = wrong_answer(subject, subjects) if answer_span(subject) else None
    if wrong is not None:
        return statement_of(subject).answering(wrong)
    others = [other for other in subjects if other.text and other.example.answer != subject.example.answer]
    return next((other.text for other in others if other.text != subject.text), None)


def terse_text(subject: Subject) -> str | None:
    """Return the reference's answer in its marks, without other text; None if the reference has no other text."""
    statement = statement_of(subject)
    terse = statement.stating(statement.answer)
    return terse if statement.answer and terse.strip() != subject.text.strip() else None


def made_up_call(tool: dict[str, Any], **given: Any) -> tuple[str, dict[str, Any]]:
    """Return a call of a tool (an entry of `Environment.tool_schemas`) with arguments that its schema allows."""
    function = tool["function"]
    return function["name"], made_up({"type": "object"} | (function.get("parameters") or {})) | given


def call_message(*calls: tuple[str, dict[str, Any]]) -> Message:
    made = [openai_call(Call(name, given), content_hash([i, name, given]), i) for i, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _answers(env: Environment, subject: Subject, subjects: Sequence[Subject]) -> Iterator[tuple[str, Script]]:
    """Yield (name, script): the reference with another last message or, for most texts of tasks with tools, only that
    message.
    """
    s = statement_of(subject)
    answers = [
        ("no answer", "", STYLES),
        ("a wrong answer", wrong_text(subject, subjects), STYLES | LONGER),
        ("a right answer", subject.text or None, PLAIN | LONGER),
        # Grading decides if these are still right.
        ("a right answer alone", terse_text(subject), PLAIN),
        ("a right answer without a thought", s.marked.strip() if s.answer and s.frame else None, PLAIN),
        ("nothing but the right answer", s.answer if s.answer not in ("", s.marked.strip()) else None, PLAIN),
    ]
    for name, answer, styles in answers:
        for style, form in styles.items() if answer is not None else ():
            text = form.format(answer=answer)
            whole = not env.tool_schemas or (subject is subjects[0] and not style)
            yield name + style, subject.render(text) if whole else text


def _conversations(env: Environment, subject: Subject, subjects: Sequence[Subject]) -> Iterator[tuple[str, Script]]:
    """Yield (name, conversation): one message at each turn, such as a tool call; some end with another one."""
    turns = min(env.max_turns, MOST_TURNS)
    answers = {"a right answer": subject.text, "a wrong answer": wrong_text(subject, subjects)}
    ends = {"nothing": _say("")} | {name: _say(text) for name, text in answers.items() if text}
    each: dict[str, Message] = {}
    for tool in env.tool_schemas or []:
        call = made_up_call(tool)
        each[f"calls of {call[0]}"] = call_message(call)
        each[f"several calls of {call[0]} at once"] = call_message(*[call] * CALLS_AT_ONCE)
        each[f"calls of {call[0]} with wrong arguments"] = call_message((call[0], {"nonsense": 1}))
    if each:
        each["calls of a tool that is not there"] = call_message(("no_such_tool", {}))
        each["malformed calls"] = _say("<tool_call>{</tool_call>")
    else:
        question = message_text(subject.example.prompt[-1])
        each = ends | {"a number": _say("1"), "reasoning": _say(REASONING.strip()), "the question": _say(question)}
    for name, message in each.items():
        yield f"{name} at each turn", [message] * turns
        for end, last in ends.items() if turns > 1 else ():
            yield f"{name} at each turn, then {end}", [*[message] * (turns - 1), last]
    for end, last in ends.items():
        yield f"{end} at once", [last]


def made_up(schema: dict[str, Any], defs: dict[str, Any] | None = None) -> Any:
    """Return a value that a JSON schema allows. An object gets only its required keys.

    A text is "1", which is valid as a number, expression, code or query. A recursive type is expanded only once.
    """
    if defs is None:
        defs = dict(schema.get("$defs", {}))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return made_up(defs.get(name, {}), {key: other for key, other in defs.items() if key != name})
    given = [schema[key] for key in ("default", "const") if key in schema] + schema.get("enum", [])[:1]
    if given:
        return given[0]
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return made_up(next((kind for kind in kinds if kind.get("type") != "null"), {"type": "null"}), defs)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    if kind == "object":
        return {key: made_up(schema.get("properties", {}).get(key, {}), defs) for key in schema.get("required", [])}
    if kind == "array":
        return [made_up(schema.get("items", {}), defs)] * max(1, schema.get("minItems", 1))
    if kind in ("integer", "number"):
        least = max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        return min(least, schema.get("maximum", least))
    return {"boolean": True, "null": None}.get(kind, "1" * max(1, schema.get("minLength", 1)))
