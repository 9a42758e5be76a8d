"""What share of RL's gain is format: studies/format_share/results.csv, from evaluations before RL and after it.

    .venv/bin/python scripts/format_share.py "0.4M, reverse-text" BEFORE AFTER [BEFORE AFTER ...]

BEFORE and AFTER are folders of `hone eval`, a pair for each seed. `hone report` grades each completion as the task does
(strict) and by whether a right answer stands in it somewhere (lenient); what of the strict gain the lenient one lacks
is format. Rows of other names stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "studies" / "format_share" / "results.csv"
COLUMNS = ["task", "pair", "strict_before", "strict_after", "lenient_before", "lenient_after"]


def shares(folder: str) -> dict[str, float]:
    """Return the shares of right completions of an evaluation, strict and lenient."""
    subprocess.run([Path(sys.executable).parent / "hone", "report", folder], check=True, stdout=subprocess.DEVNULL)
    measures = json.loads((Path(folder) / "report.json").read_text())["measures"]
    return {name: measures[name]["mean"] for name in ("strict", "lenient")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("folders", nargs="+")
    args = parser.parse_args()
    rows = [row for row in csv.DictReader(RESULTS.open()) if row["task"] != args.name] if RESULTS.exists() else []
    for pair, (before, after) in enumerate(zip(args.folders[::2], args.folders[1::2], strict=True)):
        found = {end: shares(folder) for end, folder in (("before", before), ("after", after))}
        values = {f"{how}_{end}": f"{found[end][how]:.4f}" for end in found for how in found[end]}
        rows.append({"task": args.name, "pair": str(pair), **values})
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
