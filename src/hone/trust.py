"""Decides which code is executed. Code that a run names is executed only if the user trusts the run.

A command that opens a run works inside `opened_run`. Every loader of code (task files, functions, tasksets, agents,
sandboxes that are off) asks this module. Outside `opened_run`, the code is named by the user's config and is trusted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.view import INFO, REWARDS

FLAG = "--trust-local-task"


class NotTrusted(UserError):
    """Code named by a run was not executed; the message says how to allow it."""


@dataclass(frozen=True)
class OpenedRun:
    """A run. `digests`: of its code, from run.json; `named`: files that the user allows; `used`: named files loaded."""

    folder: Path
    digests: frozenset[str]
    trusted: bool
    named: frozenset[Path]
    used: set[Path] = field(default_factory=set)


_opened: OpenedRun | None = None
_noted: set[tuple[Path, str]] = set()
"""(Folder of the run, text) of each printed note."""


@contextmanager
def opened_run(folder: Path, info: Mapping[str, Any], trusted: bool, named: Iterable[str] = ()) -> Iterator[None]:
    """In the block, execute only code allowed for the run in `folder`. `named`: functions that the user allows."""
    global _opened
    digests = frozenset(map(str, (info.get("sources") or {}).values()))
    files = frozenset(module_file(place).resolve() for place in named)
    before, _opened = _opened, OpenedRun(folder.resolve(), digests, trusted, files)
    try:
        yield
        for file in sorted(files - _opened.used):
            _note(f"--reward had no effect for {file}: the run loaded no function from it")
    finally:
        _opened = before


def check_named(what: str) -> None:
    """Raise NotTrusted for code that the config of the opened run names, unless the run is trusted."""
    if _opened is not None and not _opened.trusted:
        allow = f"pass {FLAG}, or --reward for a reward function"
        raise NotTrusted(f"the run names {what}, which hone does not execute: read its code, then {allow}")


def module_file(place: str) -> Path:
    """Return the file of a function in the current folder: rewards.py for `rewards:f` and `rewards.py:f`."""
    module = place.rpartition(":")[0]
    return Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")


def is_stored(file: Path) -> bool:
    """Return True if this file is a run's rewards.py, which stores functions."""
    return file.name == REWARDS and (file.parent / INFO).exists()


def check_function(place: str) -> None:
    """Raise NotTrusted unless the user allows the function's file, or trusts the run and the file is not stored."""
    file = module_file(place)
    if _opened is None:
        return
    if file.resolve() in _opened.named:
        _opened.used.add(file.resolve())
    elif is_stored(file):
        raise NotTrusted(
            f"the run stores the function {place}, which hone executes only if you name it: read it, and pass "
            f"--reward {place}"
        )
    else:
        check_named(f"the function {place}")


def check_file(what: str, path: Path, digest: str) -> None:
    """Unless the run is trusted, raise NotTrusted for a task file that is inside the run, or that has changed.

    Otherwise, print once for each run which file is executed.
    """
    if _opened is None:
        return
    same = digest in _opened.digests
    if not _opened.trusted:
        refused = f"so it is not executed: read it first, and pass {FLAG}"
        if path.resolve().is_relative_to(_opened.folder):
            raise NotTrusted(f"{what} is {path} inside the run, {refused}")
        if not same:
            raise NotTrusted(
                f"{what} is {path} here (digest {digest[:8]}), which is not the file that the run was made with, "
                f"{refused}; or put the run's file there"
            )
    _note(f"{what} is {path}" + ("" if same else ", which is not the file that the run was made with"))


def note_digest(what: str, digest: Callable[[], str]) -> None:
    """If trusted code has changed since the opened run was made, print this once for each run."""
    if _opened is not None and (found := digest()) not in _opened.digests:
        _note(f"{what} is not what the run was made with (its digest {found[:8]} is not in run.json)")


def _note(text: str) -> None:
    assert _opened is not None
    if (_opened.folder, text) not in _noted:
        _noted.add((_opened.folder, text))
        print(f"note: {text}", file=sys.stderr)
