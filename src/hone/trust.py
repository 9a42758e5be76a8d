"""Decides which code is executed: code that somebody's run names, only if it is trusted.

A command that opens a run does its work inside `opened_run`. Whatever is about to load code asks here, however deep in
other tasks it is called: task files and functions (`environments.task_files`), tasksets of other libraries, command
lines of agents, sandboxes that are switched off. Outside such a block the user's own config names the code.
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
    """Code that a run names is not executed, and how to have it executed."""


@dataclass(frozen=True)
class OpenedRun:
    """A run that a command works with; `digests` are the digests of task files and functions in its run.json.

    `named` are the files of the functions that the user names; hone has loaded functions from `used`.
    """

    folder: Path
    digests: frozenset[str]
    trusted: bool
    named: frozenset[Path]
    used: set[Path] = field(default_factory=set)


_opened: OpenedRun | None = None
_noted: set[tuple[Path, str]] = set()
"""Runs, and the notes that were printed about their code."""


@contextmanager
def opened_run(folder: Path, info: Mapping[str, Any], trusted: bool, named: Iterable[str] = ()) -> Iterator[None]:
    """Load, in this block, only code that may be executed for the run in `folder`; `info` is its run.json.

    `named` are functions (MODULE:NAME, FILE.py:NAME) that the user names.
    """
    global _opened
    digests = frozenset(map(str, (info.get("sources") or {}).values()))
    files = frozenset(module_file(place).resolve() for place in named)
    before, _opened = _opened, OpenedRun(folder.resolve(), digests, trusted, files)
    try:
        yield
        for file in sorted(files - _opened.used):
            _note(f"--reward had no effect for {file}: the run loaded no function of it")
    finally:
        _opened = before


def check_named(what: str) -> None:
    """Raise NotTrusted for code that the config of the opened run names, unless the run is trusted."""
    if _opened is not None and not _opened.trusted:
        only = f"executes only with {FLAG}, or a reward function with --reward"
        raise NotTrusted(f"the run names {what}, which hone {only}: read its code first")


def module_file(place: str) -> Path:
    """Return where the file of a function is, if it is here: `rewards:f` and `rewards.py:f` are in rewards.py."""
    module = place.rpartition(":")[0]
    return Path(module if module.endswith(".py") else f"{module.replace('.', '/')}.py")


def is_stored(file: Path) -> bool:
    """Return True if a run stores in this file the functions that a program gave it."""
    return file.name == REWARDS and (file.parent / INFO).exists()


def check_function(place: str) -> None:
    """Raise NotTrusted for a function that the config of the opened run names, unless the user names its file.

    If the run is trusted, only a function that a run stores has to be named.
    """
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
    """Raise NotTrusted for a local task file that is not trusted: another one than the opened run was made with, or one
    that came with the run. Says on standard error, once for the run, which file is executed.
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
    """Say on standard error, once for the run, that code which is trusted is not what the opened run was made with."""
    if _opened is not None and (found := digest()) not in _opened.digests:
        _note(f"{what} is not what the run was made with (its digest {found[:8]} is not in run.json)")


def _note(text: str) -> None:
    assert _opened is not None
    if (_opened.folder, text) not in _noted:
        _noted.add((_opened.folder, text))
        print(f"note: {text}", file=sys.stderr)
