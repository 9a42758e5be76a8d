"""The tables of docs/what_matters.md, each from the results.csv of a study alone.

.venv/bin/python scripts/study_table.py            # writes them between the marks of the page
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from hone.studies.analysis import ALPHA, holm, paired_test

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "what_matters.md"
MARKS = re.compile(r"(<!-- made of studies/(\w+)/results.csv(?:, (right))? -->\n).*?(<!-- end -->)", re.DOTALL)
FORMAT = re.compile(r"(<!-- format share -->\n).*?(<!-- end -->)", re.DOTALL)
HOW = ("strict", "lenient")


def table(results: Path, column: str = "reward") -> str:
    """Return a table: of each cell the mean over the seeds and the lowest and highest of them, the difference from the
    first cell with its 95 % interval by Student's t over the seeds, its p corrected for the number of cells, a verdict.

    `column`: "reward", or "right" for the share of right answers.
    """
    rows: dict[str, dict[int, float]] = {}
    for line in csv.DictReader(results.open()):
        rows.setdefault(line["cell"], {})[int(line["seed"])] = float(line[column])
    (first, base), *others = rows.items()
    differences = {cell: np.array([seeds[s] - base[s] for s in sorted(base)]) for cell, seeds in others}
    tested = [paired_test(d[:, None]) for d in differences.values()]
    assert None not in tested, f"{results} has one seed: there is nothing to test"
    p = holm([one for one in tested if one is not None])
    head = {"reward": "reward", "right": "share of right answers"}[column]
    lines = [f"| | {head} | seeds | difference | 95 % interval | p | |", "|---|---|---|---|---|---|---|"]
    lines.append(f"| {first} | {_reward(base)} | | | | baseline |")
    for (cell, seeds), (d, corrected) in zip(others, zip(differences.values(), p, strict=True), strict=True):
        reach = student.ppf(1 - ALPHA / 2, len(d) - 1) * d.std(ddof=1) / np.sqrt(len(d))
        verdict = "no difference seen" if corrected > ALPHA else "helps" if d.mean() > 0 else "hurts"
        shown = "< 0.001" if corrected < 0.001 else f"{corrected:.3f}"
        span = f"{d.mean() - reach:+.3f} to {d.mean() + reach:+.3f}"
        lines.append(f"| {cell} | {_reward(seeds)} | {d.mean():+.3f} | {span} | {shown} | {verdict} |")
    return "\n".join(lines) + "\n"


def _reward(seeds: dict[int, float]) -> str:
    values = list(seeds.values())
    return f"{np.mean(values):.3f} | {min(values):.3f} to {max(values):.3f}"


def format_table(results: Path) -> str:
    """Return the table of shares of right answers before and after RL, strict and lenient, means over the pairs."""
    rows: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader(results.open()):
        rows.setdefault(line["task"], []).append(line)
    lines = ["| | runs | strict, before and after | lenient, before and after | format's share of the gain |"]
    lines.append("|---|---|---|---|---|")
    for task, pairs in rows.items():
        mean = {name: float(np.mean([float(pair[name]) for pair in pairs])) for name in pairs[0] if "_" in name}
        strict, lenient = (mean[f"{how}_after"] - mean[f"{how}_before"] for how in ("strict", "lenient"))
        shown = {how: f"{100 * mean[f'{how}_before']:.0f} %, {100 * mean[f'{how}_after']:.0f} %" for how in HOW}
        share = f"{100 * (1 - lenient / strict):.0f} %"
        lines.append(f"| {task} | {len(pairs)} | {shown['strict']} | {shown['lenient']} | {share} |")
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    """Return the page with its tables as the files give them."""
    text = FORMAT.sub(lambda m: m[1] + format_table(ROOT / "studies/format_share/results.csv") + m[2], text)
    return MARKS.sub(lambda m: m[1] + table(ROOT / "studies" / m[2] / "results.csv", m[3] or "reward") + m[4], text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
