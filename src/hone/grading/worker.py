"""A process of its own for a library that may hang or die. It is asked one question at a time, and remembers them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.grading.inline import GraderFailure
from hone.grading.pool import Pool, StartFailure
from hone.types import Outcome


class NoVerdict(Exception):
    """There is no answer to a question; `failure` says why."""

    def __init__(self, failure: GraderFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class Worker:
    """A pool of one process.

    It is started with the first question and ends with this one, or when nobody has the worker any more. `doing` says
    in a failure what took too long: "comparing the answer".
    """

    def __init__(self, script: Path, arguments: Sequence[Any], doing: str, python: str = sys.executable) -> None:
        self._pool = Pool(script, arguments, doing, python=python)

    def ask(self, question: Any, cpu_seconds: float, clock_seconds: float) -> Any:
        """The answer. Raises NoVerdict if the function raised, took more than these seconds, or cannot be had."""
        try:
            [answer] = self._pool.ask_all([question], cpu_seconds, clock_seconds)
        except StartFailure as error:
            answer = GraderFailure(Outcome.GRADER_ERROR, str(error))
        if isinstance(answer, GraderFailure):
            raise NoVerdict(answer)
        return answer

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._pool.close()
