"""Finds runs on disk: all runs under a folder, or a run that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.outputs import OUTPUTS
from hone.runs.view import INFO, NAMES, PREVIOUS, run_info


def find_runs(root: Path) -> Iterator[Path]:
    """Yield `root` and the directories below it that have a run.json, also inside runs and in `.previous/`.

    Folders that a run writes are not searched, and links are not followed. Raises UserError if `root` is no folder.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: name the folder of your runs, as in `hone runs list FOLDER`")
    for folder, names, files in os.walk(root):
        is_run = INFO in files
        if is_run:
            yield Path(folder)
        skipped = NAMES if is_run else ()
        names[:] = sorted(n for n in names if n not in skipped and (n == PREVIOUS or not n.startswith(".")))


def is_previous(path: Path) -> bool:
    return PREVIOUS in path.parts


def count_text(runs: int, evaluations: int, previous: int) -> str:
    """Return a text such as `4 runs, 1 evaluation, 2 earlier runs`. Zero counts are left out, except `0 runs`."""
    counts = ((runs, "run"), (evaluations, "evaluation"), (previous, "earlier run"))
    parts = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in counts if count or word == "run"]
    return ", ".join(parts)


def find_run(name: str) -> Path:
    """Return the directory of a run by its path, its id in `outputs` or a unique start of the id; else UserError."""
    path = Path(name)
    if os.path.lexists(path / INFO):
        return path
    if path.is_dir():
        inside = [str(found) for found in find_runs(path) if not is_previous(found) and _info(found)["kind"] != "eval"]
        shown = ", ".join(inside[:3]) + (f" and {len(inside) - 3} more" if len(inside) > 3 else "")
        instead = f"one of the runs in it ({shown})" if inside else "a directory that `hone rl` or `hone sft` wrote"
        raise UserError(f"{path} is not a run of hone, for it has no run.json: name {instead}")
    ids = {found: _info(found)["id"] for found in find_runs(OUTPUTS)} if OUTPUTS.is_dir() else {}
    matches = [found for found in ids if ids[found] == name] or [found for found in ids if ids[found].startswith(name)]
    if len(matches) > 1:
        places = ", ".join(map(str, matches))
        raise UserError(f"{name} could be any of {len(matches)} runs: name its directory ({places})")
    if not matches:
        raise UserError(
            f"there is no run {name}: name its directory, or an id that `hone runs list --ids` shows for runs in "
            f"{OUTPUTS}"
        )
    return matches[0]


def _info(folder: Path) -> dict[str, Any]:
    return run_info(folder) or {"id": "", "kind": ""}
