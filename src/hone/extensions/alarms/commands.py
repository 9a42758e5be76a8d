"""`hone runs predictions`: the predictions of runs, and their results."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from hone.commands.status import print_json, print_table
from hone.errors import UserError
from hone.extensions.alarms import predictions
from hone.extensions.alarms.config import RunsPredictionsConfig
from hone.runs import view
from hone.runs.files import dumps
from hone.runs.listing import find_runs


def score_predictions(config: RunsPredictionsConfig) -> int:
    """Print the predictions of all runs, oldest first, and their scores. Returns 0."""
    rows: list[tuple[Path, dict[str, Any], predictions.Scored]] = []
    left_out = []
    for path in find_runs(config.root):
        try:
            info = view.existing_run(path)
            if info is None or info["kind"] == "eval" or info["id"] in {other["id"] for _, other, _ in rows}:
                continue  # or it was copied
            if damage := predictions.problem(info, path):
                left_out.append(f"left out: {path}: {damage}")
                continue
            rows += [(path, info, one) for one in predictions.score(info, path)]
        except UserError as error:
            left_out.append(f"left out: {error}")
    rows.sort(key=lambda row: row[1][predictions.KEY]["made"])
    if config.jsonl:
        for path, info, one in rows:
            facts = {"run": str(path), "id": info["id"], "made": info[predictions.KEY]["made"]} | asdict(one.prediction)
            value = one.value if one.value is not None and math.isfinite(one.value) else None
            print_json(dumps(facts | {"outcome": one.outcome, "value": value, "brier": one.brier, "why": one.why}))
        return 0
    if not rows and not left_out:
        print(f"No run under {config.root} has predictions: make some with `hone rl --predict`.")
        return 0
    table = [
        {
            "run": str(path),
            "prediction": one.prediction.statement,
            "probability": f"{one.prediction.p:g}",
            "outcome": predictions.word(one.outcome),
            "value": "-" if one.value is None else f"{one.value:.6g}",
            "Brier": "-" if one.brier is None else f"{one.brier:.4f}",
        }
        for path, _, one in rows
    ]
    print_table(table)
    if known := [one for _, _, one in rows if one.outcome is not None]:
        rate = fmean(bool(one.outcome) for one in known)
        brier = predictions.mean_brier(known)
        print(f"\nBrier score of {len(known)} decided: {brier:.4f} (0 is perfect; lower is better)")
        print(f"    always 0.5:  0.2500\n    always the share that came true ({rate:.2f}):  {rate * (1 - rate):.4f}")
    if undecided := len(rows) - len(known):
        print(f"{undecided} undecided: resume their runs to decide them (hone runs list says how).")
    if left_out:
        print("\n".join(left_out))
    return 0
