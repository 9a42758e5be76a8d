"""The run card as HTML: `body` for any page, `whole_page` as one file that needs nothing else (report.html)."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from markupsafe import Markup

from hone.pages import fill, page
from hone.viewer.card.facts import Card
from hone.viewer.card.samples import LONGEST
from hone.viewer.card.sentences import counted
from hone.viewer.card.tables import heads, intervals_in_words, lenient_rows, loss_rows, measure_rows

_TABLE = """
{% macro facts(rows) %}
<div class="scroll"><table class="facts">
{% for label, text in rows %}<tr><th scope="row">{{ label }}</th><td>{{ text|visible }}</td></tr>
{% endfor %}
</table></div>
{% endmacro %}
{% macro numbers(heads, rows) %}
<div class="scroll"><table class="numbers">
<tr>{% for head in heads %}<th{% if not loop.first %} class="n"{% endif %}>{{ head }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>
{% for cell in row %}<td{% if not loop.first %} class="n"{% endif %}>{{ cell }}</td>{% endfor %}
</tr>
{% endfor %}
</table></div>
{% endmacro %}
{% macro shown(one) %}
<h3>{{ one.name|visible(60) }}</h3>
<p class="sub">{{ one.facts|visible }}{% if one.breakdown %}<br>{{ one.breakdown|visible }}{% endif %}
{% if one.row.detail %}<br>{{ one.row.detail|visible(400) }}{% endif %}</p>
<details><summary>prompt and expected answer</summary><pre>{{ one.prompt|visible(longest) }}</pre>
<pre>{{ one.answer|visible(longest) }}</pre></details>
<pre>{{ one.completion|visible(longest) }}</pre>
{% endmacro %}
"""
_BODY = (
    _TABLE
    + """
<div class="card">
<p class="sub">{{ card.standing }}; card of {{ card.date }}</p>
<div class="box {{ {True: 'pass', False: 'fail', None: 'note'}[card.good] }}">
{% for line in card.verdict %}<p>{{ line|visible }}</p>
{% endfor %}
</div>
{% if card.curve %}<figure class="drawn">{{ card.curve }}</figure>{% endif %}
{% if measures or losses %}
<h2>{{ "Before and after" if card.comparison or losses else "Held out" }}</h2>
{% if losses %}{{ numbers(("nats per token", "at first", "at last", "change"), losses) }}
{% else %}{{ numbers(heads, measures) }}
<p class="sub">{{ intervals }} pass@k: at least one of k completions of an
example is correct.</p>
{% endif %}
{% endif %}
{% if card.comparison %}{% with t = card.comparison.turned %}
<p>Of {{ counted(t.right + t.wrong + t.stayed_right + t.stayed_wrong, "example") }}
{{ t.right }} turned right and {{ t.wrong }} wrong; {{ t.stayed_right }} stayed right and {{ t.stayed_wrong }}
wrong.</p>
{% endwith %}{% endif %}
{% if card.evaluated %}
<h2>Strict against lenient</h2>
{% if card.leniency.why_not %}
<p>Not measured: {{ card.leniency.why_not|visible }}.</p>
{% else %}
<p class="sub">Strict is the task's own verdict. Lenient looks for an answer in what the task did not call correct (the
last tag, box, statement, and number or line) and has the task judge that in its own form. What the lenient score gained
is skill; what the gap between the two lost is format.</p>
{{ numbers(heads, readings) }}
{% for one in card.generous %}{{ shown(one) }}{% endfor %}
{% endif %}
{% endif %}
<h2>To be careful about</h2>
<ul>
{% for line in card.caveats %}<li>{{ line|visible }}</li>
{% endfor %}
</ul>
<h2>What was {{ "evaluated" if card.run.kind == "eval" else "trained" }}</h2>
{{ facts(card.about) }}
<h2>What it took</h2>
{{ facts(card.costs) }}
{% if card.checks %}<h2>What was checked</h2>
{{ facts(card.checks) }}{% endif %}
{% if card.samples %}
<h2>Samples of {{ card.samples_of }}</h2>
{% for one in card.samples %}{{ shown(one) }}{% endfor %}
{% endif %}
<h2>To have it again</h2>
<pre>{{ card.again.commands|visible }}</pre>
{{ facts(card.again.hashes) }}
{% if card.again.config %}<details><summary>config.toml</summary><pre>{{ card.again.config|visible }}</pre></details>
{% endif %}
</div>
"""
)

_DARK = re.compile(r':root\[data-theme="dark"\] \{([^}]*)\}')


def body(card: Card) -> Markup:
    """The card, without a title, in the classes of hone.css."""
    return fill(
        _BODY,
        card=card,
        counted=counted,
        heads=heads(card),
        measures=measure_rows(card),
        intervals=intervals_in_words(card),
        readings=lenient_rows(card),
        losses=list(loss_rows(card)) if card.run.kind == "sft" else [],
        longest=LONGEST,
    )


def whole_page(card: Card) -> str:
    """report.html. A content policy forbids scripts, and loading anything."""
    return page(card.title, body(card), _style(), "Run card")


@cache
def _style() -> str:
    """hone.css, light or dark as the reader's system is."""
    text = (resources.files("hone.viewer") / "assets" / "hone.css").read_text(encoding="utf-8")
    return _DARK.sub(r"@media (prefers-color-scheme: dark) { :root {\1} }", text)
