"""Write recorded figures between the marks of pages: the tables of studies, and what the quickstart reaches.

.venv/bin/python scripts/fill_in.py
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "studies" / "README.md", ROOT / "README.md", ROOT / "docs" / "index.md"]
QUICKSTART = re.compile(r"(<!-- quickstart( table)? -->).*?(<!-- end -->)", re.DOTALL)
MARKS = re.compile(r"(<!-- made of studies/(\w+)/study.md -->\n).*?(<!-- end -->)", re.DOTALL)
FORMAT = re.compile(r"(<!-- format share -->\n).*?(<!-- end -->)", re.DOTALL)
SHOWN = ("reward", "correct", "difference", "95 % interval", "verdict")
FORMAT_ROWS = {
    "135M, sums": ("format_share", "SFT", "SFT, then RL"),
    "0.4M, reverse-text": (
        "sft_or_rl",
        "sft.max_steps 900, demo_noise 1.0, rl.max_steps 0",
        "sft.max_steps 900, demo_noise 1.0, rl.max_steps 100",
    ),
}
"""Study, cell without RL, cell with it."""


def table(study: Path) -> str:
    """Return the table of cells in study.md: names, means, differences with their intervals, verdicts."""
    lines = study.read_text().partition("## Cells\n")[2].partition("\n## ")[0].splitlines()
    rows = [re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in lines if line.startswith("|")]
    shown = [i for i, name in enumerate(rows[0]) if i == 0 or name in SHOWN]
    return "".join(f"| {' | '.join(row[i] for i in shown)} |\n" for row in rows).replace("| --- ", "|---")


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


def quickstart(table: bool) -> str:
    """Return what the quickstart reaches, as medians over its recorded seeds: a sentence or a table."""
    record = json.loads((ROOT / "benchmarks/results/quickstart.json").read_text())
    shares = [f"{100 * of['sampled/correct']:.0f} %" for of in record["medians"].values()]
    if not table:
        seeds = f"median of {len(record['runs'])} seeds"
        return f"\nRight answers to held-out phrases rise from {shares[0]} to {shares[1]} (at T=1, {seeds}).\n"
    lines = ["", "| | reward, T=1 | correct, T=1 | correct, greedy | training so far |", "|---|---|---|---|---|"]
    for (name, of), share in zip(record["medians"].items(), shares, strict=True):
        cells = f"{of['sampled/reward/mean']:.2f} | {share} | {100 * of['greedy/correct']:.0f} %"
        lines.append(f"| {name} | {cells} | {of['train_seconds']:.0f} s |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """Return the page with its figures as the files give them."""
    text = QUICKSTART.sub(lambda m: m[1] + quickstart(bool(m[2])) + m[3], text)
    text = FORMAT.sub(lambda m: m[1] + format_table() + m[2], text)
    return MARKS.sub(lambda m: m[1] + table(ROOT / "studies" / m[2] / "study.md") + m[3], text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text()))
