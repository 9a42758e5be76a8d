"""The run card as Markdown without any HTML (card.md), for a model hub or a pull request.

What a model wrote stands in fences longer than any run of backticks in it, so that nothing in it is Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from hone import __version__
from hone.pages import visible
from hone.runs.progress import sparkline
from hone.viewer.card.facts import Card
from hone.viewer.card.samples import Sample
from hone.viewer.card.tables import heads, intervals_in_words, lenient_rows, loss_rows, measure_rows

LONGEST = 1_500
"""Characters of a text that are shown."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!~$&])")
_TICKS = re.compile(r"`+")


def markdown(card: Card) -> str:
    """card.md."""
    return "\n".join(_lines(card)).rstrip() + "\n"


def _lines(card: Card) -> Iterator[str]:
    yield from (f"# {plain(card.title)}", "", f"{plain(card.standing)}.", "")
    for line in card.verdict:
        yield from (f"- {plain(line)}",)
    yield ""
    yield from _curve(card)
    yield from _measures(card)
    yield from _leniency(card)
    yield from ("## To be careful about", "", *(f"- {plain(line)}" for line in card.caveats), "")
    yield from ("## What it was", "", *_table(("", ""), card.about), "")
    yield from ("## What it took", "", *_table(("", ""), card.costs), "")
    if card.checks:
        yield from ("## What was checked", "", *_table(("", ""), card.checks), "")
    if card.samples:
        yield from (f"## Samples of {card.samples_of}", "")
        for one in card.samples:
            yield from _sample(one)
    yield from ("## To have it again", "", *fenced(card.again.commands, "bash"), "")
    yield from (*_table(("", ""), card.again.hashes), "")
    yield f"Run card by hone {__version__}, {card.date}."


def _curve(card: Card) -> Iterator[str]:
    name = "loss" if card.run.kind == "sft" else "reward/mean"
    values = [line[name] for line in card.lines if isinstance(line.get(name), int | float)]
    if len(values) > 1:
        label = "Training loss" if card.run.kind == "sft" else "Mean reward in training"
        yield from (f"{label}, {values[0]:.3f} to {values[-1]:.3f}: `{sparkline(values, 60)}`", "")


def _measures(card: Card) -> Iterator[str]:
    if losses := list(loss_rows(card)) if card.run.kind == "sft" else []:
        yield from ("## Before and after", "", *_table(("nats per token", "at first", "at last", "change"), losses), "")
        return
    if rows := measure_rows(card):
        title = "Held out" if card.comparison is None else "Before and after"
        yield from (f"## {title}", "", *_table(heads(card), rows), "")
        yield from (intervals_in_words(card), "")


def _leniency(card: Card) -> Iterator[str]:
    if not card.evaluated:
        return
    yield from ("## Strict against lenient", "")
    if card.leniency.why_not:
        yield from (f"Not measured: {plain(card.leniency.why_not)}.", "")
        return
    yield from (*_table(heads(card), lenient_rows(card)), "")
    for one in card.generous:
        yield from _sample(one)


def _sample(one: Sample) -> Iterator[str]:
    yield from (f"**{plain(one.name)}**: {plain(one.facts)}", "")
    if one.breakdown:
        yield from (plain(one.breakdown), "")
    for head, text in (("Prompt", one.prompt), ("Expected answer", one.answer), ("Completion", one.completion)):
        if text:
            yield from (f"{head}:", "", *fenced(visible(text, LONGEST)), "")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _row(header)
    yield _row(["---"] * len(header), escaped=True)
    yield from (_row(row) for row in rows)


def _row(cells: Sequence[str], escaped: bool = False) -> str:
    return "| " + " | ".join(cell if escaped else plain(cell) for cell in cells) + " |"


def plain(text: str) -> str:
    """Text on one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def fenced(text: str, language: str = "") -> Iterator[str]:
    """A block of code, in a fence that is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    yield fence + language
    yield from visible(text).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").split("\n")
    yield fence
