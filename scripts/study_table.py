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
FORMAT_ROWS = {
    "135M, sums": ("format_share", "SFT", "SFT, then RL"),
    "0.4M, reverse-text": (
        "sft_or_rl",
        "sft.max_steps 900, demo_noise 1.0, rl.max_steps 0",
        "sft.max_steps 900, demo_noise 1.0, rl.max_steps 100",
    ),
}
"""Study, cell without RL, cell with it."""


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


def format_table() -> str:
    """Return the table of shares of right answers without RL and with it, strict and lenient, means over the seeds; and
    what of the strict gain the lenient one lacks, with the lowest and highest of the seeds.
    """
    lines = ["| | seeds | strict, before and after | lenient, before and after | format's share of the gain |"]
    lines.append("|---|---|---|---|---|")
    for title, (study, *cells) in FORMAT_ROWS.items():
        rows = list(csv.DictReader((ROOT / "studies" / study / "results.csv").open()))
        found = [
            sorted((r["seed"], float(r["right"]), float(r["lenient"])) for r in rows if r["cell"] == c) for c in cells
        ]
        before_S2, after_S2 = (np.array([values for _, *values in seeds]) for seeds in found)
        gains_S2, means = after_S2 - before_S2, (before_S2.mean(axis=0), after_S2.mean(axis=0))
        shares = 1 - gains_S2[:, 1] / gains_S2[:, 0]
        share = 1 - gains_S2[:, 1].mean() / gains_S2[:, 0].mean()
        shown = [", ".join(f"{mean[how]:.1%}".replace("%", " %") for mean in means) for how in range(2)]
        of_gain = f"{100 * share:.0f} % ({100 * min(shares):.0f} to {100 * max(shares):.0f})"
        lines.append(f"| {title} | {len(gains_S2)} | {' | '.join(shown)} | {of_gain} |")
    return "\n".join(lines) + "\n"


def with_tables(text: str) -> str:
    """Return the page with its tables as the files give them."""
    text = FORMAT.sub(lambda m: m[1] + format_table() + m[2], text)
    return MARKS.sub(lambda m: m[1] + table(ROOT / "studies" / m[2] / "results.csv", m[3] or "reward") + m[4], text)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
