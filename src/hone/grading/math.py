"""Whether two pieces of mathematics are equal, by math-verify: LaTeX, fractions, sets, intervals, matrices, words.

math-verify limits its time by SIGALRM, which works on the main thread alone and stops no C code, and it turns a timeout
into "different". So it works without limits in a process of its own, `math_worker.py`, which dies of an expression such
as 9^{9^{9^9}} alone: the kernel ends it after 5 seconds of processor time (not of the clock: a busy machine changes no
verdict), and the next question starts another.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import unicodedata
from pathlib import Path

from hone.errors import UserError
from hone.grading.inline import GraderFailure
from hone.types import Outcome

LONGEST = 512
"""Characters of an answer; a longer one cannot be read."""
CPU_SECONDS = 5
"""Processor time for one comparison."""
CLOCK_SECONDS = 60.0
"""The backstop by the clock, for a worker that waits instead of working."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_WORD = re.compile(r"[^\W\d_]+")
_WORDS = re.compile(r"[^\W\d_]+(?:[\s-]+[^\W\d_]+)*")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_BASE = re.compile(r"\d\s*_\s*\{?\s*(\d+)\s*\}?$")
_PARTED = re.compile(r"(?<![\\\w])\d+\s+\d")


def same(answer: str, gold: str) -> bool | GraderFailure | None:
    """Whether `answer` equals `gold`; None if the answer cannot be read; a failure if that took too long.

    Equal text is equal. Words (`\\text{Evelyn}`, `Evelyn`) are compared as text, upper or lower case. A base
    (`12_{8}`) that the gold does not have makes an answer different.
    UserError if math-verify is not installed.
    """
    answer, gold = tidy(answer), tidy(gold)
    if answer and answer == gold:
        return True
    if not readable(answer):
        return None
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(gold):
        return int(answer) == int(gold)
    told = _plain(answer).lower() == _plain(gold).lower()
    if _is_words(answer) or _is_words(gold) or (told and _TEXT.search(gold)):
        return told
    base = _BASE.search(answer)
    if base and base.groups() != getattr(_BASE.search(gold), "groups", tuple)():
        return False
    try:
        return _asked(answer, gold)
    except _Died as death:
        return death.failure


def readable(text: str) -> bool:
    """Whether `text` may be mathematics: not empty, not too long, braces in pairs, no digits parted by a space."""
    text = tidy(text)
    return 0 < len(text) <= LONGEST and not _PARTED.search(text) and balanced(text)


def balanced(text: str) -> bool:
    """Whether each unescaped brace of `text` has its partner."""
    depth = 0
    for brace in re.findall(r"\\.|[{}]", text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def tidy(text: str) -> str:
    """`text` without what says nothing: math delimiters, bold, spacing commands, white space, a trailing full stop."""
    text = text.replace("−", "-").replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = re.sub(r"\\left(?![a-z])|\\right(?![a-z])", "", text)
    text = re.sub(r"(?<=\d),?\\[,! ]\s*(?=\d{3})", "", text)
    text = re.sub(r"\\[,!;:]", " ", text)
    text = "".join(map(_spelled, text))
    text = " ".join(text.split()).rstrip(".").strip()
    for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
        if text.startswith(left) and text.endswith(right) and len(text) > len(left + right):
            text = text[len(left) : -len(right)].strip()
    return text.rstrip(".").strip()


def _spelled(char: str) -> str:
    """A character such as ½ as a fraction; others as they are."""
    if not unicodedata.decomposition(char).startswith("<fraction>"):
        return char
    above, below = unicodedata.normalize("NFKC", char).split("⁄")
    return f"\\frac{{{above}}}{{{below}}}"


def _is_words(text: str) -> bool:
    """Whether `text` is words. Bare ones need four letters: `xy` is a product, and `Evelyn` not that of its letters."""
    words = _WORD.findall(_plain(text)) if _WORDS.fullmatch(_plain(text)) else []
    return any(len(word) > 3 for word in words) or (bool(words) and bool(_TEXT.search(text)))


def _plain(text: str) -> str:
    """`text` without the commands and brackets around words."""
    return " ".join(_TEXT.sub(r"\1", text).strip(" ()").split())


class _Died(Exception):
    """There is no verdict on a question."""

    def __init__(self, failure: GraderFailure) -> None:
        self.failure = failure


@functools.lru_cache(maxsize=2**16)
def _asked(answer: str, gold: str) -> bool | None:
    """What the worker says, remembered. Raises _Died, which is not, if it has no verdict."""
    return _worker().ask(answer, gold)


@functools.cache
def _worker() -> _Worker:
    return _Worker()


class _Worker:
    """The worker process, started when it is needed. One question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def ask(self, answer: str, gold: str) -> bool | None:
        """The worker's verdict. Raises _Died if there is none."""
        with self._lock:
            process = self._process = self._process or _start()
            try:
                line = _exchange(process, json.dumps([answer, gold]).encode() + b"\n")
            except BaseException:  # Ctrl-C: the answer that is still to come must not be taken for that of the next
                self.close()
                raise
            if line is None:
                self.close()
                detail = f"comparing the answer took {CLOCK_SECONDS:.0f} seconds"
                raise _Died(GraderFailure(Outcome.GRADER_TIMEOUT, detail))
            if not line:
                self._process = None
                raise _Died(_why(process))
            said = json.loads(line)
            if isinstance(said, str):
                raise _Died(GraderFailure(Outcome.GRADER_ERROR, said))
            return said

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[bytes]:
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("this task compares answers by math-verify, which is not installed: pip install math-verify")
    worker = str(Path(__file__).with_name("math_worker.py"))
    # -P: its folder, with this very file `math.py`, stays off the path. A session of its own: Ctrl-C is not for it.
    return subprocess.Popen(
        [sys.executable, "-P", worker, str(CPU_SECONDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )


def _exchange(process: subprocess.Popen[bytes], question: bytes) -> bytes | None:
    """The line that answers `question`; nothing if the process ended, None if it did not answer in time."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(question)
        process.stdin.flush()
    except BrokenPipeError:
        return b""
    ready, _, _ = select.select([process.stdout], [], [], CLOCK_SECONDS)
    return process.stdout.readline() if ready else None


def _why(process: subprocess.Popen[bytes]) -> GraderFailure:
    """What a process died of."""
    _, errors = process.communicate()
    if process.returncode == -signal.SIGXCPU:
        return GraderFailure(
            Outcome.GRADER_TIMEOUT, f"comparing the answer took {CPU_SECONDS} seconds of processor time"
        )
    said = errors.decode("utf-8", "replace").strip()[-2000:]
    return GraderFailure(Outcome.GRADER_ERROR, f"the process of math-verify ended with {process.returncode}: {said}")
