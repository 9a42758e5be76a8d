"""Changing a recorded run as someone might who knows its format, and seeing that nothing was changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_folders import snapshot as snapshot

from hone.config.rl import RLConfig
from hone.loops.groups import group_state, step_metrics
from hone.runs import Run
from hone.runs.files import sha256
from hone.runs.rollouts import read_rollouts, write_evaluation, write_rollouts

Row = dict[str, Any]


def edit_rollouts(run: Path, step: int, change: Callable[[list[Row]], None], fit_hashes: bool = False) -> None:
    path = run / "rollouts" / f"step_{step:06d}.parquet"
    rows = read_rollouts(path).to_pylist()
    change(rows)
    write_rollouts(path, rows)
    if fit_hashes:
        edit_hashes(run, step, rollouts=sha256(path))


def edit_evaluation(run: Path, version: int, change: Callable[[list[Row]], object], fit_hashes: bool = False) -> None:
    rows = Run(run).eval_rows(version)
    change(rows)
    digest = write_evaluation(run, version, rows)
    if fit_hashes:
        edit_hashes(run, version, evals=digest)


def edit_hashes(run: Path, step: int, **fields: str | None) -> None:
    edit_line(run / "hashes.jsonl", step, lambda line: line.update(fields))


def fit_advantages_and_metrics(run: Path, step: int) -> None:
    """Makes all that follows from the rewards of a step fit them, and the hashes of that."""
    from hone.extensions.reproduce.execution import groups_from_rows
    from hone.extensions.reproduce.records import Records

    def fit(rows: list[Row]) -> None:
        for row, (advantage, state) in zip(rows, made, strict=True):
            row.update(advantage=advantage, state=state)

    groups = groups_from_rows(Records(Run(run)).rows(step) or [], RLConfig(), 10**6)
    made = [(float(advantage), group_state(group)) for group in groups for advantage in group.advantages]
    edit_rollouts(run, step, fit, fit_hashes=True)
    recorded = Records(Run(run)).metrics[step]
    for name, value in step_metrics(groups, step, lag=1).items():
        if name in recorded:
            edit_metrics(run, step, name, value, fit_hashes=True)


def edit_metrics(run: Path, step: int, name: str, value: float, fit_hashes: bool = False) -> None:
    line = edit_line(run / "metrics.jsonl", step, lambda line: line.update({name: value}))
    if fit_hashes:
        edit_hashes(run, step, metrics=hashlib.sha256(line.encode()).hexdigest())


def edit_line(path: Path, step: int, change: Callable[[Row], object]) -> str:
    lines = path.read_text().splitlines(keepends=True)
    (index,) = [i for i, line in enumerate(lines) if json.loads(line)["step"] == step]
    record = json.loads(lines[index])
    change(record)
    lines[index] = json.dumps(record, ensure_ascii=False) + "\n"
    path.write_text("".join(lines))
    return lines[index]


def edit_tensor(file: Path, name: str, fit_marker: bool = False) -> None:
    """Changes one number of one tensor."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    tensors[name].view(-1)[0] += 0.25
    save_file(tensors, file)
    if fit_marker:
        fit_complete(file.parent)


def fit_complete(folder: Path) -> None:
    """Rewrites the completion marker so that it fits what is there."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "COMPLETE"]
    facts = {str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in files}
    (folder / "COMPLETE").write_text(json.dumps({"files": facts}) + "\n")
