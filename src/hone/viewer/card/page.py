"""The run card as HTML and as Markdown: both show the same sections, which `sections` lists.

`body` is for any page, `whole_page` one file that needs nothing else (report.html), `markdown` has no HTML in it
(card.md), for a model hub or a pull request. What a model wrote stands there in fences longer than any run of backticks
in it, so that nothing in it is Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from hone import __version__
from hone.pages import fill, page, visible
from hone.pages.lines import Line, Points, Values, chart
from hone.runs.progress import sparkline
from hone.viewer.card import tables
from hone.viewer.card.facts import Card, Sample

LONGEST = 4_000
"""Characters of a text that the page shows."""
LONGEST_MARKDOWN = 1_500
"""The same of card.md."""
_LENIENT = (
    "Strict is the task's own verdict. Lenient looks for an answer in what the task did not call correct (the last "
    "tag, box, statement, and number or line) and has the task judge that in its own form. What the lenient score "
    "gained is skill; what the gap between the two lost is format."
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#!~$&])")
_TICKS = re.compile(r"`+")


@dataclass(frozen=True)
class Section:
    """A part of a card: what it has of these is shown in this order. The first of `rows` are heads, empty for facts."""

    title: str
    rows: Sequence[Sequence[str]] = ()
    text: str = ""
    items: Sequence[str] = ()
    code: str = ""
    samples: Sequence[Sample] = ()


def sections(card: Card) -> Iterator[Section]:
    """Give the sections of a card, after its verdict and its curve."""
    compared = "Held out" if card.comparison is None else "Before and after"
    if card.run.kind == "sft" and (losses := list(tables.loss_rows(card))):
        yield Section("Before and after", [("nats per token", "at first", "at last", "change"), *losses])
    elif measures := tables.measure_rows(card):
        turned = card.comparison and card.comparison.turned
        text = tables.intervals_in_words(card) + (
            f" {turned.right} examples turned right and {turned.wrong} wrong; {turned.stayed_right} stayed right "
            f"and {turned.stayed_wrong} wrong." if turned else ""
        )  # fmt: skip
        yield Section(compared, [tables.heads(card), *measures], text)
    if card.evaluated and card.leniency.why_not:
        yield Section("Strict against lenient", text=f"Not measured: {card.leniency.why_not}.")
    elif card.evaluated:
        rows = [tables.heads(card), *tables.lenient_rows(card)]
        yield Section("Strict against lenient", rows, _LENIENT, samples=card.generous)
    yield Section("To be careful about", items=card.caveats)
    what = "What was evaluated" if card.run.kind == "eval" else "What was trained"
    for title, facts in ((what, card.about), ("What it took", card.costs), ("What was checked", card.checks)):
        if facts:
            yield Section(title, [("", ""), *facts])
    if card.samples:
        yield Section(f"Samples of {card.samples_of}", samples=card.samples)
    yield Section("To have it again", [("", ""), *card.hashes], code=card.commands)


_BODY = """
<div class="card">
<p class="sub">{{ card.status }}; card of {{ date }}</p>
<div class="box {{ {True: 'pass', False: 'fail', None: 'note'}[card.good] }}">
{% for line in card.verdict %}<p>{{ line|visible }}</p>
{% endfor %}
</div>
{% if curve %}<figure class="drawn">{{ curve }}</figure>{% endif %}
{% for part in sections %}
<h2>{{ part.title }}</h2>
{% if part.items %}<ul>
{% for line in part["items"] %}<li>{{ line|visible }}</li>
{% endfor %}
</ul>{% endif %}
{% if part.code %}<pre>{{ part.code|visible }}</pre>{% endif %}
{% if part.rows %}
{% set numbers = part.rows[0][-1] %}
<div class="scroll"><table class="{{ 'numbers' if numbers else 'facts' }}">
{% for row in part.rows if numbers or not loop.first %}
<tr>{% for cell in row %}{% set tag = "th" if loop.first or row == part.rows[0] else "td" %}
<{{ tag }}{% if numbers and not loop.first %} class="n"{% endif %}>{{ cell|visible }}</{{ tag }}>
{% endfor %}</tr>
{% endfor %}
</table></div>
{% endif %}
{% if part.text %}<p class="sub">{{ part.text|visible }}</p>{% endif %}
{% for one in part.samples %}
<h3>{{ one.name|visible(60) }}</h3>
<p class="sub">{{ one.facts|visible }}{% if one.row.detail %}<br>{{ one.row.detail|visible(400) }}{% endif %}</p>
<details><summary>prompt and expected answer</summary><pre>{{ one.prompt|visible(longest) }}</pre>
<pre>{{ one.row.answer|visible(longest) }}</pre></details>
<pre>{{ one.completion|visible(longest) }}</pre>
{% endfor %}
{% endfor %}
{% if card.config %}<details><summary>config.toml</summary><pre>{{ card.config|visible }}</pre></details>{% endif %}
</div>
"""


def body(card: Card) -> Markup:
    """Return the card, without a title, in the classes of hone.css."""
    curve = card.attempt(lambda: _curve(card.run.kind, card.lines, card.env), Markup())
    return fill(_BODY, card=card, date=_date(card), curve=curve, sections=list(sections(card)), longest=LONGEST)


def whole_page(card: Card) -> str:
    """Return report.html. A content policy forbids scripts, and loading anything."""
    return page(card.title, body(card), "Run card")


def markdown(card: Card) -> str:
    """Return card.md."""
    return "\n".join(_markdown(card)).rstrip() + "\n"


def _date(card: Card) -> str:
    """Return when it was written, to the minute."""
    return f"{card.written[:16].replace('T', ' ')} UTC"


def _markdown(card: Card) -> Iterator[str]:
    yield from (f"# {plain(card.title)}", "", f"{plain(card.status)}.", "")
    yield from (*(f"- {plain(line)}" for line in card.verdict), "")
    name = "loss" if card.run.kind == "sft" else "reward/mean"
    values = [line[name] for line in card.lines if isinstance(line.get(name), int | float)]
    if len(values) > 1:
        label = "Training loss" if card.run.kind == "sft" else "Mean reward in training"
        yield from (f"{label}, {values[0]:.3f} to {values[-1]:.3f}: `{sparkline(values, 60)}`", "")
    for part in sections(card):
        yield from (f"## {plain(part.title)}", "")
        if part.items:
            yield from (*(f"- {plain(line)}" for line in part.items), "")
        if part.code:
            yield from (*fenced(part.code, "bash"), "")
        if part.rows:
            yield from (*_table(part.rows), "")
        if part.text:
            yield from (plain(part.text), "")
        for one in part.samples:
            yield from (f"**{plain(one.name)}**: {plain(one.facts)}", "")
            texts = {"Prompt": one.prompt, "Expected answer": str(one.row["answer"]), "Completion": one.completion}
            for head, text in texts.items():
                if text:
                    yield from (f"{head}:", "", *fenced(visible(text, LONGEST_MARKDOWN)), "")
    yield f"Run card by hone {__version__}, {_date(card)}."


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield "| " + " | ".join(map(plain, row)) + " |"
        if number == 0:
            yield "| " + " | ".join(["---"] * len(row)) + " |"


def plain(text: str) -> str:
    """Return text on one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(visible(text).split()))


def fenced(text: str, language: str = "") -> Iterator[str]:
    """Give a block of code, in a fence that is longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    yield fence + language
    yield from visible(text).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").split("\n")
    yield fence


Lines = Sequence[Mapping[str, Any]]


def _curve(kind: str, lines: Lines, env: str | None) -> Markup:
    """Draw metrics.jsonl's lines: training reward, or loss, with what was measured on held-out examples; empty for a
    run without any. Twice: as wide as a page, and as a telephone with letters that can be read (hone.css shows one).
    """
    if kind == "sft":
        name, held, ends, label = "loss", "val/loss", [], "loss (nats per token)"
        labels = "training loss, smoothed", "validation loss"
    else:
        name, held, label = "reward/mean", f"eval/{env}/reward/mean", "mean reward"
        ends = [f"eval/{env}/ci95/{end}" for end in ("low", "high")]
        labels = "training reward, smoothed", "held out, 95 % interval"
    steps, values = [line["step"] for line in lines], _column(lines, name)
    known = [value for value in values if value is not None]
    smooth = smoothed(values, max(5, len(known) // 15))
    curves = [Line(steps, values, "blue", "", 1.0, 0.35), Line(steps, smooth, "blue", labels[0])]
    measured = [line for line in lines if isinstance(line.get(held), int | float)]
    low, high = (_column(measured, end) for end in (ends or ["", ""]))
    points = Points([line["step"] for line in measured], _column(measured, held), low, high, "red", labels[1])
    wide, narrow = (
        chart(curves if len(known) > 1 else [], [points] if measured else [], "step", label, width=width,
              y_from_zero=kind == "sft")
        for width in (720, 360)
    )  # fmt: skip
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow) if wide else wide


def smoothed(values: Values, window: int) -> list[float | None]:
    """Return the centred moving mean over what is known; None where the value itself is not."""
    sums, counts = [0.0], [0]
    for value in values:
        sums.append(sums[-1] + (value or 0.0))
        counts.append(counts[-1] + (value is not None))
    found: list[float | None] = []
    for i, value in enumerate(values):
        low, high = max(i - window // 2, 0), min(i + window // 2 + 1, len(values))
        found.append(None if value is None else (sums[high] - sums[low]) / (counts[high] - counts[low]))
    return found


def _column(lines: Lines, name: str) -> list[float | None]:
    return [float(v) if isinstance(v := line.get(name), int | float) else None for line in lines]
