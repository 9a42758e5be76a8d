"""Audits a model's chat template: an answer must continue its prompt, and be decoded from its ids unchanged."""

from __future__ import annotations

import time

from hone.errors import UserError
from hone.extensions.audit.report import Check, Finding, Report, Verdict
from hone.model.chat import THINK, load_renderer
from hone.model.rendering import END_THINK, squeeze
from hone.types import Message

QUESTION: Message = {"role": "user", "content": "What is blue?"}
ANSWER = "The sky."


def audit_template(name: str, chat_template: str | None = None) -> Report:
    """Audit the chat template of model `name` (folder, hub id, `hone/tiny`), or `chat_template` (file or Jinja text).

    Raises UserError if the model is missing, or hone can't load the template.
    """
    start = time.perf_counter()
    renderer, problem = load_renderer(name, chat_template), ""
    text = f"{THINK}\nhm\n{END_THINK}\n\n{ANSWER}" if renderer.opened_by_template else ANSWER
    try:
        read = renderer.message(renderer.completion_ids([QUESTION], text))["content"]
        if squeeze(read) not in (squeeze(text), squeeze(THINK + END_THINK + text)):  # it may add an empty thought
            problem = f"the answer {text!r} is read back as {read!r}: give another template with model.chat_template"
    except UserError as error:
        problem = str(error)
    findings = (Finding("round-trip", Verdict.FAIL, problem),) if problem else ()
    check = Check("round-trip", "a question and its answer", findings)
    facts = {"digest": renderer.digest(), "opened_by_template": renderer.opened_by_template}
    return Report(f"chat template of {name}", (check,), facts, time.perf_counter() - start)
