"""Auditing a model's chat template: faults that break a task of several turns, or of tools.

It tests what hone renders with: the `renderers` package for the models that it knows by name, else the model's own
template.

    report = audit_template("Qwen/Qwen3-0.6B")
    report.names()  # {"think-stripping"}

Short conversations are rendered, beginning with their first messages. A rule looks at one beginning and returns the
`Problem` that it sees, or None. Only the first problem of a conversation is a finding: the others follow from it.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hone.audit.report import Check, Evidence, Finding, Report, Verdict, worst
from hone.errors import UserError
from hone.model.chat import THINK, ChatRenderer, RendererParts, renderer_parts
from hone.model.rendering import END_THINK, TemplateRendering, parting, squeeze
from hone.model.texts import TURN_TOKEN
from hone.model.tool_calls import Tool
from hone.types import Message, content_hash

FAIL, WARN, NOTE = Verdict.FAIL, Verdict.WARN, Verdict.NOTE
OTHER = "give another template with model.chat_template"
APPENDS = "give a template that only appends with model.chat_template; tasks of one turn are not affected"
# The verdict of a finding, unless a problem has its own; its title, with `{what}` for what showed it; the remedy.
KINDS: dict[str, tuple[Verdict, str, str]] = {
    "refuses": (NOTE, "the template refuses: {what}", f"keep to conversations that it takes, or {OTHER}"),
    "unusable": (FAIL, "hone can't use this template: {what}", OTHER),
    "crashes": (FAIL, "rendering fails with {what}", OTHER),
    "changes-text": (FAIL, "the text of a message is lost, moved or changed ({what})", OTHER),
    "strips-text": (NOTE, "white space around a text is taken away ({what})", ""),
    "think-stripping": (
        FAIL,
        "the template takes the thought out of a turn once another message follows ({what})",
        "tasks of one turn work; for others give a template that keeps thoughts with model.chat_template",
    ),
    "rewrites-prompt": (FAIL, "a finished turn does not continue its prompt ({what})", APPENDS),
    "adds-thought": (
        NOTE,
        "an answer without a thought gets an empty one when it is written last",
        "SFT teaches the empty thought, RL samples from a prompt without it: train on rows that think if you want any",
    ),
    "no-generation-prompt": (
        FAIL,
        "the prompt does not open the assistant's turn: the model has to do it",
        "write the opening under `if add_generation_prompt` alone",
    ),
    "no-stop-token": (FAIL, "no token ends an assistant's turn", "write the end-of-turn token after the text"),
    "split-token": (
        FAIL,
        "the tokenizer splits {what}, which the template writes, or does not know it",
        "add the token to the tokenizer (and train its embedding), or give the template of this tokenizer",
    ),
    "eos-differs": (
        WARN,
        "turns end with {what}, which the model's files do not name as an end",
        "add its id to eos_token_id in generation_config.json: hone stops at it anyway, other engines do not",
    ),
    "stop-inside": (FAIL, "a token that ends generation stands inside of a turn ({what})", OTHER),
    "rewrites-history": (FAIL, "earlier turns are rewritten once an answer follows ({what})", APPENDS),
    "tools-unread": (WARN, "the template asks for tool calls in a form that hone does not read", OTHER),
    "tool-calls": (FAIL, "a tool call is not read as it was written ({what})", OTHER),
}
LOOK_UP = {
    "name": "look_up",
    "description": "finds a word",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}, "most": {"type": "integer"}},
        "required": ["word"],
    },
}
TOOLS: list[Tool] = [{"type": "function", "function": LOOK_UP}]
TEXTS = (
    " \n padded \n",
    "a  b\n\n\tc",
    "Mixed Case",
    "e\u0301 \ufb01ne \u2460 \U0001f469\u200d\U0001f680 a\u00a0b",
    "{{ 7 * 191 }} {% if a %} {# b #} {%- raw %}",
    "{0} {role} {} 100% %s %(role)s \\n \\u0041 $x",
    "<b>&amp;</b> \"q\" 'r'",
)
"""Texts that templates are known to change."""
_EMPTY_THOUGHT = re.compile(r"\s*(?:<think>)?\s*</think>\s*")


def user(content: str) -> Message:
    return {"role": "user", "content": content}


SYSTEM, ASKED, ASKED_ON = {"role": "system", "content": "be brief."}, user("what is blue?"), user("and what is green?")


@dataclass(frozen=True)
class Conversation:
    """Messages, with calls as `tool_calls` beside the text, and the tools that they may call."""

    messages: list[Message]
    tools: list[Tool] | None = None

    @property
    def last(self) -> Message:
        return self.messages[-1]

    @property
    def finished(self) -> bool:
        return self.last["role"] == "assistant"

    def first(self, count: int) -> Conversation:
        """Return the first messages; a negative count leaves out as many at the end."""
        return replace(self, messages=self.messages[:count])

    def json(self) -> str:
        record: dict[str, Any] = {"messages": self.messages} | ({"tools": self.tools} if self.tools else {})
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Problem:
    """A finding's name and `what`, the conversation that shows it, and the difference in words."""

    name: str
    what: str
    conversation: Conversation
    difference: str
    unusual: Verdict | None = None
    """The severity, if it is not that of the name."""

    @property
    def verdict(self) -> Verdict:
        return self.unusual or KINDS[self.name][0]


class ChatSubject:
    """A renderer with what the checks ask of it."""

    def __init__(self, parts: RendererParts) -> None:
        self.renderer = ChatRenderer(*parts)
        self.tokenizer, self.rendering = parts.tokenizer, parts.rendering
        self.declared = parts.stop_ids
        """The ids at which the model's files end generation."""
        self.by_template = isinstance(self.rendering, TemplateRendering)
        """True if the model's chat template renders, not the `renderers` package."""

    def answer(self, text: str, thought: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> Message:
        """Return an assistant's turn, with a thought if the template opens one."""
        if thought is None and self.renderer.opened_by_template:
            thought = "hm"
        content = text if thought is None else f"<think>\n{thought}\n</think>\n\n{text}"
        return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})

    def text(self, conversation: Conversation) -> str:
        """Return the conversation as the template writes it, ready for the next turn unless it is finished."""
        return self.renderer.text(conversation.messages, not conversation.finished, conversation.tools)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def find(self, written: str, text: str, start: int = 0) -> int:
        """Return where a text stands as it is, or as JSON has it within quotes; -1 if nowhere."""
        forms = [text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
        if not self.by_template:  # known by its ids alone
            forms.append(self.decode(self.encode(text)))
        return min((at for form in forms if (at := written.find(form, start)) >= 0), default=-1)

    def sampled_ids(self, message: Message, tools: list[Tool] | None) -> list[int]:
        """Return the ids that a model samples to say this."""
        text = message["content"].removeprefix(self.renderer.opened_by_template)
        if calls := message.get("tool_calls"):
            turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
            ids = self.renderer.completion_ids([user("a")], turn, tools)
            written = self.decode(ids[:-1] if ids[-1] in self.renderer.stop_ids else ids)
            text += "\n" if text and not text.endswith("\n") else ""
            empty = _EMPTY_THOUGHT.match(written)
            text += written[empty.end() if empty else 0 :].strip()
        return [*self.encode(text), self.renderer.end_of_turn_id]

    def play(self, conversation: Conversation) -> tuple[list[int], list[Message]]:
        """Return the ids that training sees, and the messages as hone keeps them, up to the last answer.

        The prompt, each turn as it is sampled, and each bridge. Raises UserError if hone can't go on.
        """
        messages, tools = conversation.messages, conversation.tools
        at = next(i for i, message in enumerate(messages) if message["role"] == "assistant")
        kept = messages[:at]
        ids = self.renderer.prompt_ids(kept, tools)
        while at < len(messages):
            own = self.sampled_ids(messages[at], tools)
            turn = self.renderer.message(own, tools)
            answers = list(itertools.takewhile(lambda m: m["role"] != "assistant", messages[at + 1 :]))
            at += 1 + len(answers)
            called = iter([call["id"] for call in turn.get("tool_calls", [])])
            for i, answer in enumerate(answers):
                if answer["role"] == "tool" and (known := next(called, None)) is not None:
                    answers[i] = {**answer, "tool_call_id": known}
            kept = [*kept, turn]
            ids = [*ids, *own, *self.renderer.bridge_ids(kept, answers, tools)]
            kept += answers
        return ids, kept


def first_problem(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Return the problem of the shortest beginning that has one, by the first rule that does not hold."""
    noted = None
    for part in map(conversation.first, range(1, len(conversation.messages) + 1)):
        rules = () if part.last["role"] == "system" else TURN_RULES if part.finished else PROMPT_RULES
        for rule in rules:
            try:
                problem = rule(subject, part)
            except UserError as error:
                problem = Problem("refuses", "", part, in_short(error))
            except Exception as error:  # what a template or a package raises is what is looked for
                problem = Problem("crashes", type(error).__name__, part, f"{type(error).__name__}: {error}")
            if problem is not None and problem.name != "adds-thought":
                return problem
            noted = noted or problem
    return noted


def in_short(error: UserError) -> str:
    """Return a refusal without hone's remedy."""
    return re.split(r"; give a template|: give a template|: change the messages", str(error))[0]


def keeps_texts(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that texts of messages are written unchanged and in order; `keeps_history` does earlier answers."""
    written, at = subject.text(conversation), 0
    for message in conversation.messages:
        if message["content"] and (message["role"] != "assistant" or message is conversation.last):
            at = subject.find(written, message["content"], max(at, 0))
            if at < 0:
                return _lost_text(subject, conversation, message, written)
    return None


def _lost_text(subject: ChatSubject, conversation: Conversation, message: Message, written: str) -> Problem:
    """Say why a text is missing in the rendered text."""
    role, text = message["role"], message["content"]
    difference = f"{text[:80]!r} of {role} is not in {written[-160:]!r}"
    if text != text.strip() and subject.find(written, text.strip()) >= 0:
        return Problem("strips-text", role, conversation, difference)
    answered = END_THINK in text and subject.find(written, text.rpartition(END_THINK)[2].strip()) >= 0
    return Problem(*(("think-stripping", "answer") if answered else ("changes-text", role)), conversation, difference)


def continues(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that a finished turn continues its prompt with the answer, and nothing before it."""
    answer = conversation.last
    prompt, full = subject.text(conversation.first(-1)), subject.text(conversation)
    if not full.startswith(prompt):
        shape = "calls" if answer.get("tool_calls") else "thought" if END_THINK in answer["content"] else "answer"
        return Problem(
            "rewrites-prompt", shape, conversation, parting(prompt, full, "the prompt has", "the finished turn")
        )
    rest = full[len(prompt) :]
    text = answer["content"].removeprefix(subject.renderer.opened_by_template)
    head = rest[: max(rest.find(text.strip()), 0)] if text.strip() else ""
    if not head.strip():
        return None
    difference = f"it writes {head!r} before {text[:40]!r}"
    if squeeze(head) in (f"{THINK}{END_THINK}", END_THINK):
        return Problem("adds-thought", "empty", conversation, difference)
    return Problem("no-generation-prompt", "opening", conversation, difference)


def ends(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that a finished turn has a token at which generation stops, and that no text would stop it earlier."""
    answer, renderer = conversation.last, subject.renderer
    ids = subject.rendering.continuation_ids(conversation.messages[:-1], answer, conversation.tools)
    stop = next((i for i, token in enumerate(ids) if token in renderer.stop_ids), None)
    if stop is None:
        return Problem("no-stop-token", "answer", conversation, f"the turn is {subject.decode(ids)[-60:]!r}")
    inside, text = subject.decode(ids[:stop]), answer["content"]
    called = renderer.before_calls(text) != text  # then what is in `tool_calls` is not written again
    names = [] if called else [call["function"]["name"] for call in answer.get("tool_calls", [])]
    spoken = subject.decode(subject.encode(text.removeprefix(renderer.opened_by_template)))
    if squeeze(spoken) in squeeze(inside) and all(name in inside for name in names):
        return None
    ended = subject.decode(ids[: stop + 1])
    return Problem("stop-inside", "calls" if names else "answer", conversation, f"the turn ends after {ended!r}")


def calls_are_read(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that calls are read with the arguments that they had."""
    calls = conversation.last.get("tool_calls")
    if not calls:
        return None
    try:
        subject.renderer.completion_ids(conversation.messages[:-1], conversation.last, conversation.tools)
        ids = subject.sampled_ids(conversation.last, conversation.tools)
    except UserError as error:
        return Problem("tool-calls", "any", conversation, in_short(error))
    read = subject.renderer.message(ids, conversation.tools).get("tool_calls", [])
    kept, had = (
        [(call["function"]["name"], json.loads(call["function"]["arguments"] or "null")) for call in some]
        for some in (read, calls)
    )
    if kept == had:
        return None
    return Problem("tool-calls", "any", conversation, f"{subject.decode(ids)[:120]!r} is read as {kept}")


def keeps_history(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that sampled turns, bridged to their answers, equal the conversation as the template writes it whole.

    White space may differ.
    """
    turns = [message for message in conversation.messages if message["role"] == "assistant"]
    if not turns:
        return None
    answers = conversation.last["role"]
    try:
        ids, kept = subject.play(conversation)
    except UserError as error:
        difference = in_short(error)
    else:
        if subject.rendering.format is None and any(message.get("tool_calls") for message in kept):
            return None  # calls are written anew, with other ids and white space than the model's
        sampled, whole = subject.decode(ids), subject.decode(subject.renderer.prompt_ids(kept, conversation.tools))
        if squeeze(sampled) == squeeze(whole):
            return None
        difference = parting(sampled, whole, "sampled was", "the template writes")
    whole = squeeze(subject.text(conversation))
    texts = [message["content"] for message in turns]
    kept_answers = all(squeeze(text.split(END_THINK)[-1]) in whole for text in texts)
    if kept_answers and any(END_THINK in text and squeeze(text) not in whole for text in texts):
        return Problem("think-stripping", answers, conversation, difference)
    return Problem("rewrites-history", answers, conversation, difference)


PROMPT_RULES = (keeps_texts, keeps_history)
TURN_RULES = (keeps_texts, continues, ends, calls_are_read)
"""The rules of a conversation that waits for an answer, and of one that has it."""


def audit_template(
    name: str, chat_template: str | None = None, progress: Callable[[str], None] = lambda check: None
) -> Report:
    """Audit the chat template of a folder, hub id or `hone/tiny`, or `chat_template` (file or Jinja text).

    Raises UserError if there is no template to audit: the model is missing, or the Jinja can't be parsed.
    """
    start = time.perf_counter()
    parts = renderer_parts(name, chat_template)
    facts: dict[str, Any] = {}
    try:
        subject = ChatSubject(parts)
    except UserError as error:
        problem = Problem("unusable", in_short(error), Conversation([ASKED]), str(error))
        checks = [Check("tokens", "nothing could be rendered", findings_from([problem]))]
    else:
        facts["renders"] = "chat template" if subject.by_template else "renderers"
        facts |= {"digest": subject.renderer.digest(), "opened_by_template": subject.renderer.opened_by_template}
        progress("tokens")
        end, problems = check_tokens(subject)
        checks = [Check("tokens", f"turns end with {end}", findings_from(problems))]
        progress("conversations")
        split = any(problem.name == "split-token" for problem in problems)  # the cause of what follows
        summary, problems = check_conversations(subject)
        problems = [one for one in problems if not (split and one.name in ("no-stop-token", "stop-inside"))]
        checks.append(Check("conversations", summary, findings_from(problems)))
    return Report(f"chat template of {name}", tuple(checks), facts, time.perf_counter() - start)


def findings_from(problems: Iterable[Problem]) -> tuple[Finding, ...]:
    """Return one finding for each name, with the worst conversation for each `what`."""
    by_name: dict[str, dict[str, Problem]] = {}
    for problem in sorted(problems, key=lambda one: list(Verdict).index(one.verdict)):
        by_name.setdefault(problem.name, {}).setdefault(problem.what, problem)
    findings = []
    for name, same in by_name.items():
        _, title, remedy = KINDS[name]
        shown = [
            Evidence("", p.conversation.messages, p.what, None, "", f"{p.difference}\n{p.conversation.json()}")
            for p in same.values()
        ]
        verdict = worst(problem.verdict for problem in same.values())
        title = title.format(what=", ".join(same))
        findings.append(Finding(name, verdict, title, remedy, tuple(same), tuple(shown[:6])))
    return tuple(findings)


def check_tokens(subject: ChatSubject) -> tuple[str, list[Problem]]:
    """Check the special tokens that are written. Return the token that ends a turn, and the problems."""
    shortest = Conversation([user("a"), subject.answer("b")])
    written = subject.text(Conversation([ASKED, subject.answer("the sky."), ASKED_ON]))
    found = []
    for text in dict.fromkeys(TURN_TOKEN.findall(written)):
        ids = subject.encode(text)
        if subject.tokenizer.token_to_id(text) is None or len(ids) != 1:
            found.append(Problem("split-token", text, shortest, f"{text!r} becomes {len(ids)} tokens"))
    end = subject.renderer.end_of_turn_id
    token = subject.tokenizer.id_to_token(end) or str(end)
    if end not in subject.declared:
        named = ", ".join(repr(subject.tokenizer.id_to_token(i)) for i in subject.declared) or "none"
        found.append(Problem("eos-differs", token, shortest, f"the files name {named}, the turn ends with {token!r}"))
    return token, found


def check_conversations(subject: ChatSubject) -> tuple[str, list[Problem]]:
    """Check that every conversation is taken, written as it is, and continued. Return a summary and the problems."""
    tried, found = list(conversations(subject)), []
    for what, conversation, verdict in tried:
        problem = first_problem(subject, conversation)
        if problem is not None and problem.name == "refuses":
            problem = replace(problem, what=what, unusual=verdict) if verdict else None
        if problem is not None:
            found.append(problem)
    refused = sum(problem.name == "refuses" for problem in found)
    if not reads_calls(subject):
        asked = Conversation([ASKED], TOOLS)
        found.append(Problem("tools-unread", "calls", asked, "hone refuses conversations with tools"))
    return f"{len(tried) - refused} of {len(tried)} conversations are taken", found


def reads_calls(subject: ChatSubject) -> bool:
    return subject.rendering.format is not None or not subject.by_template


def conversations(subject: ChatSubject) -> Iterator[tuple[str, Conversation, Verdict | None]]:
    """Yield the trials: name, conversation, and severity if the template refuses it. None: another one shows that."""
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    plain: list[tuple[str, Verdict | None, list[Message]]] = [
        ("an answer", FAIL, [user("a"), subject.answer("b")]),
        ("a question", FAIL, [ASKED]),
        ("a system message", WARN, [SYSTEM, ASKED, answer]),
        ("a thought", WARN, [ASKED, thought]),
        ("a second question", WARN, [ASKED, answer, ASKED_ON, answer]),
        ("a thought before two questions", None, [ASKED, thought, ASKED_ON, answer, ASKED_ON]),
        ("two messages of the user in a row", NOTE, [ASKED, ASKED_ON]),
        ("a system message in the middle", NOTE, [ASKED, answer, SYSTEM, ASKED_ON]),
        ("an empty message", NOTE, [user("")]),
    ]
    for text in TEXTS:
        plain += [("a text", None, [user(text)]), ("a text", None, [{**SYSTEM, "content": text}, ASKED])]
        plain.append(("a text", None, [ASKED, subject.answer(text)]))
    for name, verdict, messages in plain:
        yield name, Conversation(messages), verdict
    if not reads_calls(subject):
        return
    call, other = call_of({"word": "blue"}), call_of({"word": "green"}, index=1)
    awkward = call_of({"word": 'say "a" and \'b\' \\ "\n\n {"a": [1, {}]} }}', "most": 2})
    given, more = _tool_says(call, "a colour."), _tool_says(other, "one more colour.")
    calling = subject.answer("", calls=[call])
    called = [
        [ASKED, subject.answer("", calls=[awkward])],
        [ASKED, calling, given, subject.answer("a colour."), ASKED_ON],
        [ASKED, calling, given, subject.answer("", calls=[other]), more],
    ]
    if subject.rendering.format is not None and subject.rendering.format.name != "llama":
        thinking, thought = subject.answer("", "look it up", [call]), subject.answer("a colour.", "it is one")
        called.append([ASKED, subject.answer("let me see.", calls=[call]), given])
        called.append([ASKED, thinking, given, thought, ASKED_ON])
    for messages in called:
        yield "calls of tools", Conversation(messages, TOOLS), WARN
    two = [ASKED, subject.answer("", calls=[call, other]), given, more]
    yield "two calls in one turn", Conversation(two, TOOLS), NOTE


def call_of(arguments: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Return a call as hone keeps it; its id is nine letters and digits."""
    written = json.dumps(arguments, ensure_ascii=False)
    function = {"name": LOOK_UP["name"], "arguments": written}
    return {"id": content_hash([written, index])[:9], "type": "function", "function": function}


def _tool_says(call: dict[str, Any], content: str) -> Message:
    return {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": content}
