"""A report in words and tables: with colour on a terminal, as plain aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hone.audit.report import Check, Finding, Report, Shown, Verdict
from hone.grading import printable
from hone.types import Outcome

STYLES = {Verdict.FAIL: "bold red", Verdict.WARN: "yellow", Verdict.NOTE: "cyan", Verdict.PASS: "green"}
TABLES = ("inversion",)
"""Checks whose tables are always shown, the others' where something is wrong."""
_LONGEST, _LONGEST_DETAIL = 400, 3000
"""Characters of a text that are shown, and of why it got what it got; `--json` has all."""
_SHOWN = 2
"""Texts that are shown for a finding."""


def show_report(console: Console, report: Report) -> None:
    """Each check in a line, the inversion table, then the findings with texts that show them, the worst last."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(min_width=4)
    table.add_column(no_wrap=True)
    table.add_column()
    for check in report.checks:
        # Text, for in a plain string rich takes "[/b]" for markup and ":x:" for an emoji.
        words = Text(check.name), Text(printable(check.summary))
        table.add_row(Text(str(check.verdict), STYLES[check.verdict]), *words)
    console.print(table)
    for check in report.checks:
        if check.name in TABLES or check.verdict in (Verdict.FAIL, Verdict.WARN):
            _show_figures(console, check)
    for finding in reversed(report.findings):
        _show_finding(console, finding)


def _show_figures(console: Console, check: Check) -> None:
    for title, columns, rows in tables_of(check):
        console.print()
        table = Table(title=Text(title, "bold"), title_justify="left", pad_edge=False)
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)


def tables_of(check: Check) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The figures of a check that are lists of records: title, columns, rows as text."""
    for name, rows in check.figures.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            columns = list(rows[0])
            texts = [[cell(row.get(column)) for column in columns] for row in rows]
            yield f"{check.name}: {name.replace('_', ' ')}", [column.replace("_", " ") for column in columns], texts


def cell(value: Any) -> str:
    """A figure as a cell: numbers to three digits, a pair of them as a range."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping):
        return _range(value) if {"low", "high", "source"} <= value.keys() else ", ".join(map(str, value.values()))
    if isinstance(value, list | tuple):
        return " to ".join(cell(part) for part in (value if len(value) < 2 or value[0] != value[-1] else value[:1]))
    return printable(str(value))


def _range(value: Mapping[str, Any]) -> str:
    """The values that a component takes, and how that is known."""
    if value["low"] is None:
        return str(value["source"])
    return f"{cell((value['low'], value['high']))} ({value['source']})"


def _show_finding(console: Console, finding: Finding) -> None:
    console.print()
    head = Text(f"{finding.verdict}  ", STYLES[finding.verdict]).append(f"{finding.name}: ", "bold")
    console.print(head.append(printable(finding.title), "default"))
    if finding.allowed is not None:
        console.print(Padding(Text(f"allowed: {printable(finding.allowed)}"), (0, 0, 0, 6)))
    elif finding.remedy:
        console.print(Padding(Text(printable(finding.remedy), "italic"), (0, 0, 0, 6)))
    if finding.verdict in (Verdict.FAIL, Verdict.WARN):
        for shown in finding.shown[:_SHOWN]:
            _show_text(console, shown)


def _show_text(console: Console, shown: Shown) -> None:
    console.print(Padding(Text(f"{shortened(shown.text)!r}"), (0, 0, 0, 6)))
    console.print(Padding(Text(printable(f"-> {in_words(shown)}"), "dim"), (0, 0, 0, 9)))
    if shown.detail:
        console.print(Padding(Text(printable(shortened(shown.detail, _LONGEST_DETAIL)), "dim"), (0, 0, 0, 9)))


def in_words(shown: Shown) -> str:
    """What a completion got and should have got; of a conversation for a template, the rule that does not hold."""
    if shown.reward is not None:
        return f"reward {shown.reward:.3g} ({shown.outcome}); expected {shown.expected}"
    if shown.outcome in set(Outcome):
        return f"no reward ({shown.outcome}); expected {shown.expected}"
    return f"{shown.outcome}: it should hold that {shown.expected}"


def shortened(text: str, limit: int = _LONGEST) -> str:
    """Both ends of a long text, and how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    between = f" … {len(text) - 2 * half:,} characters … "
    return text if len(text) <= 2 * half + len(between) else f"{text[:half]}{between}{text[-half:]}"
