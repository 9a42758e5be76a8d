"""Ownership of output directories: hone recognises its files by run.json, and never touches other files."""

from __future__ import annotations

import atexit
import fcntl
import itertools
import os
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from hone.config.base import changed
from hone.config.shared import TRANSPORT, RunConfig
from hone.errors import UserError
from hone.runs import view
from hone.runs.files import TMP_PREFIX, sweep

Config = TypeVar("Config", bound=RunConfig)

OUTPUTS = Path("outputs")
"""The folder for runs of configs without an `output_dir`."""
_FINE = {view.PREVIOUS, view.LOCK, view.LAUNCHER, TRANSPORT}
_FINE |= {".gitignore", ".gitkeep", ".DS_Store", "summary.json", "reward.svg"}


def _run_around(path: Path) -> tuple[Path, str] | None:
    """Return the run that `path` lies in, and the name of the run's file or folder there ("" for the run itself)."""
    inner = path.resolve()
    for outer in (inner, *inner.parents):
        name = (*inner.relative_to(outer).parts, "")[0]
        if name in ("", *view.NAMES) and view.run_info(outer) is not None:
            return outer, name
    return None


def refuse_inside_run(path: Path, flag: str) -> None:
    if around := _run_around(path):
        raise UserError(f"{path} lies in the run {around[0]}, where nothing may be written: choose another {flag}")


def check_target(path: Path, flag: str) -> None:
    """Raise UserError if `path`, given by `flag`, can't be written. Call it before long work."""
    refuse_inside_run(path, flag)
    refuse_inside_run(path.parent, flag)
    if path.is_dir():
        raise UserError(f"{flag} {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UserError(f"{flag} {path}: there is no folder {path.parent}")


def with_own_folder(config: Config, name: str) -> Config:
    """Return the config with its `output_dir` or, if unset, a new `outputs/NAME-N` with the first free number.

    The folder is created to reserve it; `delete_unused` deletes it if it stays empty. With `resume`, the folder of the
    last run of this name is used.
    """
    if "output_dir" in config.model_fields_set:
        return config
    stem = re.sub(r"[^\w.-]+", "-", name)[:60].strip("-.")
    if config.resume is not None and config.resume.dir is None:
        form = re.compile(rf"{re.escape(stem)}-([1-9]\d*)")
        numbered = {path: int(match[1]) for path in OUTPUTS.glob(f"{stem}-*") if (match := form.fullmatch(path.name))}
        if begun := [path for path in numbered if view.run_info(path) is not None]:
            return changed(config, {"output_dir": max(begun, key=lambda path: numbered[path])})
    _made.extend([] if OUTPUTS.exists() else [OUTPUTS.absolute()])
    for number in itertools.count(1):
        folder = OUTPUTS / f"{stem}-{number}"
        with writable(folder):
            OUTPUTS.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                folder.mkdir()
                break
    _made.append(folder.absolute())
    return changed(config, {"output_dir": folder})


_made: list[Path] = []
"""Folders that `with_own_folder` made in this process, outer ones first."""


@atexit.register
def delete_unused() -> None:
    while _made:
        with suppress(OSError):  # it holds a run
            _made.pop().rmdir()


def check_output(folder: Path, protect: list[Path]) -> None:
    """Raise UserError if a new run in `folder` would touch foreign files, or files that the run reads (`protect`)."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a directory: choose another --output-dir")
    if (around := _run_around(folder)) and (name := around[1]):
        raise UserError(f"{folder} lies in {name} of the run in {around[0]}: choose another --output-dir")
    if not folder.exists():
        return
    foreign = []
    for path in sorted(folder.iterdir()) if view.run_info(folder) is None else ():
        fine = path.name in _FINE or path.name.startswith(TMP_PREFIX) or path.name.endswith(view.CERTIFICATE)
        if path.name in view.NAMES or not (fine or (path.is_dir() and not path.is_symlink())):
            foreign.append(path.name)
    if foreign:
        shown = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise UserError(
            f"{folder} holds files that are not a run of hone ({shown}) and is left untouched: "
            "choose an empty or new --output-dir"
        )
    inner = folder.resolve()
    moved = [inner, *(path for path in _run_files(inner) if path.exists())]
    for source in protect:
        if any(source.resolve() == path or (path != inner and path in source.resolve().parents) for path in moved):
            raise UserError(
                f"{source} is needed by this run, but lies in the output directory {folder}, which a new run clears: "
                f"choose another, such as --output-dir {folder}-2"
            )


def check_free_names(folder: Path, names: Iterable[str]) -> None:
    """Raise UserError if a file with one of these names exists, but no run of hone wrote it."""
    known = (view.run_info(folder) or {}).get("kept", [])
    for name in names:
        if name not in known and os.path.lexists(folder / name):
            raise UserError(
                f"{folder / name} is not a file of a run, and this run would write a file there: move it, or "
                "choose another output_dir"
            )


def clear(folder: Path) -> Path | None:
    """Move the earlier run in `folder` to `.previous/<its id>`, run.json last. After a crash, call this again."""
    sweep_run(folder)
    info = view.run_info(folder)
    if info is None:
        return None
    place = folder / view.PREVIOUS / info["id"]
    place.mkdir(parents=True, exist_ok=True)
    for path in _run_files(folder):
        if os.path.lexists(path):
            (place / path.relative_to(folder)).parent.mkdir(exist_ok=True)
            os.rename(path, place / path.relative_to(folder))
    if (folder / view.EVALS).is_dir() and not any((folder / view.EVALS).iterdir()):
        (folder / view.EVALS).rmdir()
    return place


def size_of_run(folder: Path) -> int:
    files = [file for path in _run_files(folder) for file in (path, *path.rglob("*")) if not file.is_symlink()]
    return sum(file.stat().st_size for file in files if file.is_file())


def delete_run(folder: Path) -> None:
    """Delete the files of the run in `folder`, run.json last; follow no links. Raises UserError if it is active."""
    with writable(folder):
        lock = Lock(folder)
        try:
            for path in [folder / TRANSPORT, *_run_files(folder)]:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        finally:
            lock.release()
        for name in (view.LOCK, view.LAUNCHER):
            (folder / name).unlink(missing_ok=True)
    for path in (folder / view.EVALS, folder):
        with suppress(OSError):  # it holds something else
            path.rmdir()


def _run_files(folder: Path) -> list[Path]:
    given = [name for name in view.GIVEN if name in (view.run_info(folder) or {}).get("kept", [])]
    return [*view.steps_in(folder / view.EVALS, ".jsonl").values(), *(folder / name for name in (*given, *view.NAMES))]


def sweep_run(folder: Path) -> None:
    shutil.rmtree(folder / view.SPOOL, ignore_errors=True)
    for name in ("", *view.OF_STEPS, *view.OF_VERSIONS):
        sweep(folder / name)


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block, which writes to `folder`, into a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} can't be written ({error.strerror or error}): choose another --output-dir"
        ) from None


_held: WeakValueDictionary[Path, Lock] = WeakValueDictionary()


class Lock:
    """The lock of the process that writes a run (file LAUNCHER: of the run's launcher), held until the process ends.

    A record lock (`lockf`) is not inherited, so a worker that outlives its parent doesn't hold it.
    """

    def __init__(self, folder: Path, name: str = view.LOCK):
        self._path = (folder / name).resolve()
        if self._path in _held:  # the system's lock is a process's
            raise UserError(f"this program is writing a run in {folder} already: end it, or choose another output_dir")
        self._file = open(folder / name, "a")  # noqa: SIM115 (held until release)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            self._file.close()
            raise UserError(
                f"another process is writing a run in {folder}: wait for it, or choose another --output-dir"
            ) from None
        except OSError:
            pass  # a file system without locks: nothing to hold
        _held[self._path] = self

    def release(self) -> None:
        _held.pop(self._path, None)
        self._file.close()


ELSEWHERE = 0
"""The process has no id here: it is on another machine, or outside this container."""


def holder(folder: Path) -> int | None:
    """Return the id of the process that writes the run in `folder`; `ELSEWHERE` if it has no id here; None if idle.

    If there is a launcher, its id is returned, because it handles signals. The process that has the lock must not call
    this: closing the file releases the lock.
    """
    launcher = _holder(folder / view.LAUNCHER)
    return _holder(folder / view.LOCK) if launcher is None else launcher


def _holder(lock: Path) -> int | None:
    # struct flock: (type, whence, start, length, pid) on Linux, (start, length, pid, type, whence) on macOS and BSD.
    bsd = sys.platform == "darwin" or "bsd" in sys.platform
    layout, kind, pid = ("qqihh", 3, 2) if bsd else ("hhqqi0q", 0, 4)
    question = [0] * 5  # what would be in the way of an exclusive lock on all of the file
    question[kind] = fcntl.F_WRLCK
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except PermissionError:
        return ELSEWHERE  # another user's run: whether it is written can't be asked
    try:
        answer = struct.unpack(layout, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(layout, *question)))
    except OSError:
        return None  # a file system without locks: a run there holds none
    finally:
        os.close(descriptor)
    return None if answer[kind] == fcntl.F_UNLCK else max(answer[pid], ELSEWHERE)
