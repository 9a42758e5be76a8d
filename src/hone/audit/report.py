"""What an audit says: checks, each with its findings, figures and texts to look at."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hone.types import Message


class Verdict(StrEnum):
    """How bad a finding is, the worst first. Only `fail` makes an audit fail."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"
    PASS = "pass"


_ORDER = list(Verdict)


@dataclass(frozen=True)
class Shown:
    """A completion that shows what a finding says, and what grading made of it. `reward` None: it could not be graded.

    `expected` is what it should have been worth, in words.
    """

    example_id: str
    completion: str | list[Message]
    outcome: str
    reward: float | None
    expected: str
    detail: str = ""

    @property
    def text(self) -> str:
        """The completion as text: of several turns each message in a paragraph, with its role."""
        return self.completion if isinstance(self.completion, str) else conversation_text(self.completion)


@dataclass(frozen=True)
class Finding:
    """One thing that an audit found.

    `name` is stable and says which kind it is: "false-negative", "inversion", "hangs" (docs/audit.md lists them);
    `what` names the texts that showed it, such as the restylings that lost a right answer, so that each can be allowed
    by `NAME` or `NAME:WHAT`. `title` is one sentence with the numbers; `remedy` says what to change.
    """

    name: str
    verdict: Verdict
    title: str
    remedy: str = ""
    what: tuple[str, ...] = ()
    shown: tuple[Shown, ...] = ()
    allowed: str | None = None
    """Why this is no failure of this task, if it was allowed."""


@dataclass(frozen=True)
class Check:
    """One part of an audit: what it looked at (`summary`, one line), what it found, and its numbers (JSON)."""

    name: str
    summary: str
    findings: tuple[Finding, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        return worst(finding.verdict for finding in self.findings)


@dataclass(frozen=True)
class Report:
    """An audit of `subject` (a task with its arguments, a chat template)."""

    subject: str
    checks: tuple[Check, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def findings(self) -> list[Finding]:
        """All findings, the worst first."""
        found = [finding for check in self.checks for finding in check.findings]
        return sorted(found, key=lambda finding: _ORDER.index(finding.verdict))

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in self.checks)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is Verdict.FAIL]

    def names(self, verdict: Verdict = Verdict.FAIL) -> set[str]:
        """The names of the findings of this verdict."""
        return {finding.name for finding in self.findings if finding.verdict is verdict}

    def record(self) -> dict[str, Any]:
        """The report as JSON. NaN and infinity are null."""
        return {
            "subject": self.subject,
            "verdict": str(self.verdict),
            **self.facts,
            "seconds": round(self.seconds, 3),
            "checks": [
                {
                    "name": check.name,
                    "verdict": str(check.verdict),
                    "summary": check.summary,
                    "figures": _finite(check.figures),
                    "findings": [_finding(finding) for finding in check.findings],
                }
                for check in self.checks
            ],
        }


def worst(verdicts: Any) -> Verdict:
    """The worst of the verdicts; `pass` if there are none."""
    return min(verdicts, key=_ORDER.index, default=Verdict.PASS)


def conversation_text(messages: Sequence[Message]) -> str:
    """Messages as text to read: each with its role, calls of tools as JSON."""
    paragraphs = []
    for message in messages:
        calls = [call.get("function") for call in message.get("tool_calls") or [] if isinstance(call, dict)]
        parts = [str(message.get("content") or ""), *(f"calls {json.dumps(c, ensure_ascii=False)}" for c in calls)]
        paragraphs.append(f"[{message.get('role')}] " + "\n".join(part for part in parts if part))
    return "\n".join(paragraphs)


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "verdict": str(finding.verdict),
        "title": finding.title,
        "remedy": finding.remedy,
        "what": list(finding.what),
        "allowed": finding.allowed,
        "shown": [
            {
                "example_id": shown.example_id,
                "completion": shown.completion,
                "outcome": shown.outcome,
                "reward": _finite(shown.reward),
                "expected": shown.expected,
                "detail": shown.detail,
            }
            for shown in finding.shown
        ],
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
