"""What the launcher keeps of a process's lines: whole ones, bytes as they are, and what went wrong."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.loops.child import TRAINER, Child, Log


@pytest.fixture
def ended(tmp_path: Path) -> Callable[..., tuple[Child, bytes]]:
    """A program that has run to its end as a rank of the trainer, and its log."""
    log = Log(tmp_path / "trainer.log")

    def run(program: str, rank: int = 0) -> tuple[Child, bytes]:
        child = Child(TRAINER, rank, [sys.executable, "-c", program], dict(os.environ), log)
        while child.poll() is None:
            time.sleep(0.01)
        return child, log.path.read_bytes()

    return run


def test_bytes_that_are_no_text_are_kept_and_a_line_without_end_gets_one(ended):
    child, log = ended(r"import sys; sys.stdout.buffer.write(b'\xff\xfe one\ntwo')", rank=1)
    assert log == b"[rank 1] \xff\xfe one\n[rank 1] two\n"
    assert list(child.lines) == ["\ufffd\ufffd one", "two"]


def test_a_line_that_does_not_end_comes_in_parts_and_takes_no_more_memory(ended):
    size = 20_000_000
    child, log = ended(f"import sys; print('x' * {size}, flush=True); sys.exit('bad ' * 1000)")
    first, *_ = lines = log.split(b"\n")
    assert sum(line.count(b"x") for line in lines) == size and len(first) == 2**16
    assert len(child.error) < 500 and child.error.startswith("bad bad") and child.error.endswith(" ...")


def test_the_error_of_a_rank_is_found_behind_the_mark_that_torch_gives_it(ended):
    lines = ["[rank1]: Traceback (most recent call last):", "[rank1]: ValueError: no such key", "[W] shut down badly"]
    child, _ = ended(f"import sys; sys.exit('\\n'.join({lines!r}))")
    assert child.cause == "exited with code 1 (ValueError: no such key)"
