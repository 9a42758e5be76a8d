"""Files that survive a crash: files and directories appear complete or not at all, logs grow by whole lines.

Readers check that files are regular, and that JSON is finite and not deeply nested.

Temporary names start with `.tmp-hone-`, so that `sweep` finds and cleans up what a killed process left.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.redaction import map_texts, redact

TMP_PREFIX = ".tmp-hone-"
NEW_PREFIX = TMP_PREFIX + "new-"
_OLD = TMP_PREFIX + "old-"
MARKER = "COMPLETE"
_UMASK = os.umask(0)
os.umask(_UMASK)
FILE_MODE = 0o666 & ~_UMASK
"""Mode of a file that `open` creates."""
RESTORE = "fix it, or restore a backup"
"""The remedy for a damaged file."""


def dumps(value: Any) -> str:
    """Return canonical JSON on one line: keys in insertion order, floats by repr, no API keys, no NaN or infinity."""
    return json.dumps(map_texts(redact, value), ensure_ascii=False, allow_nan=False)


def write_file(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content`: write a file beside it, flush it to the disk, rename it to `path`."""
    write_files(path.parent, {path.name: content})


def write_files(folder: Path, contents: Mapping[str, bytes | str]) -> None:
    """Replace files of `folder` in order, by name. If they don't all fit on the disk, replace none."""
    temporary = {name: folder / f"{NEW_PREFIX}{name}" for name in contents}
    try:
        for name, content in contents.items():
            with _naming(folder / name), open(temporary[name], "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        for name in contents:
            os.replace(temporary[name], folder / name)
    except OSError:
        for path in temporary.values():  # on a full disk their space is needed
            path.unlink(missing_ok=True)
        raise
    with _naming(folder):
        _fsync(folder)


def write_json(path: Path, value: Any) -> None:
    write_file(path, to_json(value))


def to_json(value: Any) -> str:
    """Return indented JSON with a final line end, without API keys. Raises ValueError for NaN."""
    return json.dumps(map_texts(redact, value), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add `path` to a system error that lacks a file name, such as an error of `fsync`."""
    try:
        yield
    except Exception as error:
        number = error_number(error)
        if number is not None and getattr(error, "filename", None) is None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def error_number(error: BaseException) -> int | None:
    """Return the system's number of an error, or None. Errors of Rust libraries have it in their text."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error)) if isinstance(error, Exception) else None
    return int(match[1]) if match else None


@contextmanager
def new_dir(path: Path) -> Iterator[Path]:
    """Yield a temporary directory to fill. When the block ends, this directory replaces `path` in one step.

    Before this it gets a file `COMPLETE`: JSON with the size and SHA-256 of every other file. If the block raises,
    `path` stays as it was. Raises OSError if `path` exists without a file `COMPLETE`.
    """
    if path.exists() and not (path / MARKER).is_file():
        raise FileExistsError(errno.EEXIST, "hone did not write it, so it is not replaced", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = path.with_name(f"{NEW_PREFIX}{path.name}"), path.with_name(f"{_OLD}{path.name}")
    for leftover in (temporary, old):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    with _naming(path):
        try:
            yield temporary
            _seal(temporary)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if path.exists():
            os.rename(path, old)
        os.rename(temporary, path)  # killed before it, `sweep` does it
        shutil.rmtree(old, ignore_errors=True)
        _fsync(path.parent)


def save_tensors(tensors: dict[str, Any], file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file with the usual mode, because the library's mode lets only the owner read."""
    from safetensors.torch import save_file

    save_file(tensors, file, metadata=metadata)
    file.chmod(FILE_MODE)


def _seal(temporary: Path) -> None:
    names = _files(temporary)
    listed = {name: {"bytes": (temporary / name).stat().st_size, "sha256": sha256(temporary / name)} for name in names}
    for name in names:
        _fsync(temporary / name)
    for folder in {(temporary / name).parent for name in names}:
        _fsync(folder)
    write_file(temporary / MARKER, dumps({"files": listed}) + "\n")


def remove_dir(path: Path) -> None:
    """Delete a directory. A crash midway leaves a temporary directory, never an incomplete `path`."""
    old = path.with_name(f"{_OLD}{path.name}")
    shutil.rmtree(old, ignore_errors=True)
    os.rename(path, old)
    shutil.rmtree(old)


def sweep(folder: Path) -> None:
    """Clean up what a killed process left in `folder`: finished directories move into place, the rest is deleted."""
    for leftover in sorted(folder.glob(TMP_PREFIX + "*")):
        target = folder / leftover.name.removeprefix(NEW_PREFIX)
        if leftover.name.startswith(NEW_PREFIX) and is_complete(leftover) and not target.exists():
            os.rename(leftover, target)
        elif leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def is_complete(folder: Path) -> bool:
    """Return True if `new_dir` made the directory and its files have the right names and sizes. Reads no contents."""
    return not verify(folder, content=False)


def verify(folder: Path, content: bool = True) -> list[str]:
    """Return the problems of a directory made by `new_dir`. If `content` is false, check only names and sizes."""
    try:
        listed = read_json(folder / MARKER)["files"]
        facts = {name: (int(file["bytes"]), str(file["sha256"])) for name, file in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [f"{folder.name} has no readable file {MARKER}"]
    problems = [] if facts else [f"{folder.name} has a file {MARKER} that lists no file"]
    for name, (size, digest) in facts.items():
        file = folder / name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif file.stat().st_size != size:
            problems.append(f"{name} has {file.stat().st_size} bytes instead of {size}")
        elif content and sha256(file) != digest:
            problems.append(f"{name} has changed since it was written (SHA-256 differs)")
    for name in _files(folder) if content else ():
        if name not in facts and name != MARKER and not any(part.startswith(".") for part in Path(name).parts):
            problems.append(f"{name} was added: the file {MARKER} does not list it")
    return problems


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sha256(path: Path) -> str:
    """Return the hex SHA-256 of a file. Raises UserError if it can't be read, FileNotFoundError if it is missing."""
    with open_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_file(path: Path, remedy: str = RESTORE) -> BufferedReader:
    """Open a run's file. Raises FileNotFoundError if it is missing, UserError with `remedy` if it can't be read."""
    if os.path.lexists(path) and not path.is_file():
        raise UserError(f"{path} cannot be read (it is no regular file): {remedy}")
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {remedy}") from None


def read_file(path: Path, remedy: str = RESTORE) -> bytes:
    """Return the bytes of a run's file. Raises UserError if it has more than 2 GiB, else as `open_file` does."""
    with open_file(path, remedy) as file:
        if (size := os.fstat(file.fileno()).st_size) > 2**31:
            raise UserError(f"{path} cannot be read (it has {size:,} bytes): {remedy}")
        return file.read()


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON value. Raises ValueError if it is invalid or fails `check_plain`."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    check_plain(value)
    return value


def check_plain(value: Any, depth: int = 64, finite: bool = True) -> None:
    """Raise ValueError for nesting beyond `depth`, numbers too large for a float and, if `finite`, NaN or infinity."""
    if isinstance(value, dict | list):
        if depth == 0:
            raise ValueError("nested too deeply")
        for one in value.values() if isinstance(value, dict) else value:
            check_plain(one, depth - 1, finite)
    elif isinstance(value, int | float if finite else int) and not is_number(value):
        raise ValueError("a number that is not finite")


def is_number(value: Any) -> bool:
    """Return True for a valid value of a metric: a finite number, a bool, or None if it was not finite."""
    return value is None or (isinstance(value, int | float) and -1e300 < value < 1e300)


def parse_time(stamp: Any) -> datetime | None:
    """Return an ISO time in this machine's time zone; None for None or "". Raises ValueError for other texts."""
    try:
        return datetime.fromisoformat(stamp).astimezone() if stamp not in (None, "") else None
    except (OverflowError, TypeError):
        raise ValueError(f"{stamp!r} is not a time") from None


def read_json(path: Path, remedy: str = RESTORE) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises UserError with `remedy` if the file is damaged, and FileNotFoundError if it is missing.
    """
    data = read_file(path, remedy)
    try:
        value = parse_json(data)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from None
    return value


def whole_lines(path: Path) -> list[bytes]:
    """Return a file's lines with their ends, without a torn last line; [] if there is no file."""
    return split_lines(read_file(path)) if os.path.lexists(path) else []


def split_lines(data: bytes) -> list[bytes]:
    return data[: data.rfind(b"\n") + 1].splitlines(keepends=True)


class JsonlLog:
    """An append-only file of JSON lines. One `write` call writes each line, and several threads may append.

    Opening drops a torn last line. `bytes` and `sha256` describe the current file.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        whole = b"".join(whole_lines(path))
        self.bytes = len(whole)
        self._hash = hashlib.sha256(whole)
        if self.bytes != os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, self.bytes)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()

    def append(self, record: dict[str, Any]) -> bytes:
        """Write one line, and return it. Raises OSError, leaving the file as it was, if the line doesn't fit."""
        line = (dumps(record) + "\n").encode()
        with self._lock, _naming(self.path):
            try:
                if os.write(self._fd, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._fd, self.bytes)
                raise
            self.bytes += len(line)
            self._hash.update(line)
        return line

    def sync(self) -> None:
        with _naming(self.path):
            os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
