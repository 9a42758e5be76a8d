"""Auditing a model's chat template: what a task of several turns, or of tools, would trip over.

It tests what hone renders with: the `renderers` package for the models that it knows by name, else the model's own
template. Of the former it also says where the two differ.

    report = audit_template("Qwen/Qwen3-0.6B")
    report.names()  # {"think-stripping"}
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hone.audit.report import Check, Finding, Report, Shown, Verdict, worst
from hone.audit.template_rules import (
    ChatSubject,
    Conversation,
    Problem,
    call_of,
    first_problem,
    in_short,
    keeps_texts,
    parting,
    user,
)
from hone.errors import UserError
from hone.model.chat import PROBE, RendererParts, renderer_parts
from hone.model.rendering import TemplateRendering
from hone.model.tool_calls import Tool
from hone.types import Message

FAIL, WARN, NOTE = Verdict.FAIL, Verdict.WARN, Verdict.NOTE
OTHER = "give another template with model.chat_template"
APPENDS = "give a template that only appends with model.chat_template; tasks of one turn are not affected"
OPENS = "write the opening under `if add_generation_prompt` alone"
ADDS = "SFT teaches the empty thought, RL samples from a prompt without it: train on rows that think if you want any"
SPLIT = "add the token to the tokenizer (and train its embedding), or give the template of this tokenizer"
EOS = "add its id to eos_token_id in generation_config.json: hone stops at it anyway, other engines do not"
DIFFERS = (
    "engines that use the template see the other prompt; to train on the template, give it with model.chat_template"
)
# The verdict of a finding, unless a problem has its own; its title, with `{what}` for what showed it; the remedy.
KINDS: dict[str, tuple[Verdict, str, str]] = {
    "refuses": (NOTE, "the template refuses: {what}", f"keep to conversations that it takes, or {OTHER}"),
    "crashes": (FAIL, "rendering fails with {what}", OTHER),
    "loses-text": (FAIL, "what a message says is not written ({what})", OTHER),
    "reorders": (FAIL, "messages are written in another order ({what})", OTHER),
    "changes-text": (WARN, "what a message says is changed ({what})", "take the change out of the template"),
    "strips-text": (NOTE, "white space around a text is taken away ({what})", ""),
    "evaluates": (FAIL, "signs in a message are evaluated ({what})", "take format() and replace() out of the template"),
    "think-tags": (WARN, "thoughts with stray <think> tags are rewritten ({what})", "leave such rows out of SFT"),
    "think-stripping": (FAIL, "thoughts of earlier turns are taken out ({what})", OTHER),
    "rewrites-prompt": (FAIL, "a finished turn does not continue its prompt ({what})", APPENDS),
    "adds-thought": (NOTE, "an answer without a thought gets an empty one when it is written last", ADDS),
    "no-generation-prompt": (FAIL, "the prompt does not open the assistant's turn: the model has to do it", OPENS),
    "generation-prompt": (WARN, "add_generation_prompt changes what stands before the opening", OTHER),
    "opens-differently": (FAIL, "the template opens a thought after some messages only ({what})", OTHER),
    "always-opens": (WARN, "something follows the end of a finished turn", OPENS),
    "no-stop-token": (FAIL, "no token ends an assistant's turn", "write the end-of-turn token after the text"),
    "split-token": (FAIL, "the tokenizer splits {what}, which the template writes, or does not know it", SPLIT),
    "eos-differs": (WARN, "turns end with {what}, which the model's files do not name as an end", EOS),
    "stop-inside": (FAIL, "a token that ends generation stands inside of a turn ({what})", OTHER),
    "rewrites-history": (FAIL, "earlier turns are rewritten once an answer follows ({what})", APPENDS),
    "moves-white-space": (WARN, "white space moves once an answer follows ({what})", "RL trains on what was sampled"),
    "injection": (
        WARN,
        "text of a message becomes control tokens: {what}",
        "keep these texts out of prompts and tools",
    ),
    "tokenizer-changes-text": (WARN, "the tokenizer changes text ({what})", "compare answers in the same form"),
    "hides-tags": (
        FAIL,
        "{what} are special tokens, so graders do not see them",
        "make them tokens that are not special",
    ),
    "tools-unread": (WARN, "the template asks for tool calls in a form that hone does not read", OTHER),
    "tools-untaught": (NOTE, "the template knows no tools: hone lists them as Qwen does, in the system message", ""),
    "tool-listing": (WARN, "the list of tools lacks {what}", OTHER),
    "tool-calls": (FAIL, "a tool call is not read as it was written ({what})", OTHER),
    "tool-arguments": (
        WARN,
        "some arguments of tool calls are read otherwise than written ({what})",
        "do without them",
    ),
    "default-system": (
        NOTE,
        "without a system message the template writes one of its own",
        "set system_prompt for another",
    ),
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
SYSTEM, ASKED, ASKED_ON = {"role": "system", "content": "be brief."}, user("what is blue?"), user("and what is green?")
TEXTS = (
    *(
        " \n padded \n",
        "a  b\n\n\tc",
        "Mixed Case",
        "e\u0301 a\u0323",
        "\ufb01ne \u2460 \uff21",
        "\u05e9\u05dc \u200fa",
    ),
    *("\U0001f3b2 \U0001f469\u200d\U0001f680", "a\u00a0b\u200bc\u00add", "{{ 7 * 191 }} {% if a %} {# b #} {%- raw %}"),
    *("{0} {role} {} }}{{", "100% %s %(role)s", "\\n \\u0041 \\1 $x", "<b>&amp;</b> \"q\" 'r'"),
)
"""What templates and tokenizers are known to change: space, case, forms of Unicode, Jinja, formats, HTML."""
ARGUMENTS = (
    *('say "a" and \'b\' \\ "', "a\n\nb\n", "  a ", "\u00e9\U0001f3b2\u05e9", '{"a": {"b": [1, {}]}} }}'),
    *("</tool_call> <tool_call>", "</parameter></function>", "</think>", "<think>"),
)
"""Arguments of calls that may break how calls are written or read."""
SPECIAL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|\[/?[A-Z_]{3,}\]|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>")
"""What looks like a special token in what a template writes."""
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<tool_response>")
Checked = tuple[str, list[Problem]]
"""A summary, and what was found."""


def audit_template(
    name: str, chat_template: str | None = None, progress: Callable[[str], None] = lambda check: None
) -> Report:
    """Audit the chat template of a folder, hub id or `hone/tiny`, or `chat_template` (file or Jinja text).

    A problem is reported by the first check that meets it. Raises UserError where there is no template to audit: a
    model that isn't there, Jinja that can't be parsed.
    """
    start = time.perf_counter()
    parts = renderer_parts(name, chat_template)
    facts: dict[str, Any] = {
        "renders": "chat template" if isinstance(parts.rendering, TemplateRendering) else "renderers"
    }
    known: set[tuple[str, str]] = set()
    checks: list[Check] = []
    try:
        subject = ChatSubject(parts)
    except UserError as error:
        checks.append(Check("renders", "hone can't use this template", findings_from([_unusable(parts, error)])))
    else:
        facts |= {"digest": subject.renderer.digest(), "opened_by_template": subject.renderer.opened_by_template}
        order: dict[str, Callable[[], Checked]] = {
            "stop token": lambda: check_stop(subject, known),
            "renders": lambda: check_renders(subject),
            "turns": lambda: check_turns(subject, known),
            "tools": lambda: check_tools(subject),
            "round trips": lambda: check_round_trips(subject),
            "injection": lambda: check_injection(subject),
        }
        if not subject.by_template:
            order["agreement"] = lambda: check_agreement(subject, name)
        for title, check in order.items():
            progress(title)
            summary, problems = check()
            fresh = [problem for problem in problems if problem.key not in known]
            known |= {problem.key for problem in fresh}
            checks.append(Check(title, summary, findings_from(fresh)))
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
            Shown("", p.conversation.messages, p.what, None, "", f"{p.difference}\n{p.conversation.json()}")
            for _, p in found.values()
        )
        verdict = worst(verdict for verdict, _ in found.values())
        findings.append(Finding(name, verdict, title.format(what=", ".join(found)), remedy, tuple(found), shown[:6]))
    return tuple(findings)


def _what_works(found: Iterable[str]) -> tuple[str, str]:
    """Return the title of stripped thoughts, which says after which messages, and the remedy: what is not affected."""
    after = {"user": "a message of the user follows", "tool": "an answer of a tool follows", "answer": "it is finished"}
    after |= {"empty thoughts": "anything follows, if they are empty", "odd questions": "it answers <tool_response>"}
    works = {"answer": "tasks of one turn", "tool": "tools that answer after the last message of the user"}
    fine = " and ".join(works[what] for what in works if what not in found)
    when = ", or once ".join(after.get(what, what) for what in found)
    other = "for other tasks give a template that keeps thoughts with model.chat_template"
    return f"the template takes the thoughts out of a turn once {when}", f"{fine} work; {other}" if fine else other


def _unusable(parts: RendererParts, error: UserError) -> Problem:
    """Return the one problem of a template with which hone can't render at all."""
    asked, answer = user(PROBE), {"role": "assistant", "content": PROBE}
    try:
        parts.rendering.prompt_ids([asked])
    except UserError:
        return Problem("refuses", "a message of the user", Conversation([asked]), str(error), FAIL)
    try:
        parts.rendering.continuation_ids([asked], answer)
    except UserError:
        return Problem("rewrites-prompt", "answer", Conversation([asked, answer]), str(error))
    return Problem("no-stop-token", "answer", Conversation([asked, answer]), str(error))


def check_stop(subject: ChatSubject, known: set[tuple[str, str]]) -> Checked:
    """The token that ends a turn, and whether the special tokens that the template writes are tokens."""
    written = subject.text(Conversation([ASKED, subject.answer("the sky.")]))
    shortest = Conversation([user("a"), subject.answer("b")])
    found = []
    for text in dict.fromkeys(SPECIAL.findall(written)):
        ids = subject.encode(text)
        if subject.tokenizer.token_to_id(text) is None or len(ids) != 1:
            found.append(Problem("split-token", text, shortest, f"{text!r} becomes {len(ids)} tokens"))
            known |= {("no-stop-token", "answer"), ("stop-inside", "answer")}  # of the same cause
    found += _problems(subject, [shortest])
    end = subject.renderer.end_of_turn_id
    token = subject.tokenizer.id_to_token(end) or str(end)
    if end not in subject.declared:
        named = ", ".join(repr(subject.tokenizer.id_to_token(i)) for i in subject.declared) or "none"
        found.append(Problem("eos-differs", token, shortest, f"the files name {named}, the turn ends with {token!r}"))
    return f"turns end with {token}", found


def check_renders(subject: ChatSubject) -> Checked:
    """Which shapes of a conversation the template takes, and whether it writes all of them."""
    answer = subject.answer("the sky.")
    shapes: dict[str, tuple[list[Message], Verdict]] = {
        "an answer": ([ASKED, answer], FAIL),
        "a system message": ([SYSTEM, ASKED], WARN),
        "a second question": ([ASKED, answer, ASKED_ON], WARN),
        "two messages of the user in a row": ([ASKED, ASKED_ON], NOTE),
        "a system message in the middle": ([ASKED, answer, SYSTEM, ASKED_ON], NOTE),
        "an empty message": ([user("")], NOTE),
        "a message without content": ([ASKED, {"role": "assistant", "content": None}, ASKED_ON], NOTE),
        "content in parts": ([user([{"type": "text", "text": ASKED["content"]}])], NOTE),
    }
    found: list[Problem] = []
    for shape, (messages, verdict) in shapes.items():
        problem = first_problem(subject, Conversation(messages), (keeps_texts,))
        if problem is not None and problem.name == "refuses":
            found.append(replace(problem, what=shape, verdict=verdict))
        elif problem is not None:
            found.append(replace(problem, verdict=WARN) if shape == "content in parts" else problem)
        elif shape == "content in parts" and subject.text(Conversation(messages)) != subject.text(
            Conversation([ASKED])
        ):
            found.append(
                Problem("loses-text", "parts", Conversation(messages), "plain text is written otherwise", WARN)
            )
    # A system message that the template writes where there is none.
    head, _, tail = "".join(_text_or_empty(subject, [SYSTEM, ASKED])).partition(SYSTEM["content"])
    written = _text_or_empty(subject, [ASKED])
    own = written[len(head) : len(written) - len(tail)]
    if tail and written.startswith(head) and written.endswith(tail) and own.strip():
        found.append(Problem("default-system", "system", Conversation([ASKED]), f"it writes {own[:120]!r}"))
    refused = sum(problem.name == "refuses" for problem in found)
    return f"{len(shapes) - refused} of {len(shapes)} shapes of conversations are taken", found


def _text_or_empty(subject: ChatSubject, messages: list[Message]) -> str:
    try:
        return subject.text(Conversation(messages))
    except UserError:
        return ""


def check_turns(subject: ChatSubject, known: set[tuple[str, str]]) -> Checked:
    """The generation prompt, finished turns that continue it, and earlier turns that stay once others answer."""
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    stray = {"role": "assistant", "content": "<think>\nlook </think> up\n</think>\n\nthe sky."}
    conversations = [
        Conversation(messages)
        for messages in (
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
        )
    ]
    conversations += _tool_conversations(subject) if subject.takes_tools else []
    found = []
    for problem in _problems(subject, conversations):
        conversation = problem.conversation
        if problem.name == "refuses" and conversation.tools:
            calls = max(len(message.get("tool_calls", ())) for message in conversation.messages)
            shape, verdict = ("two calls in one turn", NOTE) if calls > 1 else ("calls of tools", WARN)
            problem = replace(problem, what=shape, verdict=verdict)
        elif problem.name == "refuses":
            shape = "a system message" if conversation.messages[0]["role"] == "system" else "a second question"
            if ("refuses", shape) in known:
                continue
        found.append(problem)
    return f"{len(conversations)} conversations", found


def _tool_conversations(subject: ChatSubject) -> list[Conversation]:
    call, other = call_of({"word": "blue"}), call_of({"word": "green"}, index=1)
    given, more = _tool_says(call, "a colour."), _tool_says(other, "one more colour.")
    calling = subject.answer("", calls=[call])
    answer, thought = subject.answer("a colour."), subject.answer("a colour.", thought="it said so")
    conversations = [
        [ASKED, calling, given],
        [ASKED, calling, given, answer],
        [ASKED, calling, given, subject.answer("", calls=[other]), more],
        [ASKED, calling, given, answer, ASKED_ON],
        [ASKED, subject.answer("", calls=[call, other]), given, more],
    ]
    if subject.speaks_beside_calls:
        conversations += [
            [ASKED, subject.answer("let me see.", calls=[call]), given],
            [ASKED, subject.answer("", thought="look it up", calls=[call]), given],
            [ASKED, subject.answer("", thought="", calls=[call]), given],
            [ASKED, subject.answer("", thought="look it up", calls=[call]), given, thought, ASKED_ON],
        ]
    return [Conversation(messages, TOOLS) for messages in conversations]


def _tool_says(call: dict[str, Any], content: str) -> Message:
    return {"role": "tool", "name": call["function"]["name"], "tool_call_id": call["id"], "content": content}


def check_tools(subject: ChatSubject) -> Checked:
    """Tools are listed, and calls with awkward arguments are read as they were written."""
    listed = Conversation([ASKED], TOOLS)
    if not subject.takes_tools:
        found = [Problem("tools-unread", "calls", listed, "hone refuses conversations with tools")]
        return "calls are not read", found
    try:
        written = subject.text(listed)
    except UserError as error:
        return "tools are refused", [Problem("refuses", "tools", listed, in_short(error))]
    found = []
    if isinstance(subject.rendering, TemplateRendering) and not subject.rendering.knows_tools:
        found.append(Problem("tools-untaught", "tools", listed, "the template does not read `tools`"))
    parts = {"name": "look_up", "description": "finds a word", "arguments": "most"}
    missing = [name for name, text in parts.items() if text not in written]
    found += [Problem("tool-listing", name, listed, f"{parts[name]!r} is not in the prompt") for name in missing]

    def calling(**arguments: Any) -> Conversation:
        return Conversation([ASKED, subject.answer("", calls=[call_of(arguments)])], TOOLS)

    bad = _problems(subject, [calling(word="blue", most=2)])
    awkward = _problems(subject, [] if bad else [calling(word=text) for text in ARGUMENTS])
    read = 0 if bad else len(ARGUMENTS) - len(awkward)
    return f"{read} of {len(ARGUMENTS)} awkward arguments are read as written", [*found, *bad, *awkward]


def check_round_trips(subject: ChatSubject) -> Checked:
    """Texts are written as they are, and come back from their ids as they were."""
    conversations = []
    for text in TEXTS:
        conversations += [Conversation([user(text)]), Conversation([{**SYSTEM, "content": text}, ASKED])]
        conversations.append(Conversation([ASKED, subject.answer(text)]))
    found = [problem for problem in _problems(subject, conversations) if problem.name != "refuses"]
    form = subject.rendering.format
    for tag in TAGS:
        if tag in subject.controls and not (form is not None and tag in form.tokens):
            shown = Conversation([user("a"), {"role": "assistant", "content": f"{tag}b"}])
            found.append(Problem("hides-tags", tag, shown, f"{tag!r} is left out of what is decoded"))
    return f"{len(TEXTS)} texts in messages of system, user and assistant", found


def check_injection(subject: ChatSubject) -> Checked:
    """Special tokens that a message's text can forge."""
    skeleton = subject.text(Conversation([ASKED, subject.answer("the sky."), ASKED_ON]))
    tokens = [t for t, i in subject.controls.items() if t in skeleton or i in subject.renderer.stop_ids]
    plain = subject.renderer.prompt_ids([user("a")])
    found = []
    for token in tokens:
        i, forged = subject.controls[token], Conversation([user(token)])
        if subject.renderer.prompt_ids(forged.messages).count(i) > plain.count(i):
            found.append(Problem("injection", token, forged, f"{token!r} in a text becomes the token of the same name"))
    return f"{len(found)} of {len(tokens)} control tokens can be written as text", found


def check_agreement(subject: ChatSubject, name: str) -> Checked:
    """Of a model that `renderers` writes: whether its own template writes the same."""
    try:
        own = renderer_parts(name, own=True).rendering
    except UserError as error:
        return f"the model's own template can't be read ({error})", []
    answer, thought = subject.answer("the sky."), subject.answer("the sky.", thought="look up")
    call = call_of({"word": "blue"})
    shapes = {
        "a question": Conversation([ASKED]),
        "a system message": Conversation([SYSTEM, ASKED]),
        "an answer": Conversation([ASKED, answer]),
        "a thought": Conversation([ASKED, thought]),
        "several turns": Conversation([ASKED, answer, ASKED_ON]),
        "tools": Conversation([SYSTEM, ASKED], TOOLS),
        "calls": Conversation([ASKED, subject.answer("", calls=[call]), _tool_says(call, "a colour")], TOOLS),
    }
    found = []
    for shape, conversation in shapes.items():
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


def _problems(subject: ChatSubject, conversations: Iterable[Conversation]) -> list[Problem]:
    problems = [first_problem(subject, conversation) for conversation in conversations]
    return [problem for problem in problems if problem is not None]
