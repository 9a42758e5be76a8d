"""A report as a page in one HTML file: what fails first, with the texts that show it, then all checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.audit.report import Report
from hone.audit.table import cell, in_words, tables_of
from hone.pages import fill, page

_LONGEST = 4000
"""Characters of a text that are shown; `--json` has all."""

_BODY = """
<p class="sub">{{ facts }}</p>
<div class="box {{ verdict }}">
{% if failing %}<b>Fails:</b> {{ failing | join(", ") }}{% else %}<b>Nothing fails.</b>{% endif %}
</div>
<h2>Checks</h2>
<table>
<tr><th>verdict</th><th>check</th><th></th></tr>
{% for check in checks %}
<tr><td>{{ check.verdict }}</td><td>{{ check.name }}</td><td>{{ check.summary | visible }}</td></tr>
{% endfor %}
</table>
{% if findings %}<h2>Findings</h2>{% endif %}
{% for finding in findings %}
<div class="box {{ finding.verdict }}">
<b>{{ finding.verdict }}: {{ finding.name }}</b><br>{{ finding.title | visible }}
{% if finding.allowed is not none %}<br>allowed: {{ finding.allowed | visible }}
{% elif finding.remedy %}<br><i>{{ finding.remedy | visible }}</i>{% endif %}
{% for shown in finding.shown %}
<pre>{{ shown.text | visible(longest) }}</pre>
<div>{{ in_words(shown) | visible }}.
 {{ shown.detail | visible(longest) }}</div>
{% endfor %}
</div>
{% endfor %}
{% for name, columns, rows in tables %}
<h2>{{ name | visible }}</h2>
<table>
<tr>{% for column in columns %}<th>{{ column | visible }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for value in row %}<td>{{ value | visible }}</td>{% endfor %}</tr>
{% endfor %}
</table>
{% endfor %}
{% for check in checks if check.figures %}
{% if loop.first %}<h2>Figures</h2>{% endif %}
<details><summary>{{ check.name }}</summary><pre>{{ numbers[check.name] | visible }}</pre></details>
{% endfor %}
"""


def report_page(report: Report) -> str:
    """The page. Texts of models and data are escaped, and control characters in them are shown as escapes."""
    facts = [f"{value} {name}" if isinstance(value, int) and name != "seed" else f"{name} {value}"
             for name, value in report.facts.items()]  # fmt: skip
    body = fill(
        _BODY,
        facts=", ".join([*facts, f"{report.seconds:.1f} s"]),
        verdict=report.verdict,
        failing=list(dict.fromkeys(finding.name for finding in report.failures)),
        checks=report.checks,
        findings=report.findings,
        tables=[table for check in report.checks for table in tables_of(check)],
        numbers={check.name: _numbers(check.figures) for check in report.checks},
        longest=_LONGEST,
        in_words=in_words,
    )
    return page(f"audit of {report.subject}", body)


def _numbers(figures: Mapping[str, Any], indent: str = "") -> str:
    """Figures that are no tables, one in a line."""
    lines = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{name}", _numbers(value, indent + "  ")]
        elif not (isinstance(value, list) and value and isinstance(value[0], Mapping)):
            lines.append(f"{indent}{name}: {cell(value)}")
    return "\n".join(lines)
