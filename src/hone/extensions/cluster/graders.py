"""Grading processes on the nodes of a cluster: each is a process of `grading.pool`, in a Ray actor.

The task's code is sent to the node. A node with equal files at the same paths (a shared file system) uses its own
files; another node writes the code to a folder. Digests are checked as in any worker.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from hone.errors import UserError
from hone.extensions.cluster.host import versions
from hone.extensions.cluster.nodes import SAY_AFTER, check_versions
from hone.grading.pool import START_SECONDS, Closed, ExitStatus, InvalidAnswer, Process, Stopped, readable

LOOK = 0.1
"""Seconds between checks that the pool still wants an answer."""
END_SECONDS, UNPLACED_SECONDS = 5.0, 1.0
"""Seconds for a placed and an unplaced actor to end its process. After that, actor and process are killed."""


class Grader:
    """The actor: one process on this node that answers questions."""

    def __init__(
        self, script: str, arguments: Sequence[Any], memory: int, environment: Mapping[str, str], code: dict[str, bytes]
    ) -> None:
        self._folder = Path(tempfile.gettempdir()) / f"hone-task-{os.getpid()}-{time.time_ns():x}"
        self._never, self._end = os.pipe()
        self._turns, self._next, self._has_ended = threading.Condition(), 0, False
        package = Path(__file__).parents[2]  # of hone, on this node
        arguments = arguments_for_node(arguments, code, self._folder)
        self._process = Process(sys.executable, package / script, arguments, memory, environment)

    def facts(self) -> dict[str, Any]:
        return {"name": socket.gethostname()} | versions()

    def get_ready(self) -> tuple[str, Any]:
        return self._outcome(lambda: self._process.get_ready(self._never))

    def ask(self, number: int, question: Any, cpu: float | None, clock: float) -> tuple[str, Any]:
        """Return ("answer", result of `Process.ask`), ("late", None), ("garbled", None) or ("closed", (code, words)).

        Questions are numbered from 0; each question waits for the previous one.
        """
        with self._turns:
            self._turns.wait_for(lambda: self._next == number or self._has_ended)
            if self._has_ended:
                return "closed", (None, "")
            kind, found = self._outcome(lambda: self._process.ask(question, cpu, clock, self._never))
            self._next += 1
            if kind != "answer" or found[2]:
                self._has_ended = True  # another process gets the question sent ahead
            self._turns.notify_all()
            return kind, found

    def _outcome(self, call: Callable[[], Any]) -> tuple[str, Any]:
        try:
            return "answer", call()
        except TimeoutError:
            return "late", None
        except InvalidAnswer:
            return "garbled", None
        except Closed:
            ended = self._process.finish()
            return "closed", (ended.code, ended.words)

    def end(self) -> None:
        self._has_ended = True
        self._process.finish()
        shutil.rmtree(self._folder, ignore_errors=True)


class RemoteProcess:
    """A `pool.Process` on a node. If the node is lost, the process counts as killed, and the question is asked again.

    The node's Python runs the process, so `python` is ignored.
    """

    pid, is_far = 0, True
    ahead: Any = None

    def __init__(
        self, python: str, script: Path, arguments: Sequence[Any], memory_bytes: int, environment: Mapping[str, str]
    ) -> None:
        self.ready, self._is_placed, self._ended = False, False, None
        self._sent, self._count = None, 0
        sources: dict[str, str] = arguments[4]
        code = {file: Path(file).read_bytes() for file in sources if Path(file).is_file()}
        relative = str(script.relative_to(Path(__file__).parents[2]))
        # Threads: for a question, the next question, and `end`.
        options: Any = ray.remote(Grader).options(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=3)
        self._actor = options.remote(relative, list(arguments), memory_bytes, dict(environment), code)
        # Called once: if a round ends before these return, the next round waits for them.
        self._facts, self._started = self._actor.facts.remote(), self._actor.get_ready.remote()

    @property
    def is_idle(self) -> bool:
        return self._ended is None

    def get_ready(self, stop: int) -> str | None:
        facts = self._get(self._facts, stop, None, waits_for="a node with a free core")
        self._is_placed = True
        try:
            check_versions(facts)
        except UserError as error:
            return str(error)
        error = self._answer(self._started, stop, time.monotonic() + START_SECONDS)
        self.ready = error is None
        return error

    def ask(self, question: Any, cpu: float | None, clock: float, stop: int) -> tuple[Any, str | None, bool]:
        # The actor checks the time limits.
        sent, self._sent = self._sent, None
        reference = sent if sent is not None else self._send(question, cpu, clock)
        if self.ahead is not None:
            self._sent = self._send(*self.ahead)
        return self._answer(reference, stop, None)

    def _send(self, question: Any, cpu: float | None, clock: float) -> Any:
        number, self._count = self._count, self._count + 1
        return self._actor.ask.remote(number, question, cpu, clock)

    def _answer(self, reference: Any, stop: int, deadline: float | None) -> Any:
        kind, answer = self._get(reference, stop, deadline)
        if kind == "answer":
            return answer
        if kind == "closed":
            self._ended = ExitStatus(*answer)
        raise {"late": TimeoutError, "garbled": InvalidAnswer, "closed": Closed}[kind]

    def ends(self, seconds: float) -> bool:
        return self._ended is not None

    def let_go(self) -> None:
        self._actor.end.remote()

    def finish(self) -> ExitStatus:
        with contextlib.suppress(RayError):  # also if unused: it may have a folder
            ray.get(self._actor.end.remote(), timeout=END_SECONDS if self._is_placed else UNPLACED_SECONDS)
        ray.kill(self._actor)
        self._ended = self._ended or ExitStatus(None, "")
        return self._ended

    def _get(self, reference: Any, stop: int, deadline: float | None, waits_for: str | None = None) -> Any:
        """Return the actor's result. Raises Stopped if the pool no longer wants it, Closed if the actor is gone."""
        began, said = time.monotonic(), 0.0
        while not ray.wait([reference], timeout=LOOK)[0]:
            if readable(stop, 0):
                raise Stopped
            waited = time.monotonic() - began
            if deadline is not None and began + waited > deadline:
                raise TimeoutError
            if waits_for and waited > max(SAY_AFTER, 2 * said):
                said = waited
                print(f"a grading process waits for {waits_for} ({waited:.0f} s)", file=sys.stderr, flush=True)
        try:
            return ray.get(reference)
        except RayActorError:
            print("a grading process was lost with its node or its actor", file=sys.stderr, flush=True)
            self._ended = ExitStatus(None, "its node or its actor is gone")
            raise Closed from None


def arguments_for_node(arguments: Sequence[Any], code: Mapping[str, bytes], folder: Path) -> list[Any]:
    """Return the arguments of `worker_main.start` for this node. Write `code` to `folder` if the node lacks it.

    The new `path` has those entries of the old one that contain the task's files, then this node's `sys.path`.
    """
    env_id, kwargs, home, path, sources, *more = arguments
    shared = Path(home).is_dir() and all(
        Path(file).is_file() and Path(file).read_bytes() == content for file, content in code.items()
    )

    def there(name: str) -> str:
        return name if shared else str(folder / name.lstrip("/"))

    if not shared:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in code.items() if not shared else ():
        target = Path(there(file))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    home = there(home)
    Path(home).mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in path if any(Path(file).is_relative_to(entry or home) for file in code)]
    entries = [there(entry) if entry else entry for entry in entries]
    others = [entry for entry in sys.path if entry not in entries]
    return [env_id, kwargs, home, [*entries, *others], {there(f): d for f, d in sources.items()}, *more]
