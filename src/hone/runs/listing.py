"""Finding runs on disk: all of those under a folder, or the one that a user names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from hone.errors import UserError
from hone.runs.outputs import NAMES, PREVIOUS, run_info

DEFAULT_ROOT = Path("outputs")


def find_runs(root: Path) -> Iterator[Path]:
    """Yield every directory under `root`, itself included, with a run.json; runs within runs and in `.previous/` too.

    A run's own folders (weights, what a resume superseded) are not searched; links are not followed.
    Raises UserError if there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: name the one that holds your runs, as in `hone runs list FOLDER`")
    for folder, names, files in os.walk(root):
        is_run = "run.json" in files
        if is_run:
            yield Path(folder)
        own = NAMES if is_run else ()
        names[:] = sorted(n for n in names if n not in own and (n == PREVIOUS or not n.startswith(".")))


def is_previous(path: Path) -> bool:
    """Return True for a run that a later one in the same directory has moved aside."""
    return PREVIOUS in path.parts


def find_run(name: str, root: Path = DEFAULT_ROOT) -> Path:
    """Return the directory of the run that `name` means: a directory, or an id (or its unique beginning) under `root`.

    UserError, naming what is there, if it means none or several.
    """
    path = Path(name)
    if os.path.lexists(path / "run.json"):
        return path
    if path.is_dir():
        inside = [found for found in find_runs(path) if not is_previous(found) and _fact(found, "kind") != "eval"]
        raise UserError(f"{path} is not a run of hone, for it has no run.json{_instead(inside)}")
    matches = [found for found in find_runs(root) if _fact(found, "id").startswith(name)] if root.is_dir() else []
    exact = [found for found in matches if _fact(found, "id") == name]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        places = ", ".join(map(str, exact or matches))
        raise UserError(f"{name} could be any of {len(exact or matches)} runs: name its directory ({places})")
    raise UserError(
        f"there is no run {name}: name its directory, or an id that `hone runs list --ids` shows for those under {root}"
    )


def _instead(inside: list[Path]) -> str:
    if not inside:
        return ": name a directory that `hone rl` or `hone sft` wrote"
    shown = ", ".join(map(str, inside[:3])) + (f" and {len(inside) - 3} more" if len(inside) > 3 else "")
    return f": name one of the runs in it ({shown})"


def _fact(folder: Path, name: str) -> str:
    info = run_info(folder)
    return info[name] if info else ""
