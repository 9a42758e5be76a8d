"""What a run does when the machine fails it: disk full, I/O error, read-only folder, out of memory.

First on disks that are really full and really read-only; then at each operation of an unbroken run in turn. It ends
with one sentence, all that was saved before is intact, and a resume ends in the bytes of the unbroken run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import disks
import pytest
import states
import trials
from disks import Disk
from recipes import KEEP_LAST, Recipe
from traps import At, Call, Op, Trap

from hone.runs.files import NEW_PREFIX

pytestmark = pytest.mark.long

FULL = ("the disk is full", "No space left on device")
BROKEN = ("the disk reports an I/O error", "Input/output error")
READ_ONLY = ("the file system is read-only", "Read-only file system")


def reported(log: Path, out: Path) -> tuple[str, Path]:
    """The one line of an error that a run ended with, and the path that it says could not be written (or `out`)."""
    text = log.read_text()
    shown = text.splitlines()[-1]
    assert "Traceback" not in text and shown.startswith("error: ") and text.count("error: ") == 1, text
    found = re.match(r"error: (?:(\S+) can't be written|[^(:]+ \((\S+)\): )", shown)
    assert found, shown
    path = Path(found.group(1) or found.group(2))
    assert path == out or out in path.parents, shown
    return shown, path


def assert_recovers(recipe: Recipe, out: Path, log: Path, *more: str) -> None:
    before = states.contents(out)
    assert trials.run(recipe.argv(out, *more, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(out, recipe.unbroken)
    if (out / "superseded").exists():
        states.assert_nothing_lost(before, out, KEEP_LAST)


def assert_checkpoints_survive(out: Path) -> None:
    """Those that were told of, and not deleted since, are intact; none that is damaged is in its place."""
    shown = [event["step"] for event in states.lines(out / "events.jsonl") if event["kind"] == "checkpoint"]
    assert set(shown[-KEEP_LAST:]) <= set(states.intact_checkpoints(out))


@pytest.fixture
def small_disk(tmp_path, request, rl) -> Iterator[Disk]:
    """A disk that takes this share of what the unbroken run takes in the end."""
    size = sum(file.stat().st_size for file in rl.unbroken.rglob("*") if file.is_file())
    try:
        with disks.disk(tmp_path / "disk", str(int(request.param * size))) as disk:
            yield disk
    except PermissionError as error:
        pytest.skip(f"this system lets no test mount a disk of its own: {error}")


@pytest.mark.parametrize("small_disk", [0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95], indirect=True)
def test_a_full_disk(small_disk, rl, tmp_path):
    out, log = small_disk.folder / "run", tmp_path / "log"
    assert small_disk.run(rl.argv(out), log) == 2, log.read_text()
    shown, path = reported(log, out)
    assert any(word in shown for word in FULL) and out in path.parents, shown
    assert_checkpoints_survive(small_disk.copy("run", tmp_path / "full"))
    small_disk.remount("32M")
    assert small_disk.run(rl.argv(out, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(small_disk.copy("run", tmp_path / "resumed"), rl.unbroken)


@pytest.mark.parametrize("small_disk", [10], indirect=True)
def test_a_read_only_disk(small_disk, rl, tmp_path):
    out, log = small_disk.folder / "run", tmp_path / "log"
    assert small_disk.run(rl.argv(out), log, Trap(At("write", "metrics.jsonl", 8, "half"))) == trials.KILLED
    before = states.everything(small_disk.copy("run", tmp_path / "before"))
    small_disk.remount("32M", read_only=True)
    for folder, flags in ((out, ["--resume"]), (out, []), (small_disk.folder / "other", [])):
        log.unlink()
        assert small_disk.run(rl.argv(folder, *flags), log) == 2, log.read_text()
        assert any(word in reported(log, folder)[0] for word in READ_ONLY)
    assert states.everything(small_disk.copy("run", tmp_path / "after")) == before
    small_disk.remount("32M")
    assert small_disk.run(rl.argv(out, "--resume"), log) == 0, log.read_text()
    states.assert_ended_like(small_disk.copy("run", tmp_path / "resumed"), rl.unbroken)


def chosen(ops: tuple[Op, ...]) -> list[Op]:
    """Of each kind of operation on each kind of file: the first and the last."""
    classes: dict[tuple[str, str], list[Op]] = {}
    for op in ops:
        classes.setdefault((op.kind, re.sub(r"step_\d+", "step_N", op.path)), []).append(op)
    return [op for found in classes.values() for op in dict.fromkeys((found[0], found[-1]))]


def faults(ops: tuple[Op, ...]) -> list[Trap]:
    """In turn: the disk is full from then on, tearing a write; one I/O error; the disk is read-only from then on."""
    found = []
    for index, op in enumerate(chosen(ops)):
        action, when, lasting = (("ENOSPC", "half", True), ("EIO", "before", False), ("EROFS", "before", True))[
            index % 3
        ]
        found.append(Trap(At(op.kind, op.path, op.count, when), action, lasting))
    return found


def meet(fault: Trap, recipe: Recipe, out: Path, log: Path, *more: str) -> None:
    """A run that meets the fault, and its resume."""
    code = trials.run(recipe.argv(out, *more), log, fault)
    if code == 0:
        # A folder that was there already; or a copy, which shutil tries again in another way.
        copied = fault.where.kind == "write" and any(
            name in fault.where.path for name in ("tokenizer", "special_tokens")
        )
        card = "The card could not be written" in log.read_text()  # it is left out, and the run is done
        assert card or (not fault.lasting and (fault.where.kind == "mkdir" or copied)), fault
        return states.assert_ended_like(out, recipe.unbroken)
    assert code == 2, f"{fault}: exit code {code}\n{log.read_text()}"
    words = {"ENOSPC": FULL, "EIO": BROKEN, "EROFS": READ_ONLY}[fault.action]
    shown, path = reported(log, out)
    assert any(word in shown for word in words), f"{fault}: {shown}"
    if not fault.lasting and fault.where.path != ".":  # else another thread may be the first to tell
        part = fault.where.path.removeprefix(NEW_PREFIX).split("/")[0]
        assert path.relative_to(out).parts[0].removeprefix(NEW_PREFIX) == part, f"{fault}: {shown}"
    if out.exists():
        assert_checkpoints_survive(out)
    assert_recovers(recipe, out, log, *more)


def side_by_side(meet: Callable[[Trap, Path, Path], None], met: list[Trap], folder: Path) -> None:
    """Each fault in a run directory and with a log of its own, as many at once as there are cores."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        list(pool.map(lambda n: meet(met[n], folder / f"{n}-run", folder / f"{n}-log"), range(len(met))))


@pytest.mark.parametrize("part", range(32))
def test_a_fault_at_each_operation(part, rl, tmp_path):
    met = faults(rl.ops)[part::32]
    assert len(met) > 4
    side_by_side(lambda fault, out, log: meet(fault, rl, out, log), met, tmp_path)


@pytest.mark.parametrize("part", range(4))
def test_a_fault_at_operations_of_sft(part, sft, tmp_path):
    side_by_side(lambda fault, out, log: meet(fault, sft, out, log), faults(sft.ops)[::7][part::4], tmp_path)


@pytest.mark.parametrize("part", range(4))
def test_a_fault_while_saving_in_the_foreground(part, rl, tmp_path):
    saving = [fault for fault in faults(rl.ops) if any(kind in fault.where.path for kind in states.VERSIONED)]
    met = saving[::5][part::4]
    side_by_side(lambda fault, out, log: meet(fault, rl, out, log, "--no-ckpt.background"), met, tmp_path)


@pytest.mark.parametrize("part", range(4))
def test_a_fault_while_resuming(part, rl, tmp_path):
    """At each operation of a resume from step 4 of a run that had come to step 7."""
    back, record = ("--resume", "--resume.step", "4"), tmp_path / "ops.json"
    rl.stop_late(tmp_path / "run", tmp_path / "log")
    assert trials.run(rl.argv(tmp_path / "run", *back), tmp_path / "log", record=record) == 0
    ops = trials.operations(record)
    opening = ops[: next(i for i, op in enumerate(ops) if op.path.startswith(("evals/", "rollouts/")))]
    assert {op.path.split("/")[0] for op in opening} >= {"superseded", "run.json", "config.toml", "metrics.jsonl"}

    def meet_again(fault: Trap, out: Path, log: Path) -> None:
        rl.stop_late(out, log)
        before = states.contents(out)
        log.unlink()
        code = trials.run(rl.argv(out, *back), log, fault)
        assert code == 2 or (code == 0 and fault.where.kind == "mkdir"), f"{fault}: {code}\n{log.read_text()}"
        if code:
            reported(log, out)
            assert_recovers(rl, out, log)
        states.assert_nothing_lost(before, out, KEEP_LAST)

    side_by_side(meet_again, faults(tuple(opening))[::3][part::4], tmp_path)


MEMORY = {
    "sampling": Call("hone.inference.batch.sample_tokens", 60),
    "backward": Call("torch.Tensor.backward", 6),
    "between steps": At("write", "metrics.jsonl", 6, "after"),
    "saving": At("mkdir", "checkpoints/.tmp-hone-new-step_6", 1, "after"),
}


@pytest.mark.parametrize("moment", MEMORY)
def test_out_of_memory(moment, rl, tmp_path):
    """Where Python or PyTorch asks for memory. A library in Rust gives up the process instead, like a kill."""
    out, log = tmp_path / "run", tmp_path / "log"
    code = trials.run(rl.argv(out), log, Trap(MEMORY[moment], "memory"))
    if code == 2:
        assert "out of memory" in log.read_text().splitlines()[-1]
    else:
        assert (moment, code) == ("saving", -6) and "memory allocation" in log.read_text(), log.read_text()
    assert_checkpoints_survive(out)
    assert_recovers(rl, out, log)
