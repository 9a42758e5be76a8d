"""The samples of an evaluation as JSON lines, one completion each: `evals/step_N.jsonl` in a run, of version N, and
`results.jsonl` of `hone eval`.

SELECT outcome, count(*) FROM 'outputs/evals/step_*.jsonl' GROUP BY outcome  -- DuckDB
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.runs.checkpoint import step_of
from hone.runs.files import dumps, write_file

EVALS = "evals"
"""Folder of a run; `hone eval` may put folders of its own beside the files."""
RESULTS = "results.jsonl"


def evals_file(version: int) -> str:
    """Where the samples of the evaluation of a version lie, relative to the run."""
    return f"{EVALS}/step_{version:06d}.jsonl"


def evals_in(folder: Path) -> dict[int, Path]:
    """The evaluations of the run in `folder`, by version, ascending."""
    found = {step_of(path): path for path in (folder / EVALS).glob("step_*.jsonl")}
    return {step: found[step] for step in sorted(step for step in found if step is not None)}


def to_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Rows as `hone.evaluation.EvalSample.row` makes them, each as a line of JSON."""
    return [dumps(plain(row)) + "\n" for row in rows]


def as_read(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the values that reading them back gives."""
    return [json.loads(line) for line in to_lines(rows)]


def write_evaluation(folder: Path, version: int, rows: Sequence[dict[str, Any]]) -> str:
    """Write the samples of a version into the run in `folder`. Equal rows give equal bytes; returns their SHA-256."""
    content = "".join(to_lines(rows)).encode()
    (folder / EVALS).mkdir(exist_ok=True)
    write_file(folder / evals_file(version), content)
    return hashlib.sha256(content).hexdigest()


def plain(value: Any) -> Any:
    """`value` in what JSON knows: `info` may hold dates (Parquet), and NaN and infinities, which become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
