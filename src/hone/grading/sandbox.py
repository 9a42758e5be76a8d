"""Running Python code that nobody has read: a fresh process tree for each call, with nothing in reach.

    ran = Sandbox().run("print(6 * 7)")
    ran.status, ran.output  # ("ok", "42\\n")

bubblewrap gives the code its own namespaces, a file system that holds the interpreter and an empty scratch folder, no
network and no rights; a filter (`seccomp.py`) refuses the system calls that a calculation never makes; limits end what
takes too much. See docs/tasks.md for what it promises.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from dataclasses import dataclass, replace
from typing import Literal

from hone.errors import UserError
from hone.grading import sandbox_bubblewrap as bubblewrap
from hone.grading import seccomp
from hone.grading.sandbox_bubblewrap import package_roots, readable
from hone.grading.sandbox_start import NO_MEMORY, NOT_STARTED, OWN_TASKS, Place, Started
from hone.grading.sandbox_watch import Bounds, Watched, watch

Status = Literal["ok", "error", "timeout", "memory", "output", "processes"]
Isolation = Literal["bubblewrap", "none"]

_INODES = 16384
"""Files and folders in the scratch folder: the kernel's memory for them is nobody else's limit."""
_PROBE = {"cpu": 30, "memory": 2 << 30, "processes": 4, "file": 1 << 20}
_works: dict[tuple[str, tuple[str, ...], int], Place] = {}
"""How a sandbox was made here before, by bubblewrap, packages and user."""
_warned = threading.Event()


@dataclass(frozen=True)
class Limits:
    """What one call may use, over all of its processes."""

    cpu_seconds: float = 5
    """Processor time; of one process alone, rounded up to whole seconds."""
    clock_seconds: float = 15
    """Time of the clock."""
    memory_mib: int = 512
    """Memory; also the address space of each process."""
    processes: int = 16
    """Processes and threads at one time."""
    output_bytes: int = 65536
    """Of the standard output, and of the standard error."""
    scratch_mib: int = 64
    """The scratch folder; also the size of one file."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UserError(f"the sandbox's limit {name} is {value!r}: give a positive number")
        if self.memory_mib < 64:
            raise UserError(f"the sandbox's limit memory_mib is {self.memory_mib}: the interpreter needs 64")


@dataclass(frozen=True)
class Ran:
    """What became of the code.

    `status`: "ok" (exit code 0), "error" (an exception, or any other end), or what it was killed for: "timeout" (of the
    processor or of the clock), "memory", "output", "processes". "memory" is also an uncaught MemoryError.
    """

    output: str
    errors: str
    """The standard error; the traceback of an exception stands at its end."""
    status: Status
    exit_code: int | None
    """As of `subprocess`: -N if signal N ended it; None if it was killed for a limit."""
    seconds: float


class Sandbox:
    """Runs code within `limits`; `packages` are import names ("sympy") that it may use beside the standard library.

    `isolation` "none" keeps nothing from the code but the environment: for a machine that has nothing to lose. Raises
    UserError, with the reason and the remedy, where this system has no bubblewrap or doesn't let it work.
    """

    def __init__(
        self, limits: Limits | None = None, isolation: Isolation = "bubblewrap", packages: tuple[str, ...] = ()
    ) -> None:
        self.limits = limits or Limits()
        self.isolation = isolation
        self.packages = (packages,) if isinstance(packages, str) else tuple(packages)
        if isolation not in ("bubblewrap", "none"):
            raise UserError(f'isolation is "bubblewrap" or "none", not "{isolation}"')
        if sys.platform != "linux":
            raise UserError(f"the sandbox needs Linux; this is {sys.platform}")
        if isolation == "none":
            package_roots(self.packages)
            self._place = Place(None, packages=self.packages)
            _warn_once()
        else:
            bwrap, program = bubblewrap.executable(), seccomp.program()
            shown = readable(self.packages)
            self._place = _way_that_works(Place(None, bwrap, program, shown, self.packages))

    def run(self, code: str, stdin: str = "") -> Ran:
        """Run `code` as the main module of a fresh interpreter, with `stdin` to read. Blocks; any thread may call.

        Raises OSError if the process can't be started (the machine is out of memory, say), which says nothing about
        the code, and UserError for what is no text.
        """
        for name, text in (("code", code), ("stdin", stdin)):
            if not isinstance(text, str):
                raise UserError(f"{name} is a {type(text).__name__}; the sandbox takes text")
        return self._run(code, stdin, self._place)

    def _run(self, code: str, stdin: str, place: Place) -> Ran:
        limits = self.limits
        settings = {
            "cpu": math.ceil(limits.cpu_seconds),
            "memory": limits.memory_mib << 20,
            "processes": limits.processes,
            "file": limits.scratch_mib << 20,
        }
        texts = (text.encode("utf-8", "surrogatepass") for text in (code, stdin))
        with Started(place, settings, limits.clock_seconds, *texts) as started:
            return _ran(watch(started, _bounds(limits)))


def _bounds(limits: Limits) -> Bounds:
    """Return what the whole tree may use."""
    return Bounds(
        cpu_seconds=limits.cpu_seconds + 0.5,  # the kernel looks at each process, and comes first where there is one
        clock_seconds=limits.clock_seconds,
        memory_bytes=limits.memory_mib << 20,
        tasks=limits.processes + OWN_TASKS,
        output_bytes=limits.output_bytes,
        inodes=_INODES,
    )


def _ran(seen: Watched) -> Ran:
    """Return the verdict, by why it was killed, else by its exit code."""
    output, errors = (text.decode("utf-8", "replace") for text in (seen.output, seen.errors))
    exit_code = seen.exit_code
    if seen.killed is not None:
        return Ran(output, errors, seen.killed, None, seen.seconds)
    if exit_code == -signal.SIGXCPU:
        return Ran(output, errors, "timeout", None, seen.seconds)
    if exit_code == NO_MEMORY and "MemoryError" in errors:  # code may end with this number by itself
        return Ran(output, errors, "memory", 1, seen.seconds)
    if exit_code is None:
        errors += "\nended from outside\n"
    elif exit_code < 0:
        with contextlib.suppress(ValueError):
            errors += f"\nended by {signal.Signals(-exit_code).name}\n"
    return Ran(output, errors, "ok" if exit_code == 0 else "error", exit_code, seen.seconds)


def _way_that_works(place: Place) -> Place:
    """`place` with the first way that leads into a sandbox here. Raises UserError if none does."""
    key = (place.bwrap, place.packages, os.geteuid())
    if key in _works:
        return _works[key]
    reasons = []
    for way in bubblewrap.ways():
        tried = replace(place, way=way)
        try:
            with Started(tried, _PROBE, 30.0, b"", b""):
                _works[key] = tried
                return tried
        except OSError as error:
            reasons.append(str(error).removeprefix(NOT_STARTED))
    raise bubblewrap.refusal(reasons)


def _warn_once() -> None:
    if not _warned.is_set():
        _warned.set()
        print('hone: isolation "none": code of the model runs with all your rights on this machine', file=sys.stderr)
