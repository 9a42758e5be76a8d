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
from hone.extensions.split.transport import Order
from hone.model.hf import load_model
from hone.runs.view import read_lines
from hone.trainer.fingerprint import fingerprint

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


def test_two_ranks_train_as_one_and_one_goes_on_from_their_checkpoint(rl_run, tmp_path):
    recorded = {line["step"]: line for line in read_lines(rl_run / "metrics.jsonl")}
    orchestrator = Orchestrator(rl_run, tmp_path / "t")
    part = tmp_path / "part"
    part.mkdir()
    with torchrun(orchestrator, tmp_path / "log") as process:
        hello = orchestrator.transport.hello(LIMIT)
        assert hello.ranks == 2 and hello.pid in ranks_of(process)
        orchestrator.open("s1")
        assert orchestrator.result(0).fingerprint == hello.fingerprint
        for step in range(4):
            orchestrator.put(step, part if step == 3 else None)
            result = orchestrator.result(step + 1)
            assert result.metrics["loss"] == pytest.approx(recorded[step]["loss"], rel=1e-5, abs=1e-7)
            assert result.metrics["grad_norm"] == pytest.approx(recorded[step]["grad_norm"], rel=1e-4)
            model = load_model(orchestrator.transport.weights(step + 1))
            assert fingerprint(dict(model.named_parameters())) == result.fingerprint
        assert result.saved and (part / "trainer").is_dir()
        orchestrator.open("s2", start=4, checkpoint=str(part))  # its own checkpoint
        assert orchestrator.result(4).fingerprint == result.fingerprint
        orchestrator.open("s3", start=4)  # that of one rank
        assert orchestrator.result(4).version == 4
        for step in (4, 5):
            orchestrator.put(step)
            assert orchestrator.result(step + 1)
        orchestrator.transport.put(Order(6, "end"))
        assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()
    text = (tmp_path / "log").read_text()
    assert text.count("Waiting for the orchestrator") == 1 and text.count("step 3: ") == 1 and "2 ranks" in text
    alone = Orchestrator(rl_run, tmp_path / "u")
    with alone.trainer():
        alone.transport.hello(LIMIT)
        alone.open("s1", start=4, checkpoint=str(part))
        assert alone.result(4).fingerprint == result.fingerprint
        alone.open("s2", start=6)
        alone.transport.put(Order(6, "end"))


def test_what_the_user_can_mend_is_said_once(rl_run, tmp_path):
    orchestrator = Orchestrator(rl_run, tmp_path / "t")
    with torchrun(orchestrator, tmp_path / "log") as process:
        orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1", shared={"max_steps": 9})
        assert process.wait(LIMIT) != 0
    text = (tmp_path / "log").read_text()
    assert text.count("error: max_steps is 6 in this trainer's config") == 1, text


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
