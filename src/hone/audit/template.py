"""Auditing a model's chat template: what a task of several turns, or of tools, would trip over.

It tests what hone renders with: the `renderers` package for the models that it knows by name, else the model's own
template. Of the former it also says where the two differ.

    report = audit_template("Qwen/Qwen3-0.6B")
    report.names()  # {"think-stripping"}
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from hone.audit.report import Check, Report, Verdict
from hone.audit.template_checks import (
    Known,
    check_agreement,
    check_fidelity,
    check_injection,
    check_renders,
    check_stop,
    check_tools,
    check_turns,
)
from hone.audit.template_findings import findings_of
from hone.audit.template_fuzz import check_fuzz
from hone.audit.template_subject import ChatSubject, Conversation, Problem, user
from hone.errors import UserError
from hone.model.chat import PROBE, RendererParts, renderer_parts
from hone.model.rendering import TemplateRendering
from hone.types import Message

Progress = Callable[[str, int, int], None]
"""Is told what is being done, how much of it is done, and of how much."""


def audit_template(
    name: str,
    chat_template: str | None = None,
    examples: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> Report:
    """The audit of the chat template of a folder, hub id or `hone/tiny`, or of `chat_template` (file or Jinja text).

    `examples` random conversations, a function of `seed`, follow the checks; 0 leaves them out. Raises UserError where
    there is no template to audit: a model that isn't there, Jinja that can't be parsed.
    """
    start = time.perf_counter()
    tell = progress or (lambda what, done, of: None)
    parts = renderer_parts(name, chat_template)
    facts = {
        "examples": examples,
        "seed": seed,
        "renders": "chat template" if isinstance(parts.rendering, TemplateRendering) else "renderers",
    }
    try:
        subject = ChatSubject(parts)
    except UserError as error:
        checks: list[Check] = [_unusable(parts, error)]
    else:
        facts |= {"digest": subject.renderer.digest(), "opened_by_template": subject.renderer.opened_by_template}
        known: Known = set()
        checks = _checks(subject, parts, name, known, tell)
        if examples:
            checks.append(check_fuzz(subject, known, examples, seed, tell))
    return Report(f"chat template of {name}", tuple(checks), facts, time.perf_counter() - start)


def _checks(subject: ChatSubject, parts: RendererParts, name: str, known: Known, tell: Progress) -> list[Check]:
    order: list[tuple[str, Callable[[], Check]]] = [
        ("stop token", lambda: check_stop(subject, parts, known)),
        ("renders", lambda: check_renders(subject, known)),
        ("turns", lambda: check_turns(subject, known)),
        ("tools", lambda: check_tools(subject, known)),
        ("fidelity", lambda: check_fidelity(subject, known)),
        ("injection", lambda: check_injection(subject, known)),
    ]
    if not subject.by_template:
        order.append(("agreement", lambda: _agreement(subject, name, known)))
    checks = []
    for i, (title, check) in enumerate(order):
        tell(title, i, len(order))
        checks.append(check())
    return checks


def _agreement(subject: ChatSubject, name: str, known: Known) -> Check:
    try:
        own = renderer_parts(name, own=True)
    except UserError as error:
        return Check("agreement", f"the model's own template can't be read ({error})")
    return check_agreement(subject, own, known)


def _unusable(parts: RendererParts, error: UserError) -> Check:
    """The one finding about a template with which hone can't render at all."""
    asked, said = user(PROBE), {"role": "assistant", "content": PROBE}
    problem = Problem("refuses", "a message of the user", Conversation([asked]), str(error), Verdict.FAIL)
    if _raises(lambda: parts.rendering.prompt_ids([asked])) is None:
        answered: list[Message] = [asked, said]
        rewrites = _raises(lambda: parts.rendering.continuation_ids([asked], said))
        kind = ("no-stop-token", "answer") if rewrites is None else ("rewrites-prompt", "answer")
        problem = replace(problem, name=kind[0], what=kind[1], conversation=Conversation(answered))
    return Check("renders", "hone can't use this template", findings_of([problem]))


def _raises(render: Callable[[], object]) -> UserError | None:
    try:
        render()
    except UserError as error:
        return error
    return None
