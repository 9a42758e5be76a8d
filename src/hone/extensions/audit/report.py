"""An audit's report: its checks with findings, figures and texts. It is shown as JSON, on a terminal, or as HTML."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pydantic_core
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hone.terminal import printable
from hone.types import Message


class Verdict(StrEnum):
    """The severity of a finding, the worst first. Only `fail` makes an audit fail."""

    FAIL = "fail"
    WARN = "warn"
    NOTE = "note"
    PASS = "pass"


_ORDER = list(Verdict)
_STYLES = {Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.NOTE: "cyan", Verdict.PASS: "green"}
_LONGEST, _LONGEST_ON_PAGE = 400, 4000
"""Maximum characters of a text on a terminal and on an HTML page; `--json` shows all."""


@dataclass(frozen=True)
class Evidence:
    """A completion that shows a finding. `reward` is None if grading failed. `expected` says what it deserves."""

    example_id: str
    completion: str | list[Message]
    outcome: str
    reward: float | None
    expected: str
    detail: str = ""

    @property
    def text(self) -> str:
        """The completion as text; for several turns, each message with its role, and tool calls as JSON."""
        if isinstance(self.completion, str):
            return self.completion
        paragraphs = []
        for message in self.completion:
            calls = [json.dumps(call.get("function"), ensure_ascii=False) for call in message.get("tool_calls") or []]
            parts = [str(message.get("content") or ""), *(f"calls {call}" for call in calls)]
            paragraphs.append(f"[{message.get('role')}] " + "\n".join(part for part in parts if part))
        return "\n".join(paragraphs)


@dataclass(frozen=True)
class Finding:
    """One thing that an audit found.

    `name` is stable (docs/rewards.md lists the failures). `what` names the texts that showed the finding, such as
    restylings. In `audit_allows`, the key `NAME` allows the finding, and `NAME:WHAT` allows one of these texts. `title`
    is a sentence with numbers, and `remedy` says what to change.
    """

    name: str
    verdict: Verdict
    title: str
    remedy: str = ""
    what: tuple[str, ...] = ()
    shown: tuple[Evidence, ...] = ()
    allowed: str | None = None
    """Reason why the finding is allowed; None if it is not allowed."""


@dataclass(frozen=True)
class Check:
    """One part of an audit: what it looked at (one line), what it found, and its numbers (JSON)."""

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
        found = [finding for check in self.checks for finding in check.findings]
        return sorted(found, key=lambda finding: _ORDER.index(finding.verdict))

    @property
    def verdict(self) -> Verdict:
        return worst(check.verdict for check in self.checks)

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is Verdict.FAIL]

    def names(self, verdict: Verdict = Verdict.FAIL) -> set[str]:
        return {finding.name for finding in self.findings if finding.verdict is verdict}

    def record(self) -> dict[str, Any]:
        """Return the report as JSON. NaN and infinity are null."""
        checks = [{"verdict": check.verdict, **vars(check)} for check in self.checks]
        record = {"subject": self.subject, "verdict": self.verdict, **self.facts, "seconds": round(self.seconds, 3)}
        return pydantic_core.to_jsonable_python({**record, "checks": checks}, inf_nan_mode="null")


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=_ORDER.index, default=Verdict.PASS)


def listed(names: Sequence[str], most: int = 6) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def report_page(report: Report) -> str:
    """Return the report as one HTML file. Texts of models and data are escaped."""
    console = Console(record=True, file=io.StringIO(), width=140, highlight=False)
    show_report(console, report, longest=_LONGEST_ON_PAGE)
    return console.export_html()


def show_report(console: Console, report: Report, longest: int = _LONGEST) -> None:
    """Print a line for each check, the tables, then the findings (the worst last) with texts that show them."""
    counts = [f"{report.facts[name]:,} {name}" for name in ("examples", "texts") if name in report.facts]
    console.print(Text(f"audit of {report.subject}: {', '.join([*counts, f'{report.seconds:.1f} s'])}\n"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in report.checks:
        # Text, for in a plain string rich takes "[/b]" for markup and ":x:" for an emoji.
        words = Text(check.name, no_wrap=True), Text(printable(check.summary))
        table.add_row(Text(str(check.verdict), _STYLES[check.verdict]), *words)
    console.print(table)
    for check in report.checks:
        if check.name == "inversion" or check.verdict in (Verdict.FAIL, Verdict.WARN):
            for name, rows in check.figures.items():
                if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
                    console.print("", _table(f"{check.name}: {name.replace('_', ' ')}", rows), sep="\n")
    for finding in reversed(report.findings):
        _show_finding(console, finding, longest)
    failing = list(dict.fromkeys(finding.name for finding in report.failures))
    words = f"fails: {', '.join(failing)}" if failing else "nothing fails"
    if not failing and "no-reference" in report.names(Verdict.WARN):
        words += ", but no right answer could be tried: the task declares no reference"
    console.print(Text(f"\nverdict     {words}", "bold red" if failing else "bold green"), soft_wrap=True)


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=Text(title, "bold"), title_justify="left", pad_edge=False)
    for column in rows[0]:
        table.add_column(Text(column.replace("_", " ")), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(column))) for column in rows[0]))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        low, high = _cell(value["low"]), _cell(value["high"])
        return f"{low if low == high else f'{low} to {high}'} ({value['source']})"
    return printable(str(value))


def _show_finding(console: Console, finding: Finding, longest: int) -> None:
    def show(text: str, indent: int, style: str = "") -> None:
        console.print(Padding(Text(printable(text), style), (0, 0, 0, indent)))

    head = Text(f"\n{finding.verdict}  ", _STYLES[finding.verdict]).append(f"{finding.name}: ", "bold")
    console.print(head.append(printable(finding.title), "default"))
    if finding.allowed is not None:
        show(f"allowed: {finding.allowed}", 6)
    elif finding.remedy:
        show(finding.remedy, 6, "italic")
    if finding.verdict not in (Verdict.FAIL, Verdict.WARN):
        return
    for evidence in finding.shown[: 2 if longest == _LONGEST else None]:
        show(repr(_shortened(evidence.text, longest)), 6)
        got = "no reward" if evidence.reward is None else f"reward {evidence.reward:.3g}"
        show(f"-> {got} ({evidence.outcome}); expected {evidence.expected}", 9, "dim")
        if evidence.detail:
            show(_shortened(evidence.detail, 3000), 9, "dim")


def _shortened(text: str, limit: int) -> str:
    half = limit // 2
    between = f" … {len(text) - 2 * half:,} characters … "
    return text if len(text) <= 2 * half + len(between) else f"{text[:half]}{between}{text[-half:]}"
