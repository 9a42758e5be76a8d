"""What a damaged file of a run does to its resume: it recovers, or says in one sentence what is damaged.

A run is killed in step 7, with checkpoints 4 and 6; then one of its files is cut, garbled, emptied or removed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import states
import trials
from recipes import Recipe

pytestmark = pytest.mark.long

LOGS = ("metrics.jsonl", "hashes.jsonl", "timings.jsonl", "events.jsonl")


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda data: b"",
    "first byte only": lambda data: data[:1],
    "half": lambda data: data[: len(data) // 2],
    "end missing": lambda data: data[:-3],
    "garbage tail": lambda data: data + random.Random(0).randbytes(100) + b"\n",
    "bit flipped": flipped,
    "zeros": lambda data: bytes(len(data)),
    "zeros at the end": lambda data: data[: len(data) * 3 // 4] + bytes(len(data) - len(data) * 3 // 4),
    "removed": lambda data: None,
}


def damage(file: Path, how: str) -> None:
    content = DAMAGE[how](file.read_bytes())
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)


@pytest.fixture(scope="module")
def stopped(rl, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("stopped") / "run"
    rl.stop_late(out, out.parent / "log")
    return out


@pytest.fixture
def run(stopped, tmp_path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def resumed(recipe: Recipe, run: Path) -> tuple[int, str]:
    log = run.parent / "log"
    code = trials.run(recipe.argv(run, "--resume"), log)
    return code, log.read_text()


CHECKPOINT = ("model.safetensors", "optimizer.safetensors", "state.json", "COMPLETE")
WEIGHTS = ("model.safetensors", "config.json", "README.md", "COMPLETE")
FOLDERS = [("checkpoints", name, "checkpoint step_6 is", 4) for name in CHECKPOINT]
FOLDERS += [("weights", name, "weights step_6 are", 6) for name in WEIGHTS]


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(("kind", "name", "what", "step"), FOLDERS)
def test_the_checkpoint_before_a_damaged_one_is_used_and_damaged_weights_are_written_anew(
    kind, name, what, step, how, rl, run
):
    damage(run / kind / "step_6" / name, how)
    code, text = resumed(rl, run)
    assert code == 0, text
    assert f"Warning: {what} damaged" in text and f"Resuming {run} at step {step}" in text
    states.assert_ended_like(run, rl.unbroken)
    assert (run / "superseded" / "1" / kind / "step_6").is_dir()


def test_with_every_checkpoint_damaged_it_begins_anew_only_when_told_to(rl, run):
    for step in (4, 6):
        damage(run / "checkpoints" / f"step_{step}" / "model.safetensors", "bit flipped")
    code, text = resumed(rl, run)
    assert code == 2 and "step_6 is damaged" in text and "begin anew with --resume.step 0" in text, text
    assert trials.run(rl.argv(run, "--resume.step", "0"), run.parent / "log") == 0
    states.assert_ended_like(run, rl.unbroken)


@pytest.mark.parametrize("how", ["empty", "half", "garbage tail", "zeros", "zeros at the end"])
@pytest.mark.parametrize("name", ["run.json", "config.toml"])
def test_a_damaged_file_of_facts_is_named_and_nothing_is_changed(name, how, rl, run):
    damage(run / name, how)
    before = states.everything(run)
    code, text = resumed(rl, run)
    if name == "run.json":
        assert "run.json is damaged" in text and text.count("\n") == 1, text
    assert code == 2 and name in text, text
    assert states.everything(run) == before


def test_without_its_run_json_a_run_is_left_untouched(rl, run):
    (run / "run.json").unlink()
    before = states.everything(run)
    code, text = resumed(rl, run)
    assert code == 2 and "holds files that are not a run of hone" in text, text
    assert states.everything(run) == before


@pytest.mark.parametrize("log", LOGS)
def test_a_log_that_cannot_be_read_is_named_with_the_line(log, rl, run):
    damage(run / log, "garbage tail")
    before = states.everything(run)
    code, text = resumed(rl, run)
    line = len((run / log).read_bytes().split(b"\n")) - 1
    assert code == 2 and f"{log}, line " in text and "is damaged" in text and f"line {line + 1}" not in text, text
    assert states.everything(run) == before


@pytest.mark.parametrize("how", ["empty", "half", "bit flipped", "zeros", "zeros at the end", "removed"])
@pytest.mark.parametrize("log", ["metrics.jsonl", "hashes.jsonl"])
def test_a_history_that_is_not_as_it_was_is_told(log, how, rl, run):
    damage(run / log, how)
    code, text = resumed(rl, run)
    assert code in (0, 2) and log in text, text
    if code == 0:
        info = states.read_json(run / "run.json")
        assert info["exact"] is False and log in info["inexact"][0]["cause"]
        mine, wanted = states.fingerprint(run), states.fingerprint(rl.unbroken)
        assert mine["weights/step_8/model.safetensors"] == wanted["weights/step_8/model.safetensors"]


@pytest.mark.parametrize("name", ["rollouts/step_000003.parquet", "weights/step_4/model.safetensors"])
@pytest.mark.needs("reproduce")
def test_what_a_resume_does_not_need_does_not_stop_it(name, rl, run):
    """Nothing else differs, and what is damaged is for `hone verify` to find."""
    damage(run / name, "half")
    code, text = resumed(rl, run)
    assert code == 0, text
    mine, wanted = states.fingerprint(run), states.fingerprint(rl.unbroken)
    assert {key for key in mine.keys() | wanted.keys() if mine.get(key) != wanted.get(key)} <= {name}
    verdict = trials.run(["verify", str(run), "--steps", "0"], log := run.parent / "verify")
    if (run / name).exists():
        assert verdict == 1 and name in log.read_text(), log.read_text()
    else:
        assert verdict == 0, log.read_text()
