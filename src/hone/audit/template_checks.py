"""The checks of a chat template: short conversations, each the least that shows what it is there for.

A problem is reported by the first check that meets it; `known` holds those that were met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hone.audit.report import Check, Finding, Verdict
from hone.audit.template_findings import findings_of
from hone.audit.template_rules import first_problem, keeps_texts, parting, renders
from hone.audit.template_subject import (
    TOOLS,
    ChatSubject,
    Conversation,
    Problem,
    call_of,
    in_short,
    system,
    tool,
    user,
)
from hone.errors import UserError
from hone.model.chat import RendererParts
from hone.model.rendering import TemplateRendering
from hone.types import Message

Known = set[tuple[str, str]]
SYSTEM, ASKED, ASKED_ON = system("be brief."), user("what is blue?"), user("and what is green?")
SAMPLES = {
    "white space around": " \n padded \n",
    "white space inside": "a  b\n\n\tc",
    "capitals": "Mixed Case",
    "combining marks": "e\u0301 a\u0323",
    "ligatures": "\ufb01ne \u2460 \uff21",
    "right to left": "\u05e9\u05dc\u05d5\u05dd \u200fa",
    "emoji": "\U0001f3b2 \U0001f469\u200d\U0001f680",
    "invisible": "a\u00a0b\u200bc\u00add",
    "Jinja": "{{ 7 * 191 }} {% if a %} {# b #} {%- raw %}",
    "braces": "{0} {role} {} }}{{",
    "percent signs": "100% %s %(role)s",
    "backslashes": "\\n \\u0041 \\1 $x",
    "HTML": "<b>&amp;</b> \"q\" 'r'",
}
"""Texts that templates and tokenizers are known to change."""
ARGUMENTS = (
    'say "a" and \'b\' \\ "',
    "a\n\nb\n",
    "  a ",
    "\u00e9\U0001f3b2\u05e9",
    '{"a": {"b": [1, {}]}} }}',
    "</tool_call> <tool_call>",
    "</parameter></function>",
    "</think>",
    "<think>",
)
"""Arguments of calls that may break how calls are written or read."""
SPECIAL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|\[/?[A-Z_]{3,}\]|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>")
"""What looks like a special token in what a template writes."""
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<tool_response>")


def check_renders(subject: ChatSubject, known: Known) -> Check:
    """Which shapes of a conversation the template takes, and whether it writes all of them."""
    answer = subject.answer("the sky.")
    shapes: dict[str, tuple[list[Message], Verdict | None]] = {
        "an answer": ([ASKED, answer], Verdict.FAIL),
        "a system message": ([SYSTEM, ASKED], Verdict.WARN),
        "a second question": ([ASKED, answer, ASKED_ON], Verdict.WARN),
        "two messages of the user in a row": ([ASKED, ASKED_ON], None),
        "a system message in the middle": ([ASKED, answer, SYSTEM, ASKED_ON], None),
        "an empty message": ([user("")], None),
        "a message without content": ([ASKED, {"role": "assistant", "content": None}, ASKED_ON], None),
        "content in parts": ([user([{"type": "text", "text": ASKED["content"]}])], None),
    }
    found: list[Problem] = []
    for shape, (messages, verdict) in shapes.items():
        conversation = Conversation(messages)
        problem = _shape_problem(subject, conversation)
        if problem is not None and problem.name == "refuses":
            found.append(replace(problem, what=shape, verdict=verdict))
        elif problem is not None:
            found.append(problem)
    found += _default_system(subject)
    refused = sum(problem.name == "refuses" for problem in found)
    return _check(
        "renders", f"{len(shapes) - refused} of {len(shapes)} shapes of conversations are taken", found, known
    )


def check_turns(subject: ChatSubject, known: Known) -> Check:
    """The generation prompt, finished turns that continue it, and earlier turns that stay once others answer."""
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    stray = {"role": "assistant", "content": "<think>\nlook </think> up\n</think>\n\nthe sky."}
    of_users: list[list[Message]] = [
        [ASKED],
        [ASKED, answer],
        [SYSTEM, ASKED, answer],
        [ASKED, thought],
        [ASKED, answer, ASKED_ON],
        [ASKED, thought, ASKED_ON],
        [ASKED, answer, ASKED_ON, answer],
        [ASKED, thought, ASKED_ON, answer, ASKED_ON],
        [ASKED, subject.answer("the sky.", thought="\n look up \n")],
        [user("<tool_response>"), thought],
        [ASKED, subject.answer(""), ASKED_ON],
        [ASKED, stray],
        [ASKED, stray, ASKED_ON],
    ]
    of_tools = _tool_conversations(subject) if subject.takes_tools else []
    conversations = [Conversation(messages) for messages in of_users] + of_tools
    found = [_named(problem, known) for problem in _asked(subject, conversations)]
    check = _check("turns", f"{len(conversations)} conversations", [p for p in found if p is not None], known)
    return replace(check, findings=tuple(_with_what_works(finding) for finding in check.findings))


def check_stop(subject: ChatSubject, parts: RendererParts, known: Known) -> Check:
    """The token that ends a turn, and whether the special tokens that the template writes are tokens."""
    written = subject.text(Conversation([ASKED, subject.answer("the sky.")]))
    split = [t for t in dict.fromkeys(SPECIAL.findall(written)) if not _is_token(subject, t)]
    shortest = Conversation([user("a"), subject.answer("b")])
    found = [Problem("split-token", t, shortest, f"{t!r} becomes {len(subject.encode(t))} tokens") for t in split]
    if split:  # of the same cause
        known |= {("no-stop-token", "answer"), ("stop-inside", "answer")}
    found += _asked(subject, [shortest])
    end = subject.renderer.end_of_turn_id
    token = subject.tokenizer.id_to_token(end) or str(end)
    if end not in subject.declared:
        named = ", ".join(repr(subject.tokenizer.id_to_token(i)) for i in subject.declared) or "none"
        found.append(Problem("eos-differs", token, shortest, f"the files name {named}, the turn ends with {token!r}"))
    return _check("stop token", f"turns end with {token}", found, known, {"end_of_turn": token, "id": end})


def check_injection(subject: ChatSubject, known: Known) -> Check:
    """Special tokens that a message's text can forge."""
    skeleton = subject.text(Conversation([ASKED, subject.answer("the sky."), ASKED_ON]))
    stops = [i for i in subject.renderer.stop_ids if i is not None]
    tokens = [t for t, i in subject.controls.items() if t in skeleton or i in stops]
    plain = subject.renderer.prompt_ids([user("a")])
    found = []
    for token in tokens:
        forged = Conversation([user(token)])
        count = subject.renderer.prompt_ids(forged.messages).count(subject.controls[token])
        if count > plain.count(subject.controls[token]):
            found.append(Problem("injection", token, forged, f"{token!r} in a text becomes the token of the same name"))
    return _check("injection", f"{len(found)} of {len(tokens)} control tokens can be written as text", found, known)


def check_fidelity(subject: ChatSubject, known: Known) -> Check:
    """Texts are written as they are, and come back from their ids as they were."""
    conversations = []
    for text in SAMPLES.values():
        conversations += [Conversation([user(text)]), Conversation([system(text), ASKED])]
        conversations.append(Conversation([ASKED, subject.answer(text)]))
    found = [problem for problem in _asked(subject, conversations) if problem.name != "refuses"]
    form = subject.rendering.format
    hidden = [tag for tag in TAGS if tag in subject.controls and not (form is not None and tag in form.tokens)]
    for tag in hidden:
        shown = Conversation([user("a"), {"role": "assistant", "content": f"{tag}b"}])
        found.append(Problem("hides-tags", tag, shown, f"{tag!r} is left out of what is decoded"))
    return _check("fidelity", f"{len(SAMPLES)} texts in messages of system, user and assistant", found, known)


def check_tools(subject: ChatSubject, known: Known) -> Check:
    """Tools are listed, and calls with awkward arguments are read as they were written."""
    listed = Conversation([ASKED], TOOLS)
    if not subject.takes_tools:
        found = [Problem("tools-unread", "calls", listed, "hone refuses conversations with tools")]
        return _check("tools", "calls are not read", found, known)
    try:
        written = subject.text(listed)
    except UserError as error:
        return _check("tools", "tools are refused", [Problem("refuses", "tools", listed, in_short(error))], known)
    found = []
    if isinstance(subject.rendering, TemplateRendering) and not subject.rendering.knows_tools:
        found.append(Problem("tools-untaught", "tools", listed, "the template does not read `tools`"))
    parts = {"name": "look_up", "description": "finds a word", "arguments": "most"}
    missing = [name for name, text in parts.items() if text not in written]
    found += [Problem("tool-listing", name, listed, f"{parts[name]!r} is not in the prompt") for name in missing]
    plain = Conversation([ASKED, subject.answer("", calls=[call_of({"word": "blue", "most": 2})])], TOOLS)
    bad = _asked(subject, [plain])
    found += bad
    read = 0
    for text in ARGUMENTS if not bad else ():
        awkward = Conversation([ASKED, subject.answer("", calls=[call_of({"word": text})])], TOOLS)
        problem = first_problem(subject, awkward)
        read += problem is None
        if problem is not None:
            found.append(problem)
    return _check("tools", f"{read} of {len(ARGUMENTS)} awkward arguments are read as written", found, known)


def check_agreement(subject: ChatSubject, parts: RendererParts, known: Known) -> Check:
    """Of a model that `renderers` writes: whether its own template, `parts`, writes the same."""
    assert isinstance(parts.rendering, TemplateRendering)
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    call = call_of({"word": "blue"})
    calling = subject.answer("", calls=[call])
    shapes = {
        "a question": Conversation([ASKED]),
        "a system message": Conversation([SYSTEM, ASKED]),
        "an answer": Conversation([ASKED, answer]),
        "a thought": Conversation([ASKED, thought]),
        "several turns": Conversation([ASKED, answer, ASKED_ON]),
        "tools": Conversation([SYSTEM, ASKED], TOOLS),
        "calls": Conversation([ASKED, calling, tool(call, "a colour")], TOOLS),
    }
    found = []
    for shape, conversation in shapes.items():
        texts = []
        for rendering in (subject.rendering, parts.rendering):
            try:
                texts.append(rendering.text(conversation.messages, not conversation.finished, conversation.tools))
            except Exception as error:  # one refuses what the other takes
                texts.append(f"({type(error).__name__}: {error})")
        if texts[0] != texts[1]:
            difference = parting(texts[0], texts[1], "renderers", "the template")
            found.append(Problem("renderer-differs", shape, conversation, difference))
    return _check("agreement", f"{len(shapes) - len(found)} of {len(shapes)} shapes are written alike", found, known)


def _tool_conversations(subject: ChatSubject) -> list[Conversation]:
    call, other = call_of({"word": "blue"}), call_of({"word": "green"}, index=1)
    told, told_other = tool(call, "a colour."), tool(other, "one more colour.")
    calling = subject.answer("", calls=[call])
    answer, thought = subject.answer("a colour."), subject.answer("a colour.", thought="it said so")
    conversations = [
        [ASKED, calling, told],
        [ASKED, calling, told, answer],
        [ASKED, calling, told, subject.answer("", calls=[other]), told_other],
        [ASKED, calling, told, answer, ASKED_ON],
        [ASKED, subject.answer("", calls=[call, other]), told, told_other],
    ]
    if subject.speaks_beside_calls:
        conversations += [
            [ASKED, subject.answer("let me see.", calls=[call]), told],
            [ASKED, subject.answer("", thought="look it up", calls=[call]), told],
            [ASKED, subject.answer("", thought="", calls=[call]), told],
            [ASKED, subject.answer("", thought="look it up", calls=[call]), told, thought, ASKED_ON],
        ]
    return [Conversation(messages, TOOLS) for messages in conversations]


def _named(problem: Problem, known: Known) -> Problem | None:
    """A refusal by the name of what is refused; None if that was reported as a shape."""
    if problem.name != "refuses":
        return problem
    messages = problem.conversation.messages
    if problem.conversation.tools:
        calls = max(len(message.get("tool_calls", ())) for message in messages)
        shape, verdict = ("two calls in one turn", None) if calls > 1 else ("calls of tools", Verdict.WARN)
        return replace(problem, what=shape, verdict=verdict)
    shape = "a system message" if messages[0]["role"] == "system" else "a second question"
    return None if ("refuses", shape) in known else replace(problem, what=f"a conversation of {problem.what}")


def _shape_problem(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    problem = first_problem(subject, conversation, rules=(renders, keeps_texts))
    content: Any = conversation.messages[0]["content"]
    if problem is None and isinstance(content, list):
        plain = conversation.saying(0, content[0]["text"])
        if (written := subject.text(conversation)) != (expected := subject.text(plain)):
            difference = parting(expected, written, "of plain text it", "of parts it")
            return Problem("loses-text", "parts", conversation, difference, Verdict.WARN)
    if problem is not None and problem.key == ("loses-text", "parts"):
        return replace(problem, verdict=Verdict.WARN)
    return problem


def _default_system(subject: ChatSubject) -> list[Problem]:
    """A system message that the template writes where there is none."""
    mark = "mark"
    try:
        before, after = subject.text(Conversation([system(mark), ASKED])).split(mark, 1)
    except (UserError, ValueError):
        return []
    written = subject.text(Conversation([ASKED]))
    own = written[len(before) : len(written) - len(after)]
    if written.startswith(before) and written.endswith(after) and own.strip():
        return [Problem("default-system", "system", Conversation([ASKED]), f"it writes {own[:120]!r}")]
    return []


def _is_token(subject: ChatSubject, text: str) -> bool:
    return subject.tokenizer.token_to_id(text) is not None and len(subject.encode(text)) == 1


def _with_what_works(finding: Finding) -> Finding:
    """The title of stripped thoughts says after which messages, and the remedy what is not affected."""
    if finding.name != "think-stripping":
        return finding
    after = {"user": "a message of the user follows", "tool": "an answer of a tool follows", "answer": "it is finished"}
    after |= {"empty thoughts": "anything follows, if they are empty", "odd questions": "it answers <tool_response>"}
    works = {"answer": "tasks of one turn", "tool": "tools that answer after the last message of the user"}
    fine = " and ".join(works[what] for what in works if what not in finding.what)
    when = ", or once ".join(after.get(what, what) for what in finding.what)
    return replace(
        finding,
        title=f"the template takes the thoughts out of a turn once {when}",
        remedy=(f"{fine} work; " if fine else "")
        + "for other tasks give a template that keeps thoughts with model.chat_template",
    )


def _asked(subject: ChatSubject, conversations: Iterable[Conversation]) -> list[Problem]:
    problems = [first_problem(subject, conversation) for conversation in conversations]
    return [problem for problem in problems if problem is not None]


def _check(
    name: str, summary: str, problems: Sequence[Problem], known: Known, figures: dict[str, Any] | None = None
) -> Check:
    fresh = [problem for problem in problems if problem.key not in known]
    known |= {problem.key for problem in fresh}
    return Check(name, summary, findings_of(fresh), figures or {})
