"""Completions that try what a task pays for beside the answer: in conversations, calls of tools up to the last turn; in
texts, each style that a component may pay for, with a wrong answer and with none; and right answers without any of it.

Which of them are right and which are wrong, the grading says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hone.audit.kinds import wrong_answer
from hone.audit.playing import Script
from hone.audit.probes import Subject, Text
from hone.audit.statement import answer_span, statement_of
from hone.environments import Environment, MultiTurnEnv
from hone.environments.parsers import message_text
from hone.model.tool_calls import Call, openai_call
from hone.types import Message, content_hash

CALLS_AT_ONCE = 4
"""Calls in one message, where several are tried."""
MOST_TURNS = 64
"""Turns of a conversation that is played to its end; of a task that allows more, these are enough to see what pays."""
ANSWERED = 2
"""Examples whose conversations end in answers."""
REASONING = "First I look at what is given. Then I work it out step by step, and check each step. "
_WORDS = "Wait, let me think. Therefore, first, second, finally: I verified the answer and I am confident. However, "


def inversion_texts(env: Environment, subjects: Sequence[Subject]) -> list[Text]:
    """The completions for each subject. Calls of tools are made up from their schemas."""
    texts = [Text(subject, name, script) for subject in subjects for name, script in _answers(env, subject, subjects)]
    if not isinstance(env, MultiTurnEnv):
        return texts
    if env.tool_schemas:
        texts += [Text(subjects[0], name, script) for name, script in _calling(env)]
    for subject in subjects[:ANSWERED]:
        played = _calling_to_answer if env.tool_schemas else _talking
        texts += [Text(subject, name, script) for name, script in played(env, subject, subjects)]
    return texts


def wrong_text(subject: Subject, subjects: Sequence[Subject]) -> str | None:
    """The reference with a wrong answer in place of its own or, where that is not known, another example's reference;
    None if there is nothing to go by.
    """
    wrong = wrong_answer(subject, subjects) if answer_span(subject) else None
    if wrong is not None:
        return statement_of(subject).answering(wrong)
    others = [other for other in subjects if other.text and other.example.answer != subject.example.answer]
    return next((other.text for other in others if other.text != subject.text), None)


def terse_text(subject: Subject) -> str | None:
    """The answer of the reference in its form, and nothing else; None if the reference says nothing else anyway."""
    if answer_span(subject) is None:
        return None
    statement = statement_of(subject)
    terse = statement.stating(statement.answer)
    return terse if terse.strip() != subject.text.strip() else None


def made_up(schema: dict[str, Any], whole: bool = False) -> dict[str, Any]:
    """Arguments that a JSON schema of an object allows: the required ones, or with `whole` all of them."""
    value = _value(schema, schema.get("$defs") or {}, whole, 0)
    return value if isinstance(value, dict) else {}


def call_message(*calls: tuple[str, dict[str, Any]], text: str = "") -> Message:
    """A message of the assistant that calls these tools with these arguments."""
    made = [openai_call(Call(name, given), content_hash([i, name, given]), i) for i, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": text, "tool_calls": made}


def _say(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _answers(env: Environment, subject: Subject, subjects: Sequence[Subject]) -> Iterator[tuple[str, Script]]:
    """Texts, of a task of several turns as the last message of the reference; of one with tools, that would call them
    each time, only the plainest.
    """
    wrong = wrong_text(subject, subjects)
    texts = [] if wrong is None else list(_styled(wrong, "a wrong answer"))
    texts += _styled("", "no answer")
    if subject.text:
        texts.append(("a right answer", subject.text))
        if (terse := terse_text(subject)) is not None:
            texts.append(("a right answer alone", terse))
        texts += _bare(subject)
        longer = ("long reasoning", "many words after it", "given ten times")
        texts += [pair for pair in _styled(subject.text, "a right answer") if pair[0].endswith(longer)]
    plain = ("a wrong answer", "no answer", "a right answer", "a right answer alone")
    for name, text in texts:
        whole = not env.tool_schemas or (subject is subjects[0] and name in plain)
        yield name, subject.saying(text) if whole else text


def _bare(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield the right answer without what may be paid beside it: without its empty thought, then without its marks.

    Grading decides if that is still right.
    """
    s = statement_of(subject)
    if s.answer and s.frame:
        yield "a right answer without a thought", s.said.strip()
    if s.answer and s.said.strip() != s.answer:
        yield "nothing but the right answer", s.answer


def _styled(answer: str, what: str) -> Iterator[tuple[str, str]]:
    """`answer` (none: "") in the styles that reward functions are known to pay for."""
    prose = (REASONING * 40).strip()
    bullets = "".join(f"- Step {i}: I look at part {i}.\n" for i in range(1, 21))
    yield what, answer
    yield f"{what} with long reasoning", f"{prose}\n{answer}"
    yield f"{what} with a think block", f"<think>\n{prose}\n</think>\n{answer}"
    yield f"{what} with tags", f"<reasoning>\n{REASONING.strip()}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    yield f"{what} with think and answer tags", f"<think>\n{REASONING.strip()}\n</think>\n<answer>\n{answer}\n</answer>"
    yield f"{what} with a code fence", f"```python\nprint(1)\n```\n{answer}"
    yield f"{what} with bullets", f"{bullets}{answer}"
    yield f"{what} with a box", f"{answer}\n\\boxed{{?}}"
    yield f"{what} with words that sound like thinking", f"{_WORDS * 10}{answer}"
    if answer:
        yield f"{what} given ten times", "\n".join([answer] * 10)
        yield f"{what} with many words after it", f"{answer}\n{prose}"
    everything = f"# Solution\n<think>\n{prose}\n{_WORDS * 3}\n</think>\n{bullets}\n```python\nprint(1)\n```\n{answer}"
    yield f"{what} with all styles", everything


def _calling(env: MultiTurnEnv) -> Iterator[tuple[str, Script]]:
    """Conversations that call tools as often as they may, and answer nothing."""
    turns = min(env.max_turns, MOST_TURNS)
    calls = _calls(env)
    for (name, given), (_, whole) in zip(calls, _calls(env, whole=True), strict=True):
        message = call_message((name, given))
        yield f"only calls of {name}", [message] * turns
        if whole != given:
            yield f"only calls of {name} with all arguments", [call_message((name, whole))] * turns
        yield f"several calls of {name} at once", [call_message(*[(name, given)] * CALLS_AT_ONCE)] * turns
        yield f"calls of {name} with wrong arguments", [call_message((name, {"nonsense": 1}))] * turns
        if turns > 1:
            yield f"calls of {name}, then nothing", [*[message] * (turns - 1), _say("")]
    if len(calls) > 1:
        yield "each tool in turn", [call_message(calls[i % len(calls)]) for i in range(turns)]
        yield "all tools at once", [call_message(*calls)] * turns
    yield "calls of a tool that is not there", [call_message(("no_such_tool", {}))] * turns
    yield "malformed calls", [_say("<tool_call>{</tool_call>")] * turns


def _calling_to_answer(
    env: MultiTurnEnv, subject: Subject, subjects: Sequence[Subject]
) -> Iterator[tuple[str, Script]]:
    """Conversations that end in a right or a wrong answer, after as many calls as there may be, and after none."""
    before = min(env.max_turns, MOST_TURNS) - 1
    answers = [("a right answer", subject.text), ("a wrong answer", wrong_text(subject, subjects))]
    for what, text in answers:
        if not text:
            continue
        yield f"{what} without a call", [_say(text)]
        for name, given in _calls(env) if before else []:
            yield f"calls of {name}, then {what}", [*[call_message((name, given))] * before, _say(text)]
            wrongly = [call_message((name, {"nonsense": 1}))] * before
            yield f"calls of {name} with wrong arguments, then {what}", [*wrongly, _say(text)]


def _calls(env: MultiTurnEnv, whole: bool = False) -> list[tuple[str, dict[str, Any]]]:
    """A call of each tool: its name and made-up arguments."""
    tools = [schema["function"] for schema in env.tool_schemas or []]
    return [(tool["name"], made_up(tool.get("parameters") or {}, whole)) for tool in tools]


def _talking(env: MultiTurnEnv, subject: Subject, subjects: Sequence[Subject]) -> Iterator[tuple[str, Script]]:
    """Conversations without tools that say the same up to the last turn."""
    turns = min(env.max_turns, MOST_TURNS)
    wrong = wrong_text(subject, subjects)
    said = [("nothing", ""), ("a number", "1"), ("reasoning", REASONING.strip())]
    said += [("a wrong answer", wrong)] if wrong else []
    said += [("a right answer", subject.text)] if subject.text else []
    if not subject.text or isinstance(subject.reference, str):
        last = message_text(subject.example.prompt[-1])
        said += [("the question", last)] if last else []
    for name, text in said:
        yield f"{name} at each turn", [_say(text)] * turns
    if subject.text and wrong and turns > 1:
        yield "wrong answers, then a right one", [*[_say(wrong)] * (turns - 1), _say(subject.text)]
        yield "a right answer, then wrong ones", [_say(subject.text), *[_say(wrong)] * (turns - 1)]


def _value(schema: Any, defs: dict[str, Any], whole: bool, depth: int) -> Any:
    """A value that the schema allows. Text is "1": a number, an expression, code and a query in one."""
    if not isinstance(schema, dict) or depth > 8:
        return None
    if "$ref" in schema:
        return _value(defs.get(str(schema["$ref"]).rpartition("/")[2]), defs, whole, depth + 1)
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("examples"):
        return schema["examples"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            kinds = [kind for kind in schema[key] if kind.get("type") != "null"] if key != "allOf" else schema[key]
            return _value(kinds[0] if kinds else {"type": "null"}, defs, whole, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((one for one in kind if one != "null"), "null") if isinstance(kind, list) else kind
    if kind == "object":
        named = schema.get("properties") or {}
        wanted = named if whole else [key for key in schema.get("required") or [] if key in named]
        return {key: _value(named[key], defs, whole, depth + 1) for key in wanted}
    if kind == "array":
        first = list(schema.get("prefixItems") or [])
        count = max(1, len(first), schema.get("minItems") or 0)
        items = first + [schema.get("items") or {}] * (count - len(first))
        return [_value(item, defs, whole, depth + 1) for item in items]
    return _scalar(kind, schema)


def _scalar(kind: str, schema: dict[str, Any]) -> Any:
    if kind in ("integer", "number"):
        low = schema.get("minimum", schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else None)
        high = schema.get("maximum", schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else None)
        value = max(1, low) if low is not None else 1
        return value if high is None or value <= high else high
    if kind == "string":
        dates = {"date": "2024-01-01", "date-time": "2024-01-01T00:00:00Z", "time": "00:00:00Z", "uri": "http://1"}
        return dates.get(schema.get("format", ""), "1" * max(1, schema.get("minLength") or 1))
    return {"boolean": True, "null": None}.get(kind)
