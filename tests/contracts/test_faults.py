"""What a run does when the machine fails it: disk full, I/O error, read-only folder, out of memory.

It ends with one sentence, all that was saved before is intact, and a resume ends in the bytes of the unbroken run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import states
import trials
from recipes import KEEP_LAST, Recipe, chosen, side_by_side
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


class Disk:
    """A tmpfs of its own, in a mount namespace that ends with a script: `sh` lines with `hone` and `$disk`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "disk", folder / "log"
        self.folder.mkdir()
        self.run = self.folder / "run"

    def script(self, size: int, text: str) -> list[int]:
        """Exit codes of the lines that begin with `hone`, whose output goes to `log`."""
        command = f'"{sys.executable}" -m hone.cli "$@" >>"{self.log}" 2>&1'
        hone = f"hone() {{ code=0; {command} || code=$?; echo $code; }}"
        mount = f'disk="{self.folder}"; mount -t tmpfs -o size={size} tmpfs "$disk"'
        apart = ["unshare", *(["--map-root-user"] if os.getuid() else []), "--mount"]
        if subprocess.run([*apart, "true"], capture_output=True).returncode:
            pytest.skip("this system lets no test mount a disk of its own")
        done = subprocess.run([*apart, "sh", "-ec", "\n".join((hone, mount, text))], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [int(code) for code in done.stdout.split()]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_full_disk(share, rl, tmp_path):
    """A disk that takes this share of what the unbroken run takes in the end, and is enlarged after it."""
    size = sum(file.stat().st_size for file in rl.unbroken.rglob("*") if file.is_file())
    disk, words = Disk(tmp_path), shlex.join(rl.argv(tmp_path / "disk/run"))
    text = f"""
        hone {words}; cp -r "$disk/run" "{tmp_path}/full"; cp "{disk.log}" "{tmp_path}/first"
        mount -o remount,size=32M "$disk"
        hone {words} --resume; cp -r "$disk/run" "{tmp_path}/resumed"
    """
    assert disk.script(int(share * size), text) == [2, 0], disk.log.read_text()
    shown, path = reported(tmp_path / "first", disk.run)
    assert any(word in shown for word in FULL) and disk.run in path.parents, shown
    assert_checkpoints_survive(tmp_path / "full")
    states.assert_ended_like(tmp_path / "resumed", rl.unbroken)


def test_a_read_only_disk(rl, tmp_path):
    disk, stopped = Disk(tmp_path), tmp_path / "stopped"
    rl.stop_late(stopped, tmp_path / "before")
    here, other = (shlex.join(rl.argv(disk.folder / name)) for name in ("run", "other"))
    text = f"""
        cp -r "{stopped}" "$disk/run"; mount -o remount,ro "$disk"
        hone {here} --resume; hone {here}; hone {other}
        mv "{disk.log}" "{tmp_path}/refused"; cp -r "$disk/run" "{tmp_path}/after"
        mount -o remount,rw "$disk"; hone {here} --resume; cp -r "$disk/run" "{tmp_path}/resumed"
    """
    assert disk.script(2**25, text) == [2, 2, 2, 0], disk.log.read_text()
    errors = [line for line in (tmp_path / "refused").read_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 3 and all(any(word in line for word in READ_ONLY) for line in errors), errors
    assert states.everything(tmp_path / "after") == states.everything(stopped)
    states.assert_ended_like(tmp_path / "resumed", rl.unbroken)


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
