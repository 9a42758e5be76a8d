"""Files that survive a crash: whole files and directories appear complete or not at all, logs grow by whole lines.

A temporary name starts with `.tmp-hone-`, so leftovers of a killed process are recognised and cleaned up by `sweep`.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.checked import (
    EVENTS,
    LARGEST_LOG,
    NUMBERS,
    RESTORE,
    check_event,
    check_numbers,
    is_step,
    load_json,
    open_file,
    parse_json,
    read_file,
)

TMP_PREFIX = ".tmp-hone-"
NEW_PREFIX = TMP_PREFIX + "new-"
_OLD = TMP_PREFIX + "old-"
MARKER = "COMPLETE"
_UMASK = os.umask(0)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK
"""Of a file that a library made, which may be readable to its owner only."""


def dumps(value: Any) -> str:
    """One line of canonical JSON: keys in insertion order, floats by repr. NaN and infinity are refused: write None."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def write_file(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`: written beside it, flushed to the disk, then renamed over it."""
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
    with _naming(path):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)  # on a full disk its space is needed
            raise
        fsync_dir(path.parent)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Gives a system error that tells no file the name of this one: a failed `write` or `fsync` knows a number only."""
    try:
        yield
    except Exception as error:
        number = error_number(error)
        if number is not None and getattr(error, "filename", None) is None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def error_number(error: BaseException) -> int | None:
    """The system's number of an error, if it has one. Libraries written in Rust tell it in the text of their own."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error)) if isinstance(error, Exception) else None
    return int(found.group(1)) if found else None


def write_json(path: Path, value: Any) -> None:
    """`write_file` of indented JSON; NaN is refused."""
    write_file(path, json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


@contextmanager
def new_dir(path: Path) -> Iterator[Path]:
    """A temporary directory to fill, which becomes `path` in one step when the block ends, replacing an earlier one.

    Last of all it gets a file `COMPLETE`: JSON with the size and SHA-256 of every other file. If the block raises, the
    temporary directory is removed and `path` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{NEW_PREFIX}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        with _naming(path):
            yield temporary
            _seal(temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    with _naming(path):
        _swap_in(temporary, path)


def _seal(temporary: Path) -> None:
    """Flush all files of a directory, and write its completion marker."""
    files = {
        name: {"bytes": (temporary / name).stat().st_size, "sha256": sha256(temporary / name)}
        for name in _files(temporary)
    }
    for name in files:
        os.chmod(temporary / name, FILE_MODE)  # safetensors makes files that only their owner can read
        _fsync(temporary / name)
    for folder in {(temporary / name).parent for name in files}:
        fsync_dir(folder)
    write_file(temporary / MARKER, dumps({"files": files}) + "\n")


def _swap_in(temporary: Path, path: Path) -> None:
    """Rename a finished directory into place. Killed between the two renames, `sweep` does the second.

    OSError, with `temporary` left, if what lies there was not made by `new_dir`.
    """
    if path.exists():
        if not (path / MARKER).is_file():
            raise FileExistsError(
                errno.EEXIST, f"hone did not write it, so it is not replaced by {temporary}", str(path)
            )
        old = path.with_name(f"{_OLD}{path.name}")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
        os.rename(temporary, path)
        shutil.rmtree(old)
    else:
        os.rename(temporary, path)
    fsync_dir(path.parent)


def remove_dir(path: Path) -> None:
    """Delete a directory so that a crash midway leaves only a leftover, never a directory with files missing."""
    old = path.with_name(f"{_OLD}{path.name}")
    shutil.rmtree(old, ignore_errors=True)
    os.rename(path, old)
    shutil.rmtree(old)


def sweep(folder: Path) -> None:
    """Clean up what a killed process left in `folder`: finished directories move into place, the rest is deleted."""
    if not folder.is_dir():
        return
    for leftover in sorted(folder.glob(TMP_PREFIX + "*")):
        target = folder / leftover.name.removeprefix(NEW_PREFIX)
        if leftover.name.startswith(NEW_PREFIX) and is_complete(leftover) and not target.exists():
            os.rename(leftover, target)
        elif leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def is_complete(folder: Path) -> bool:
    """True if `folder` has its completion marker and every file it lists, at the right size. Reads no content."""
    return folder.is_dir() and not _problems(folder, content=False)


def verify(folder: Path) -> list[str]:
    """What is wrong with a directory made by `new_dir`, in words; empty if every byte is as it was written."""
    return _problems(folder, content=True)


def _problems(folder: Path, content: bool) -> list[str]:
    listed = _listed(folder)
    if listed is None:
        return [f"{folder.name} has no readable completion marker"]
    problems = [] if listed else [f"{folder.name} has a completion marker that lists no file"]
    for name, facts in listed.items():
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif file.stat().st_size != facts["bytes"]:
            problems.append(f"{name} has {file.stat().st_size} bytes instead of {facts['bytes']}")
        elif content and sha256(file) != facts["sha256"]:
            problems.append(f"{name} has changed since it was written (SHA-256 differs)")
    if content:
        more = [name for name in _files(folder) if name not in listed and name != MARKER]
        hidden = {name for name in more if any(part.startswith(".") for part in Path(name).parts)}
        problems += [f"{name} was added: the completion marker does not list it" for name in more if name not in hidden]
    return problems


def _listed(folder: Path) -> dict[str, dict[str, Any]] | None:
    """The facts about each file in a completion marker; None if it isn't one."""
    try:
        listed = read_json(folder / MARKER)["files"]
        facts = [(one["bytes"], one["sha256"]) for one in listed.values()]
    except (OSError, UserError, KeyError, TypeError, AttributeError):
        return None
    fine = all(isinstance(size, int) and isinstance(digest, str) for size, digest in facts)
    return listed if fine else None


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """Hex SHA-256 of a file's content. UserError if it can't be read; FileNotFoundError if there is none."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_dir(folder: Path) -> None:
    """Flush a directory's entries, so that a rename in it survives a power loss."""
    _fsync(folder)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, `[]` if there is none. A torn last line is ignored; nothing is written."""
    return [read_record(path, number, line) for number, line in enumerate(whole_lines(path), 1)]


def read_record(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The record in a line of a log. UserError if it isn't one: a JSON object whose step, if it has one, is a number;
    in a log of numbers all its values are numbers or null, in events.jsonl it has a kind.
    """
    try:
        numbers = path.name in NUMBERS
        record = load_json(line) if numbers else parse_json(line)
        if not isinstance(record, dict) or not is_step(record.get("step", 0), optional=not numbers):
            raise ValueError("not a record of a step")
        if numbers:
            check_numbers(record)
        if path.name == EVENTS:
            check_event(record)
    except ValueError as error:
        raise UserError(f"{path}, line {number}, is damaged ({error}): mend or delete that line") from None
    return record


def read_json(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """A JSON file that holds an object. UserError with the remedy if it is damaged or can't be read;
    FileNotFoundError if there is none.
    """
    try:
        value = parse_json(read_file(path, remedy))
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from None
    return value


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file, `[]` if there is none. What follows the last line's end is a torn line, and left out.

    UserError if it can't be read.
    """
    return split_whole(read_file(path, most=LARGEST_LOG)) if os.path.lexists(path) else []


def split_whole(data: bytes) -> list[bytes]:
    """The lines of `data` that have an end, with it."""
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


class JsonlLog:
    """An append-only file of JSON lines, each written by one `write` call. A torn last line is dropped on open.

    Several threads may append. `bytes` and `sha256` tell how far it has come and what is in it.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._open()

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        whole = b"".join(whole_lines(self.path))
        self.bytes = len(whole)
        self._hash = hashlib.sha256(whole)
        if self.bytes != os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, self.bytes)

    @property
    def sha256(self) -> str:
        """Hex SHA-256 of the file as it is."""
        return self._hash.hexdigest()

    def append(self, record: dict[str, Any]) -> bytes:
        """Write one line, and return it. Raises OSError, leaving the file as it was, if the disk doesn't take all."""
        line = (dumps(record) + "\n").encode()
        with self._lock:
            try:
                if os.write(self._fd, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError as error:
                os.ftruncate(self._fd, self.bytes)
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self.bytes += len(line)
            self._hash.update(line)
        return line

    def rewind(self, goes: Callable[[dict[str, Any]], bool], moved_to: Path) -> None:
        """Move the lines for which `goes(record)` to the file `moved_to`.

        They are written there before they are removed here, so that a crash loses none of them and doing it again gives
        the same two files. Without such lines nothing is written.
        """
        kept, removed = [], []
        for number, line in enumerate(whole_lines(self.path), 1):
            (removed if goes(read_record(self.path, number, line)) else kept).append(line)
        if removed:
            write_file(moved_to, b"".join(removed))
            write_file(self.path, b"".join(kept))
            self.close()
            self._open()

    def sync(self) -> None:
        """Flush to the disk."""
        with _naming(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
