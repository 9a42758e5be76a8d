"""`hone trainer` on two ranks under torchrun, against an orchestrator that is played by the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from played import LIMIT, Orchestrator
from processes import alive, children, descendants, wait_until_gone

from hone.extensions.split import serve

pytestmark = pytest.mark.split


@contextmanager
def torchrun(orchestrator: Orchestrator, log: Path, **variables: str) -> Iterator[subprocess.Popen]:
    argv = ["--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", serve.__file__]
    with open(log, "w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *argv, *orchestrator.argv],
            cwd=orchestrator.run.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
        )
    orchestrator.alive = lambda: process.poll() is None
    try:
        yield process
    finally:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in alive(below):
            os.kill(pid, signal.SIGKILL)


def ranks_of(process: subprocess.Popen) -> list[int]:
    found = {}
    for pid in children(process.pid):  # and not what they have started, with the same variables
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found |= {int(v.removeprefix(b"RANK=")): pid for v in variables if v.startswith(b"RANK=")}
    return [found[0], found[1]]


def test_sigterm_ends_all_at_once(rl_run, tmp_path):
    """By themselves: torchrun would kill those that stay only long after this test has given up."""
    orchestrator = Orchestrator(rl_run, tmp_path / "t")
    patience = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(10 * LIMIT)}
    with torchrun(orchestrator, tmp_path / "log", **patience) as process:
        orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1")
        orchestrator.result(0)
        ranks = ranks_of(process)
        for pid in (process.pid, *ranks):
            os.kill(pid, signal.SIGTERM)
        process.wait(LIMIT)
        wait_until_gone(set(ranks))
        assert not (tmp_path / "t" / "hello.npz").exists()
