r"""Forms of an answer that a prompt may ask for: tags, `\boxed{}`, `ANSWER:`, `####`, JSON, a fence, the last line."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hone.audit.probes import Subject
from hone.environments.parsers import message_text

_THOUGHT = {"think", "thinking", "thought", "thoughts", "reason", "reasoning", "scratchpad", "reflection", "analysis"}
_THOUGHT |= {"plan", "planning", "work", "step", "steps", "explanation", "working_out", "draft"}
_TOOLS = {"tool", "tools", "tool_call", "tool_calls", "tool_response", "function", "call", "code", "output", "result"}
_DATA = {"query", "search", "information", "context", "document", "documents", "data", "input", "question", "problem"}
_DATA |= {"passage", "text", "image", "example", "examples", "instruction", "instructions", "system", "user", "name"}
_HTML = {"a", "b", "body", "br", "div", "em", "hr", "html", "i", "li", "ol", "p", "pre", "span", "strong", "sub", "sup"}
AUXILIARY = frozenset(_THOUGHT | _TOOLS | _DATA | _HTML)
"""Tags that do not hold the answer: of thoughts, tools, data, HTML."""
_TAG = re.compile(r"<([A-Za-z_][\w-]{0,40})>")
_PAIR = re.compile(r"<([A-Za-z_][\w-]{0,40})>(.*?)</\1>", re.DOTALL)
_MARKER = re.compile(r"\b((?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:)", re.IGNORECASE)
_KEY = re.compile(r"\{\s*\"(\w+)\"\s*:")
_JSON_KEY = re.compile(r"\bJSON\b[^.\n]{0,80}?\b(?:key|field)s?\s+[\"'`](\w+)[\"'`]", re.IGNORECASE)
_FENCE = re.compile(r"```|\bcode (?:block|fence)\b", re.IGNORECASE)
_LAST_LINE = re.compile(r"\b(?:last|final) line\b", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """A form of an answer: its name ("<answer>"), what a prompt says of it (`snippet`), and what comes before and after
    the answer, in each way to write it.
    """

    name: str
    snippet: str
    ways: tuple[tuple[str, str], ...]
    quoted: bool = False

    def texts(self, answer: str) -> list[str]:
        """The answer in this form, in each way to write it."""
        given = json.dumps(answer, ensure_ascii=False)[1:-1] if self.quoted else answer
        return [f"{before}{given}{after}" for before, after in self.ways]


def asked_for(subjects: Sequence[Subject]) -> tuple[list[Form], str]:
    """The forms that all prompts ask for, and the text in which they do so: what the prompts have in common."""
    said = [_prompt(subject) for subject in subjects]
    common = constant_part(said)
    return forms_in(common, data_tags(said)), common


def forms_in(text: str, ignored: frozenset[str] = frozenset()) -> list[Form]:
    """The forms of an answer that a text names, in the order of their kinds."""
    found: dict[str, Form] = {}

    def add(name: str, start: int, *ways: tuple[str, str], quoted: bool = False) -> None:
        found.setdefault(name, Form(name, snippet(text, start), ways, quoted))

    for match in _TAG.finditer(text):
        tag = match[1]
        if tag.lower() not in AUXILIARY and tag not in ignored:
            add(f"<{tag}>", match.start(), (f"<{tag}>", f"</{tag}>"), (f"<{tag}>\n", f"\n</{tag}>"))
    if (start := text.find(r"\boxed")) >= 0:
        add(r"\boxed{}", start, (r"\boxed{", "}"), (r"$\boxed{", "}$"))
    for match in _MARKER.finditer(text):
        if text[match.end() :].strip():  # a prompt that ends so is to be gone on with
            mark = re.sub(r"\s+", " ", match[1])
            add(mark, match.start(), (f"{mark} ", ""), (f"{mark}\n", ""))
    if match := re.search(r"####", text):
        add("####", match.start(), ("#### ", ""))
    for match in [*_KEY.finditer(text), *_JSON_KEY.finditer(text)]:
        if match[1] in ("name", "type", "role", "function", "arguments"):  # of a tool and its calls
            continue
        add(f'JSON with "{match[1]}"', match.start(), *_json_ways(match[1]), quoted=True)
    if match := _FENCE.search(text):
        add("a code fence", match.start(), ("```\n", "\n```"), ("```python\n", "\n```"))
    if match := _LAST_LINE.search(text):
        add("the last line", match.start(), ("", ""))
    if len(found) > 1:
        found.pop("the last line", None)  # it says where the form stands
    return list(found.values())


def _json_ways(key: str) -> tuple[tuple[str, str], ...]:
    ways = ((f'{{"{key}": "', '"}'), (f'{{"{key}": ', "}"))
    return (*ways, *((f"```json\n{before}", f"{after}\n```") for before, after in ways))


def constant_part(prompts: Sequence[str]) -> str:
    """What all prompts share: how they begin, the lines that are in each, and how they end, with … between; of one
    prompt all of it.
    """
    if len(set(prompts)) <= 1:
        return prompts[0] if prompts else ""
    start = _common_start(prompts)
    end = _common_start([prompt[::-1] for prompt in prompts])[::-1]
    start = start[: _last_break(start)] if start else ""
    end = end[_first_break(end) :]
    shared = set(prompts[0].splitlines()).intersection(*(prompt.splitlines() for prompt in prompts[1:]))
    lines = [line for line in prompts[0].splitlines() if line in shared and line not in start and line not in end]
    return "\n…\n".join(part for part in (start, "\n".join(lines), end) if part.strip())


def data_tags(prompts: Sequence[str]) -> frozenset[str]:
    """Tags that hold data: what stands between them differs from prompt to prompt."""
    inner: dict[str, set[tuple[str, ...]]] = {}
    for prompt in prompts:
        pairs: dict[str, list[str]] = {}
        for tag, text in _PAIR.findall(prompt):
            pairs.setdefault(tag, []).append(text)
        for tag, texts in pairs.items():
            inner.setdefault(tag, set()).add(tuple(texts))
    return frozenset(tag for tag, seen in inner.items() if len(seen) > 1)


def snippet(text: str, start: int, around: int = 60) -> str:
    """The words around a place, in one line."""
    left, right = max(0, start - around), min(len(text), start + around)
    while 0 < left < start and not text[left - 1].isspace():
        left += 1
    while start < right < len(text) and not text[right].isspace():
        right -= 1
    cut = " ".join(text[left:right].split())
    return f"{'… ' * (left > 0)}{cut}{' …' * (right < len(text))}"


def _prompt(subject: Subject) -> str:
    return "\n".join(message_text(m) for m in subject.example.prompt if m.get("role") != "assistant")


def _common_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    same = next((i for i, (one, other) in enumerate(zip(low, high, strict=False)) if one != other), None)
    return low if same is None else low[:same]


def _last_break(text: str) -> int:
    """Where the last whole word ends."""
    return max((i + 1 for i, char in enumerate(text) if char.isspace()), default=0)


def _first_break(text: str) -> int:
    return next((i for i, char in enumerate(text) if char.isspace()), len(text))
