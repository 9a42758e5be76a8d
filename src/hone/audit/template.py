"""Auditing a model's chat template: faults that break a task of several turns, or of tools.

It tests what hone renders with: the `renderers` package for the models that it knows by name, else the model's own
template. For the former it also reports where the two differ.

    report = audit_template("Qwen/Qwen3-0.6B")
    report.names()  # {"think-stripping"}

A rule looks at one conversation and returns the first `Problem` that it sees, or None. Rules are ordered
so that each may rely on those before it, so one cause is one finding.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hone.audit.report import Check, Evidence, Finding, Report, Verdict, worst
from hone.errors import UserError
from hone.model.chat import THINK, ChatRenderer, RendererParts, renderer_parts
from hone.model.rendering import END_THINK, TemplateRendering, squeeze
from hone.model.tool_calls import HERMES, Tool
from hone.types import Message, content_hash

FAIL, WARN, NOTE = Verdict.FAIL, Verdict.WARN, Verdict.NOTE
OTHER = "give another template with model.chat_template"
APPENDS = "give a template that only appends with model.chat_template; tasks of one turn are not affected"
ADDS = "SFT teaches the empty thought, RL samples from a prompt without it: train on rows that think if you want any"
SPLIT = "add the token to the tokenizer (and train its embedding), or give the template of this tokenizer"
EOS = "add its id to eos_token_id in generation_config.json: hone stops at it anyway, other engines do not"
INJECTION = "keep these texts out of prompts and tools"
DIFFERS = (
    "engines that use the template see the other prompt; to train on the template, give it with model.chat_template"
)
# The verdict of a finding, unless a problem has its own; its title, with `{what}` for what showed it; the remedy.
KINDS: dict[str, tuple[Verdict, str, str]] = {
    "refuses": (NOTE, "the template refuses: {what}", f"keep to conversations that it takes, or {OTHER}"),
    "unusable": (FAIL, "hone can't use this template: {what}", OTHER),
    "crashes": (FAIL, "rendering fails with {what}", OTHER),
    "loses-text": (FAIL, "the text of a message is not written ({what})", OTHER),
    "reorders": (FAIL, "messages are written in another order ({what})", OTHER),
    "changes-text": (WARN, "the text of a message is changed ({what})", "take the change out of the template"),
    "strips-text": (NOTE, "white space around a text is taken away ({what})", ""),
    "think-stripping": (FAIL, "thoughts of earlier turns are taken out ({what})", OTHER),
    "rewrites-prompt": (FAIL, "a finished turn does not continue its prompt ({what})", APPENDS),
    "adds-thought": (NOTE, "an answer without a thought gets an empty one when it is written last", ADDS),
    "no-generation-prompt": (
        FAIL,
        "the prompt does not open the assistant's turn: the model has to do it",
        "write the opening under `if add_generation_prompt` alone",
    ),
    "opens-differently": (FAIL, "the template opens a thought after some messages only ({what})", OTHER),
    "no-stop-token": (FAIL, "no token ends an assistant's turn", "write the end-of-turn token after the text"),
    "split-token": (FAIL, "the tokenizer splits {what}, which the template writes, or does not know it", SPLIT),
    "eos-differs": (WARN, "turns end with {what}, which the model's files do not name as an end", EOS),
    "stop-inside": (FAIL, "a token that ends generation stands inside of a turn ({what})", OTHER),
    "rewrites-history": (FAIL, "earlier turns are rewritten once an answer follows ({what})", APPENDS),
    "moves-white-space": (WARN, "white space moves once an answer follows ({what})", "RL trains on what was sampled"),
    "injection": (WARN, "text of a message becomes control tokens: {what}", INJECTION),
    "tokenizer-changes-text": (WARN, "the tokenizer changes text ({what})", "compare answers in the same form"),
    "hides-tags": (FAIL, "{what} are special tokens, so graders do not see them", "make them ordinary tokens"),
    "tools-unread": (WARN, "the template asks for tool calls in a form that hone does not read", OTHER),
    "tools-untaught": (NOTE, "the template knows no tools: hone lists them as Qwen does, in the system message", ""),
    "tool-listing": (WARN, "the list of tools lacks {what}", OTHER),
    "tool-calls": (FAIL, "a tool call is not read as it was written ({what})", OTHER),
    "default-system": (NOTE, "without a system message the template writes its own", "set system_prompt for another"),
    "renderer-differs": (WARN, "the renderers package and the model's own template differ ({what})", DIFFERS),
}
TOOLS: list[Tool] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "finds a word",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "most": {"type": "integer"}},
                "required": ["word"],
            },
        },
    }
]


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


SYSTEM, ASKED, ASKED_ON = {"role": "system", "content": "be brief."}, user("what is blue?"), user("and what is green?")
TEXTS = {
    "padded": " \n padded \n",
    "white space": "a  b\n\n\tc",
    "case": "Mixed Case",
    "Unicode": "e\u0301 \ufb01ne \u2460 \U0001f469\u200d\U0001f680 a\u00a0b",
    "Jinja": "{{ 7 * 191 }} {% if a %} {# b #} {%- raw %}",
    "formats": "{0} {role} {} 100% %s %(role)s \\n \\u0041 $x",
    "HTML": "<b>&amp;</b> \"q\" 'r'",
}
"""Texts that templates and tokenizers are known to change."""
SPECIAL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|\[/?[A-Z_]{3,}\]|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>")
"""A pattern of special tokens in a template's text."""
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<tool_response>")
_EMPTY_THOUGHT = re.compile(r"\s*(?:<think>)?\s*</think>\s*")


@dataclass(frozen=True)
class Conversation:
    """Messages, with calls as `tool_calls` beside the text, and the tools that they may call."""

    messages: list[Message]
    tools: list[Tool] | None = None

    @property
    def finished(self) -> bool:
        return self.messages[-1].get("role") == "assistant"

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answer, of a finished conversation."""
        return self.messages[:-1]

    def with_message(self, index: int, message: Message) -> Conversation:
        """Return the same with another message in one place."""
        return replace(self, messages=[*self.messages[:index], message, *self.messages[index + 1 :]])

    def json(self) -> str:
        record: dict[str, Any] = {"messages": self.messages} | ({"tools": self.tools} if self.tools else {})
        return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Problem:
    """A finding's name and `what`, the conversation that shows it, the difference in words, and its severity, if
    unusual for the name.
    """

    name: str
    what: str
    conversation: Conversation
    difference: str
    verdict: Verdict | None = None


Rule = Callable[["ChatSubject", Conversation], Problem | None]


def call_of(arguments: dict[str, Any], index: int = 0) -> dict[str, Any]:
    """Return a call as hone keeps it; its id is nine letters and digits."""
    written = json.dumps(arguments, ensure_ascii=False)
    function = {"name": "look_up", "arguments": written}
    return {"id": content_hash([written, index])[:9], "type": "function", "function": function}


def in_short(error: UserError) -> str:
    """Return a refusal without hone's remedy."""
    return re.split(r"; give a template|: give a template|: change the messages", str(error))[0]


class ChatSubject:
    """A renderer with what the checks ask of it.

    `declared`: the ids at which the model's files end generation. `controls`: the special tokens by their text.
    """

    def __init__(self, parts: RendererParts) -> None:
        self.renderer = ChatRenderer(*parts)
        self.tokenizer = parts.tokenizer
        self.rendering = parts.rendering
        self.declared = parts.stop_ids
        added = self.tokenizer.get_added_tokens_decoder()
        self.controls = {token.content: i for i, token in sorted(added.items()) if token.special}
        self._texts: dict[tuple[str, bool], str] = {}

    @property
    def by_template(self) -> bool:
        """True if the model's chat template renders, not the `renderers` package."""
        return isinstance(self.rendering, TemplateRendering)

    @property
    def takes_tools(self) -> bool:
        return self.rendering.format is not None or not self.by_template

    def answer(self, text: str, thought: str | None = None, calls: Sequence[dict[str, Any]] = ()) -> Message:
        """Return an assistant's turn, with a thought if the template opens one."""
        if thought is None and self.renderer.opened_by_template:
            thought = "hm"
        content = text if thought is None else f"<think>\n{thought}\n</think>\n\n{text}"
        return {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})

    def text(self, conversation: Conversation, opens: bool | None = None) -> str:
        """Return the conversation as the template writes it, ready for the next turn unless it is finished."""
        opens = not conversation.finished if opens is None else opens
        key = (conversation.json(), opens)
        if key not in self._texts:
            self._texts[key] = self.renderer.text(conversation.messages, opens, conversation.tools)
        return self._texts[key]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def find(self, written: str, text: str, start: int = 0) -> int:
        """Return where a text stands as it is, or as JSON has it within quotes; -1 if nowhere."""
        forms = [text, json.dumps(text, ensure_ascii=False)[1:-1], json.dumps(text)[1:-1]]
        if not self.by_template:  # known by its ids alone: what the tokenizer changes is another finding
            forms.append(self.decode(self.encode(text)))
        return min((at for form in forms if (at := written.find(form, start)) >= 0), default=-1)

    def has_controls(self, *texts: Any) -> bool:
        """Return True if texts hold a special token's text."""
        return any(token in str(text) for token in self.controls for text in texts)

    def sampled_ids(self, message: Message, tools: list[Tool] | None) -> list[int]:
        """Return the ids that a model samples to say this."""
        text = (message.get("content") or "").removeprefix(self.renderer.opened_by_template)
        if calls := message.get("tool_calls"):
            text += ("\n" if text and not text.endswith("\n") else "") + self._written_calls(calls, tools)
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
            if not answers:
                break
            at += 1 + len(answers)
            called = iter([call["id"] for call in turn.get("tool_calls", [])])
            for i, answer in enumerate(answers):
                if answer["role"] == "tool" and (known := next(called, None)) is not None:
                    answers[i] = {**answer, "tool_call_id": known}
            kept = [*kept, turn]
            ids = [*ids, *own, *self.renderer.bridge_ids(kept, answers, tools)]
            kept += answers
        return ids, kept

    def _written_calls(self, calls: list[dict[str, Any]], tools: list[Tool] | None) -> str:
        """Return calls as the model's family writes them."""
        if self.rendering.format is HERMES:
            bodies = [
                f'{{"name": {json.dumps(call["function"]["name"])}, "arguments": {call["function"]["arguments"]}}}'
                for call in calls
            ]
            return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
        turn: Message = {"role": "assistant", "content": "", "tool_calls": calls}
        ids = self.renderer.completion_ids([user("a")], turn, tools)
        written = self.decode(ids[:-1] if ids[-1] in self.renderer.stop_ids else ids)
        return _EMPTY_THOUGHT.sub("", written, count=1).strip() if _EMPTY_THOUGHT.match(written) else written.strip()


def first_problem(subject: ChatSubject, conversation: Conversation, rules: Iterable[Rule]) -> Problem | None:
    """Return the problem of the first rule that does not hold; None if all do."""
    for rule in rules:
        try:
            problem = rule(subject, conversation)
        except UserError as error:
            roles = ", ".join(str(message["role"]) for message in conversation.messages)
            problem = Problem("refuses", f"a conversation of {roles}", conversation, in_short(error))
        except Exception as error:  # what a template or a package raises is what is looked for
            problem = Problem("crashes", type(error).__name__, conversation, f"{type(error).__name__}: {error}")
        if problem is not None:
            return problem
    return None


def keeps_texts(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that texts of messages are written unchanged and in order; `continues_history` does earlier answers."""
    written, at = subject.text(conversation), 0
    for index, message in enumerate(conversation.messages):
        content = message.get("content")
        if isinstance(content, list):
            plain = {**message, "content": "".join(part["text"] for part in content)}
            if written != subject.text(conversation.with_message(index, plain)):
                return Problem("loses-text", "parts", conversation, "plain text is written otherwise", WARN)
        elif content and (message["role"] != "assistant" or index == len(conversation.messages) - 1):
            found = subject.find(written, content, at)
            if found < 0:
                return _lost_text(subject, conversation, index, content, written)
            at = found
    return None


def _lost_text(subject: ChatSubject, conversation: Conversation, index: int, text: str, written: str) -> Problem:
    """Say why a text is missing in the rendered text."""
    message = conversation.messages[index]
    role = str(message["role"])
    difference = f"{text[:80]!r} of {role} is not in {written[-160:]!r}"
    plain = conversation.with_message(index, {**message, "content": "plain words"})
    if "plain words" not in subject.text(plain):
        return Problem("loses-text", role, conversation, difference)
    if subject.find(written, text) >= 0:
        return Problem("reorders", role, conversation, difference)
    if subject.find(written, text.strip()) >= 0:
        return Problem("strips-text", role, conversation, difference)
    if role == "assistant" and END_THINK in text:
        return Problem("think-stripping", "answer", conversation, difference)
    return Problem("changes-text", role, conversation, difference, FAIL if role == "assistant" else None)


def opens_a_turn(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that the opening of the assistant's turn only appends, and opens a thought if hone knows that it does."""
    if conversation.finished:
        return None
    prompt, history = subject.text(conversation, opens=True), subject.text(conversation, opens=False)
    if not prompt.startswith(history):
        return Problem("rewrites-prompt", "opening", conversation, parting(history, prompt))
    opening = prompt[len(history) :]
    begun = opening[opening.rfind(THINK) :] if THINK in opening else ""
    begun = "" if END_THINK in begun else begun
    known = subject.renderer.opened_by_template
    if history == prompt or begun == known:
        return None
    difference = f"it opens {begun!r} here, and {known!r} after one message of user"
    return Problem("opens-differently", str(conversation.messages[-1]["role"]), conversation, difference)


def continues(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that a finished turn continues its prompt with the answer, and nothing before it."""
    if not conversation.finished:
        return None
    answer = conversation.messages[-1]
    prompt = subject.text(Conversation(conversation.prompt, conversation.tools), opens=True)
    full = subject.text(conversation)
    if not full.startswith(prompt):
        shape = "calls" if answer.get("tool_calls") else "thought" if END_THINK in answer["content"] else "answer"
        return Problem("rewrites-prompt", shape, conversation, parting(prompt, full))
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
    answer = conversation.messages[-1]
    if not conversation.finished or subject.has_controls(answer):
        return None
    ids = subject.rendering.continuation_ids(conversation.prompt, answer, conversation.tools)
    stops = [i for i, token in enumerate(ids) if token in subject.renderer.stop_ids]
    if not stops:
        return Problem("no-stop-token", "answer", conversation, f"the turn is {subject.decode(ids)[-60:]!r}")
    inside = subject.decode(ids[: stops[0]])
    text = answer["content"]
    called = subject.renderer.before_calls(text) != text  # then what is in `tool_calls` is not written again
    names = [] if called else [call["function"]["name"] for call in answer.get("tool_calls", [])]
    spoken = subject.decode(subject.encode(text.removeprefix(subject.renderer.opened_by_template)))
    if squeeze(spoken) not in squeeze(inside) or any(name not in inside for name in names):
        ended = subject.decode(ids[: stops[0] + 1])
        return Problem("stop-inside", "calls" if names else "answer", conversation, f"the turn ends after {ended!r}")
    return None


def calls_are_read(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that calls are read with the arguments that they had, as the template and as a model writes them."""
    answer = conversation.messages[-1]
    calls = answer.get("tool_calls")
    if not conversation.finished or not calls or subject.has_controls(answer["content"], calls):
        return None
    try:
        subject.renderer.completion_ids(conversation.prompt, answer, conversation.tools)
    except UserError as error:
        return Problem("tool-calls", "any", conversation, in_short(error))
    ids = subject.sampled_ids(answer, conversation.tools)
    read = subject.renderer.message(ids, conversation.tools).get("tool_calls", [])
    kept, had = (
        [(call["function"]["name"], json.loads(call["function"]["arguments"] or "null")) for call in some]
        for some in (read, calls)
    )
    if kept == had:
        return None
    return Problem("tool-calls", "any", conversation, f"{subject.decode(ids)[:120]!r} is read as {kept}")


def continues_history(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that sampled turns, bridged to their answers, equal the conversation as the template writes it whole."""
    messages = conversation.prompt if conversation.finished else conversation.messages
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or not _is_sound(subject) or subject.has_controls(*(messages[i] for i in turns)):
        return None
    for i in turns:
        earlier = Conversation(messages[: i + 1], conversation.tools)
        problem = first_problem(subject, earlier, (keeps_texts, continues, ends, calls_are_read))
        if problem is not None and problem.name not in ("adds-thought", "refuses"):
            return problem
    for count in (*turns[1:], len(messages)):  # the shortest that shows it
        asked = Conversation(messages[:count], conversation.tools)
        if (problem := _rewritten(subject, asked)) is not None:
            return problem
    return None


def _rewritten(subject: ChatSubject, asked: Conversation) -> Problem | None:
    """Return how the ids of training and the template's writing of earlier turns differ; None if they don't."""
    answers = str(asked.messages[-1]["role"])
    try:
        ids, kept = subject.play(asked)
    except UserError as error:
        sampled, whole, difference = "", "", in_short(error)
    else:
        if subject.rendering.format is None and any(message.get("tool_calls") for message in kept):
            return None  # calls are written anew, with other ids and white space than the model's
        sampled, whole = subject.decode(ids), subject.decode(subject.renderer.prompt_ids(kept, asked.tools))
        if sampled == whole:
            return None
        difference = parting(sampled, whole, "what was sampled", "the template")
        if squeeze(sampled) == squeeze(whole):
            return Problem("moves-white-space", answers, asked, difference)
    whole = squeeze(subject.text(asked, opens=True))
    texts = [message["content"] for message in asked.messages if message["role"] == "assistant"]
    kept_answers = all(squeeze(text.split(END_THINK)[-1]) in whole for text in texts)
    if kept_answers and any(END_THINK in text and squeeze(text) not in whole for text in texts):
        return Problem("think-stripping", answers, asked, difference)
    return Problem("rewrites-history", answers, asked, difference)


@functools.lru_cache(maxsize=8)
def _is_sound(subject: ChatSubject) -> bool:
    """Return True if one short turn continues its prompt and ends: if not, several cannot be judged."""
    shortest = Conversation([user("a"), subject.answer("b")])
    problem = first_problem(subject, shortest, (keeps_texts, continues, ends))
    return problem is None or problem.name == "adds-thought"


def round_trips(subject: ChatSubject, conversation: Conversation) -> Problem | None:
    """Check that text that a model wrote comes back unchanged from its ids."""
    text = conversation.messages[-1].get("content") or ""
    if not conversation.finished or subject.has_controls(text):
        return None
    back = subject.decode(subject.encode(text))
    if back == text:
        return None
    what = next((name for name, other in TEXTS.items() if other in text), "letters")
    return Problem("tokenizer-changes-text", what, conversation, f"{text!r} comes back as {back!r}")


RULES: tuple[Rule, ...] = (
    keeps_texts,
    opens_a_turn,
    continues,
    ends,
    calls_are_read,
    continues_history,
    round_trips,
)


def parting(before: str, after: str, one: str = "the prompt", other: str = "the finished turn") -> str:
    """Say where two texts part."""
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(at - 20, 0)
    return f"{one} has {before[start : at + 40]!r} where {other} has {after[start : at + 40]!r}"


Checked = tuple[str, list[Problem]]
"""A summary, and the problems found."""


def audit_template(
    name: str, chat_template: str | None = None, progress: Callable[[str], None] = lambda check: None
) -> Report:
    """Audit the chat template of a folder, hub id or `hone/tiny`, or `chat_template` (file or Jinja text).

    Raises UserError if there is no template to audit: the model is missing, or the Jinja can't be parsed.
    """
    start = time.perf_counter()
    parts = renderer_parts(name, chat_template)
    facts: dict[str, Any] = {
        "renders": "chat template" if isinstance(parts.rendering, TemplateRendering) else "renderers"
    }
    split = False
    checks: list[Check] = []
    try:
        subject = ChatSubject(parts)
    except UserError as error:
        problem = Problem("unusable", in_short(error), Conversation([ASKED]), str(error))
        checks.append(Check("tokens", "nothing could be rendered", findings_from([problem])))
    else:
        facts |= {"digest": subject.renderer.digest(), "opened_by_template": subject.renderer.opened_by_template}
        order: dict[str, Callable[[], Checked]] = {
            "tokens": lambda: check_tokens(subject),
            "conversations": lambda: check_conversations(subject),
            "tools": lambda: check_tools(subject),
        }
        if not subject.by_template:
            order["agreement"] = lambda: check_agreement(subject, name)
        for title, check in order.items():
            progress(title)
            summary, problems = check()
            split = split or any(problem.name == "split-token" for problem in problems)
            if split:  # the cause of what follows
                problems = [problem for problem in problems if problem.name not in ("no-stop-token", "stop-inside")]
            checks.append(Check(title, summary, findings_from(problems)))
    return Report(f"chat template of {name}", tuple(checks), facts, time.perf_counter() - start)


def findings_from(problems: Iterable[Problem]) -> tuple[Finding, ...]:
    """Return one finding for each name, with the worst conversation for each `what`."""
    by_name: dict[str, dict[str, tuple[Verdict, Problem]]] = {}
    for problem in problems:
        verdict = problem.verdict or KINDS[problem.name][0]
        found = by_name.setdefault(problem.name, {})
        if problem.what not in found or worst((verdict, found[problem.what][0])) != found[problem.what][0]:
            found[problem.what] = verdict, problem
    findings = []
    for name, found in by_name.items():
        _, title, remedy = KINDS[name]
        if name == "think-stripping":
            title, remedy = _what_works(found)
        shown = tuple(
            Evidence("", p.conversation.messages, p.what, None, "", f"{p.difference}\n{p.conversation.json()}")
            for _, p in found.values()
        )
        verdict = worst(verdict for verdict, _ in found.values())
        findings.append(Finding(name, verdict, title.format(what=", ".join(found)), remedy, tuple(found), shown[:6]))
    return tuple(findings)


def _what_works(found: Iterable[str]) -> tuple[str, str]:
    """Return the title of stripped thoughts, with the messages before them, and the remedy: what is not affected."""
    after = {"user": "a message of the user follows", "tool": "an answer of a tool follows", "answer": "it is finished"}
    works = {"answer": "tasks of one turn", "tool": "tools that answer after the last message of the user"}
    fine = " and ".join(works[what] for what in works if what not in found)
    when = ", or once ".join(after.get(what, what) for what in found)
    other = "for other tasks give a template that keeps thoughts with model.chat_template"
    return f"the template takes the thoughts out of a turn once {when}", f"{fine} work; {other}" if fine else other


def check_tokens(subject: ChatSubject) -> Checked:
    """Check the token that ends a turn, and special tokens: those written, those texts forge, those graders miss."""
    shortest = Conversation([user("a"), subject.answer("b")])
    written = subject.text(Conversation([ASKED, subject.answer("the sky."), ASKED_ON]))
    found = []
    for text in dict.fromkeys(SPECIAL.findall(written)):
        ids = subject.encode(text)
        if subject.tokenizer.token_to_id(text) is None or len(ids) != 1:
            found.append(Problem("split-token", text, shortest, f"{text!r} becomes {len(ids)} tokens"))
    end = subject.renderer.end_of_turn_id
    token = subject.tokenizer.id_to_token(end) or str(end)
    if end not in subject.declared:
        named = ", ".join(repr(subject.tokenizer.id_to_token(i)) for i in subject.declared) or "none"
        found.append(Problem("eos-differs", token, shortest, f"the files name {named}, the turn ends with {token!r}"))
    plain = subject.renderer.prompt_ids([user("a")])
    form = subject.rendering.format
    for text, i in subject.controls.items():
        forged = Conversation([user(text)])
        stands = text in written or i in subject.renderer.stop_ids
        if stands and subject.renderer.prompt_ids(forged.messages).count(i) > plain.count(i):
            found.append(Problem("injection", text, forged, f"{text!r} in a text becomes the token of that name"))
        if text in TAGS and not (form is not None and text in form.tokens):
            shown = Conversation([user("a"), {"role": "assistant", "content": f"{text}b"}])
            found.append(Problem("hides-tags", text, shown, f"{text!r} is left out of what is decoded"))
    return f"turns end with {token}", found


def conversations(subject: ChatSubject) -> Iterator[tuple[str, Conversation, Verdict | None]]:
    """Yield the trials: name, conversation, and severity if the template refuses it. None: another conversation shows
    that.
    """
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    yield "an answer", Conversation([user("a"), subject.answer("b")]), FAIL
    plain: dict[str, tuple[Verdict | None, list[Message]]] = {
        "a question": (FAIL, [ASKED]),
        "a system message": (WARN, [SYSTEM, ASKED]),
        "a system message and an answer": (None, [SYSTEM, ASKED, answer]),
        "a thought": (WARN, [ASKED, thought]),
        "a second question": (WARN, [ASKED, answer, ASKED_ON]),
        "a second answer": (None, [ASKED, answer, ASKED_ON, answer]),
        "a thought before a second question": (None, [ASKED, thought, ASKED_ON]),
        "a thought before two questions": (None, [ASKED, thought, ASKED_ON, answer, ASKED_ON]),
        "two messages of the user in a row": (NOTE, [ASKED, ASKED_ON]),
        "a system message in the middle": (NOTE, [ASKED, answer, SYSTEM, ASKED_ON]),
        "an empty message": (NOTE, [user("")]),
        "a message without content": (NOTE, [ASKED, {"role": "assistant", "content": None}, ASKED_ON]),
        "content in parts": (NOTE, [user([{"type": "text", "text": ASKED["content"]}])]),
    }
    for name, (verdict, messages) in plain.items():
        yield name, Conversation(messages), verdict
    for text in TEXTS.values():
        yield "a text", Conversation([user(text)]), None
        yield "a text", Conversation([{**SYSTEM, "content": text}, ASKED]), None
        yield "a text", Conversation([ASKED, subject.answer(text)]), None
    if not subject.takes_tools:
        return
    call, other = call_of({"word": "blue"}), call_of({"word": "green"}, index=1)
    awkward = call_of({"word": 'say "a" and \'b\' \\ "\n\n {"a": [1, {}]} }}', "most": 2})
    given, more = _tool_says(call, "a colour."), _tool_says(other, "one more colour.")
    calling = subject.answer("", calls=[call])
    answer, thought = subject.answer("a colour."), subject.answer("a colour.", thought="it said so")
    called = [
        [ASKED, calling],
        [ASKED, subject.answer("", calls=[awkward])],
        [ASKED, calling, given],
        [ASKED, calling, given, answer],
        [ASKED, calling, given, subject.answer("", calls=[other]), more],
        [ASKED, calling, given, answer, ASKED_ON],
    ]
    if subject.rendering.format is not None and subject.rendering.format.name != "llama":
        thinking = subject.answer("", thought="look it up", calls=[call])
        called += [
            [ASKED, subject.answer("let me see.", calls=[call]), given],
            [ASKED, thinking, given],
            [ASKED, thinking, given, thought, ASKED_ON],
        ]
    for messages in called:
        yield "calls of tools", Conversation(messages, TOOLS), WARN
    two = [ASKED, subject.answer("", calls=[call, other]), given, more]
    yield "two calls in one turn", Conversation(two, TOOLS), NOTE


def _tool_says(call: dict[str, Any], content: str) -> Message:
    return {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": content}


def check_conversations(subject: ChatSubject) -> Checked:
    """Check that every conversation is taken, written as it is, and continued."""
    tried, found = list(conversations(subject)), []
    for what, conversation, verdict in tried:
        of_text = all(isinstance(message.get("content"), str) for message in conversation.messages)
        problem = first_problem(subject, conversation, RULES if of_text else (keeps_texts,))
        if problem is not None and problem.name == "refuses":
            problem = replace(problem, what=what, verdict=verdict) if verdict else None
        if problem is not None:
            found.append(problem)
    refused = sum(problem.name == "refuses" for problem in found)
    return f"{len(tried) - refused} of {len(tried)} conversations are taken", found


def check_tools(subject: ChatSubject) -> Checked:
    """Check that tools are listed, and that no system message is made up."""
    found = []
    asked = subject.text(Conversation([ASKED]))
    with suppress(UserError):
        head, _, tail = subject.text(Conversation([SYSTEM, ASKED])).partition(SYSTEM["content"])
        own = asked[len(head) : len(asked) - len(tail)]
        if tail and asked.startswith(head) and asked.endswith(tail) and own.strip():
            found.append(Problem("default-system", "system", Conversation([ASKED]), f"it writes {own[:120]!r}"))
    listed = Conversation([ASKED], TOOLS)
    if not subject.takes_tools:
        found.append(Problem("tools-unread", "calls", listed, "hone refuses conversations with tools"))
        return "calls are not read", found
    try:
        written = subject.text(listed)
    except UserError as error:
        return "tools are refused", [*found, Problem("refuses", "tools", listed, in_short(error))]
    if isinstance(subject.rendering, TemplateRendering) and not subject.rendering.knows_tools:
        found.append(Problem("tools-untaught", "tools", listed, "the template does not read `tools`"))
    parts = {"name": "look_up", "description": "finds a word", "arguments": "most"}
    missing = [name for name, text in parts.items() if text not in written]
    found += [Problem("tool-listing", name, listed, f"{parts[name]!r} is not in the prompt") for name in missing]
    return f"{len(parts) - len(missing)} of {len(parts)} parts of a tool are listed", found


def check_agreement(subject: ChatSubject, name: str) -> Checked:
    """Check that the model's own template writes the same as `renderers` does."""
    try:
        own = renderer_parts(name, own=True).rendering
    except UserError as error:
        return f"the model's own template can't be read ({error})", []
    shapes = [(what, one) for what, one, refused in conversations(subject) if refused in (FAIL, WARN)]
    found = []
    for shape, conversation in shapes:
        texts = []
        for rendering in (subject.rendering, own):
            try:
                texts.append(rendering.text(conversation.messages, not conversation.finished, conversation.tools))  # type: ignore[attr-defined]
            except Exception as error:  # one refuses what the other takes
                texts.append(f"({type(error).__name__}: {error})")
        if texts[0] != texts[1]:
            difference = parting(texts[0], texts[1], "renderers", "the template")
            found.append(Problem("renderer-differs", shape, conversation, difference))
    return f"{len(shapes) - len(found)} of {len(shapes)} shapes are written alike", found
