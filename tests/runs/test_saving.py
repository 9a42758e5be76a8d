"""When versions are saved, and that a thread writes what was true at the time."""

import threading

import pytest
import torch

from hone.config.rl import RLConfig
from hone.config.shared import BudgetConfig, CkptConfig
from hone.runs import Run
from hone.runs.observer import Finding
from hone.runs.saving import Saver, Snapshot
from hone.runs.signals import StopRequest
from hone.runs.writer import RunWriter


class Loop:
    """A policy of one number, and what the saver asks of a loop. `gate` holds up the writing of weights."""

    def __init__(self, folder, ckpt: CkptConfig | None, **settings) -> None:
        config = RLConfig(output_dir=folder, display="none", ckpt=ckpt, **settings)
        self.run = RunWriter.start(config, "rl", ["hone", "rl"])
        self.stop = StopRequest(lambda text: None)
        self.weights, self.log = torch.zeros(3), []
        self.exported: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.saver = Saver(self.run, self.stop, ckpt, self.export, self.snapshot)

    def export(self, folder, step, parameters) -> None:
        assert self.gate.wait(300)
        self.exported.append(step)
        (folder / "model.txt").write_text(str(parameters["w"].tolist()))

    def snapshot(self, checkpoint: bool) -> Snapshot:
        entries = list(self.log)
        return Snapshot({"model": {"w": self.weights}}, lambda: {"ledger": entries})

    def advance(self, step: int) -> None:
        self.weights += 1
        self.log.append(step)

    def saved(self) -> tuple[list[int], list[int]]:
        return self.run.checkpoints.steps(), list(Run(self.run.folder).weights())


def test_a_checkpoint_holds_the_moment_it_was_asked_for_and_the_last_is_written_when_save_returns(tmp_path):
    loop = Loop(tmp_path, CkptConfig(interval=2))
    loop.advance(0)
    loop.advance(1)
    loop.gate.clear()
    loop.saver.save(2)
    loop.advance(2)  # goes on while the thread has not begun to write
    loop.gate.set()
    loop.saver.save(3)
    loop.saver.save(3, last=True)
    for step in (2, 3):
        tensors, state = loop.run.checkpoints.load(step)
        assert tensors["model"]["w"].tolist() == [float(step)] * 3 and state["ledger"] == [*range(step)]
    assert loop.exported == [2, 3] and loop.saved() == ([2, 3], [2, 3])
    loop.run.finish("done")


def test_an_error_of_the_thread_reaches_the_loop(tmp_path):
    loop = Loop(tmp_path, CkptConfig(interval=1))
    loop.saver.save(1, last=True)

    def full(folder, step, parameters) -> None:
        raise OSError(28, "No space left on device", str(folder / "model.txt"))

    loop.saver.export = full
    loop.saver.save(2)
    with pytest.raises(OSError, match="No space left"):
        loop.saver.save(2, last=True)
    assert loop.saved() == ([1], [1])
    loop.run.finish("failed")


def test_without_ckpt_the_end_writes_weights_only_unless_the_run_is_stopped(tmp_path):
    loop = Loop(tmp_path / "a", None)
    loop.saver.save(1)
    loop.saver.save(2, last=True)
    assert loop.saved() == ([], [2])
    loop.stop.signum = 15
    loop.saver.save(2, last=True)
    assert loop.saved() == ([2], [2])
    loop.run.finish("stopped")
    spent = Loop(tmp_path / "b", None, budget=BudgetConfig(tokens=10))
    spent.run.budget.step(0.1, 10)
    assert spent.saver.stopping and spent.saver.ending(2, 8) == "budget" and spent.saver.ending(8, 8) == "done"
    spent.saver.save(2, last=True)
    assert spent.saved() == ([2], [2])
    spent.run.finish("budget")


@pytest.mark.parametrize(("promised", "version"), [(True, 3), (False, 4)])
def test_where_checkpoints_are_planned_an_alarm_gets_one_at_a_promised_version_or_at_the_end(
    tmp_path, promised, version
):
    loop = Loop(tmp_path, None)
    loop.saver.planned, loop.run.alarms.actions = True, {"gap": "checkpoint"}
    loop.run.alarms.raised(1, "gap", Finding(1.0, 0.1, "apart", "see docs/training.md"))
    loop.saver.save(2)
    if promised:
        assert loop.saver.wants_checkpoint(3) and not loop.saver.wants_checkpoint(4)
    loop.saver.save(3)
    loop.saver.save(4, last=True)
    assert loop.run.checkpoints.steps() == [version] and loop.run.alarms.asked == "off"
    loop.run.finish("done")
