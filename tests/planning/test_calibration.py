"""A calibration runs the real path in a process of its own, says when memory runs out, and leaves nothing behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import children

from hone.cli import call
from hone.commands import plan
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.planning.calibration import DoesNotFit, calibrate, remedy
from hone.planning.calibration_result import Calibration, composed
from hone.planning.calibration_words import measured_words
from hone.planning.data import Facts
from hone.planning.devices import DEVICES
from hone.planning.report import plan_of
from hone.planning.shape import Shape

SMALL = "--model.name hone/tiny --model.init.layers 1 --model.init.hidden 48 --precision fp32"
RL = f"{SMALL} --max-steps 5 --seq-len 64 --orchestrator.batch-size 4 --orchestrator.rollouts-per-example 2"
RL += " --orchestrator.sampling.max-tokens 8 --orchestrator.eval.num-examples 4 --orchestrator.eval.interval 2"
SFT = f"{SMALL} --max-steps 4 --data.env.id reverse-text --data.seq-len 64 --data.batch-size 2 --no-data.pack"


def rl(*flags: object) -> RLConfig:
    return parse(RLConfig, [*RL.split(), *map(str, flags)], "rl")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Calibration, Path, list[str]]:
    folder = tmp_path_factory.mktemp("calibrated")
    told: list[str] = []
    return calibrate(rl("--output-dir", folder / "run", "--ckpt.interval", "1"), 600.0, told.append), folder, told


def test_it_takes_the_steps_of_the_run_and_one_of_the_longest(measured) -> None:
    found, _, told = measured
    assert 3 <= found.taken <= 5 and found.new_tokens is not None and 1 <= found.new_tokens <= 8
    assert set(found.sampled) >= {"sample", "grade", "train", "publish", "record"}
    assert min(found.sampled[name] for name in ("sample", "train")) > 0
    assert found.sizes["completions"] == 4 and found.sizes["new_tokens"] == 8
    longest = found.sizes["prompt_tokens"]
    assert longest + 4 * 8 < found.sizes["micro_batch"] <= 2 * longest + 4 * 8, "a prompt is shared by its group"
    assert found.share == {"groups": 1.0, "tokens": 1.0, "train": 1.0}
    assert [note for note in found.notes if not note.startswith("no step trained")] == [], "a random model may earn 0"
    assert all(found.longest[name] >= found.sampled[name] for name in found.sampled)
    assert told[0].startswith("loading") and any(words.startswith("step 3: ") for words in told)
    assert any("as long as it may be" in words and words.startswith("training (") for words in told)


def test_its_memory_is_that_of_a_process_with_torch(measured) -> None:
    found, _, _ = measured
    assert 150 * 2**20 < found.memory_sampled <= found.memory < 2 * 2**30
    assert found.memory == max(peak for part in found.peaks.values() for peak in part.values())
    assert found.gpu_memory is None and {"load", "train", "sample"} <= set(found.peaks["sampled"])


def test_the_whole_run_is_its_steps_and_what_is_around_them(measured) -> None:
    found, _, _ = measured
    assert found.steps == 5 and found.evaluations == 4 and found.checkpoints == 4  # eval at 0, 2, 4, and the end
    assert found.start > 0.5 and found.evaluation > 0 and found.checkpoint > 0 and found.end > 0
    around = found.start + found.first + 4 * found.evaluation + 4 * found.checkpoint + found.end
    assert found.total == pytest.approx(around + 5 * sum(found.sampled.values()))
    assert found.total_at_most == pytest.approx(around + 5 * sum(found.longest.values()))
    assert found.usd(3.0) == pytest.approx(found.total / 1200)


def test_nothing_is_written_and_nothing_is_left(measured) -> None:
    _, folder, _ = measured
    assert list(folder.iterdir()) == []


def test_a_kill_is_taken_for_want_of_memory(tmp_path: Path) -> None:
    """Until the signal comes, the process may have gone on from training to what is after it: each has its remedy."""

    before = children(os.getpid())  # what other tests have started

    def kill(words: str) -> None:
        if words.startswith("training"):
            for child in children(os.getpid()) - before:
                os.kill(child, signal.SIGKILL)

    remedies = r"training.*: lower --trainer.micro-batch-tokens|(comparing|evaluating).*: lower --inference.kv-gib"
    with pytest.raises(DoesNotFit, match=rf"^killed \(SIGKILL\) while ({remedies})"):
        calibrate(rl("--output-dir", tmp_path / "run"), 600.0, kill)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_too_large(tmp_path: Path) -> None:
    """Under a real limit of the address space: the process is told no, and the command's exit code is 1."""
    flags = "--model.init.hidden 16384 --model.init.intermediate 131072 --orchestrator.env.id reverse-text --calibrate"
    argv = ["plan", *flags.split(), "--json", "--output-dir", str(tmp_path / "run")]
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (12 * 2**30, 12 * 2**30))"
    code = f"{limit}; import sys; from hone.cli import main; sys.exit(main({argv!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)
    assert done.returncode == 1, done.stderr
    plan = json.loads(done.stdout)
    assert plan["fits"] is False
    assert plan["failed"].startswith("out of memory while loading") and "--precision bf16" in plan["failed"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_all_of_it(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    words = [
        sys.executable,
        "-m",
        "hone.cli",
        "plan",
        *RL.split(),
        "--output-dir",
        str(tmp_path / "run"),
        "--calibrate",
    ]
    # A background job of a shell ignores some of these signals, and so would what it starts.
    heed = functools.partial(signal.signal, signum, signal.SIG_DFL)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, preexec_fn=heed)
    deadline = time.monotonic() + 600
    while not (found := children(process.pid)) or not list(tmp_path.glob("*/run/run.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == code and b"Traceback" not in errors
    assert not any(Path(f"/proc/{child}").exists() for child in found)
    assert list(tmp_path.iterdir()) == []


def test_what_the_run_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no-such-task"):
        calibrate(rl("--orchestrator.env.id", "no-such-task", "--output-dir", tmp_path / "run"), 600.0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--mode", "split"], "in one process, and this one is of mode split: add --mode colocated"),
        (
            ["--orchestrator.client.base-url", "http://localhost:1/v1"],
            "samples from the server at http://localhost:1/v1",
        ),
    ],
)
def test_what_can_not_be_measured(flags: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        calibrate(rl(*flags))


def test_a_run_that_would_be_of_several_processes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two GPUs `rl` splits by itself: one process would measure another run."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert call("plan", [*RL.split(), "--calibrate"], "hone plan") == 2
    assert "this one is of mode split: add --mode colocated" in capsys.readouterr().err


def test_another_machine_can_not_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("plan", [*RL.split(), "--calibrate", "--on", "h100"], "hone plan") == 2
    assert "--calibrate measures this machine, and --on names others" in capsys.readouterr().err


def test_sft_through_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With time for all its steps, however slow the machine is."""
    monkeypatch.setattr(plan, "calibrate", functools.partial(calibrate, seconds=600.0))
    flags = [*SFT.split(), "--val.interval", "2", "--val.max-examples", "4", "--output-dir", str(tmp_path / "run")]
    assert call("plan", [*flags, "--calibrate", "--json"], "hone plan") == 0
    found = json.loads(capsys.readouterr().out)["calibration"]
    assert found["kind"] == "sft" and found["taken"] == 4 and found["evaluations"] == 3
    assert found["evaluation"] > 0 and found["sampled"]["train"] > 0 and found["share"] == {"train": 1.0}
    assert found["sizes"]["tokens"] == 2 * found["sizes"]["sequence"] <= 128
    assert found["memory"] > 150 * 2**20 and list(tmp_path.iterdir()) == []


RAW = {
    "parameters": 10,
    "start": 5.0,
    "publish": 0.25,
    "saved_bytes": 2_000_000_000,
    "steps": [],
    "evaluated": False,
    "sampled_first": False,
    "eval_completions": {"all": 40, "measured": 4},
    "worst": {
        "completions": 4,
        "sample": 8.0,
        "grade": 0.5,
        "train": 6.0,
        "share": {"groups": 0.5, "tokens": 1.0, "train": 0.25},
    },
    "peaks": {"sampled": {"load": 100}, "at most": {"train": 900, "sample": 400}},
    "gpu_peaks": {"sampled": {}, "at most": {}},
    "write_rate": 1e9,
}


def test_what_did_not_fit_into_the_minute_is_in_proportion() -> None:
    found = composed(rl("--max-steps", 10), RAW, 1.0, 60.0)
    assert found.longest == {"sample": 8.0, "grade": 0.5, "train": 6.0, "publish": 0.25} and found.sampled == {}
    assert found.step == found.longest_step == 14.75
    assert found.evaluation == 8.5 * 40 / 4, "at the rate of the longest step"
    assert found.end == 1.0 + 2.0, "two seconds of writing 2 GB at 1 GB/s"
    assert found.total == pytest.approx(5.0 + 10 * 14.75 + 6 * 85.0 + 3.0)
    assert (found.memory, found.memory_sampled) == (900, None)
    assert "50 % of its groups" in found.notes[0] and "25 % of its micro-batches" in found.notes[1]
    assert found.notes[2].startswith("no step was taken") and found.notes[3].startswith("evaluation was not measured")


def test_on_a_gpu_its_memory_is_what_counts() -> None:
    assert composed(rl(), RAW, 1.0, 60.0).device_memory == 900
    on_gpu = RAW | {"gpu_peaks": {"sampled": {}, "at most": {"train": 70, "sample": 80}}}
    assert composed(rl(), on_gpu, 1.0, 60.0).device_memory == 80


def test_a_checkpoint_on_the_way_that_was_not_seen_is_estimated() -> None:
    """After one step the only save is the last one, for which the loop waits to its end."""
    lines = [{"sample": 3.0, "train": 1.0, "step": 4.0}, {"checkpoint": 6.0, "step": 6.0}]
    raw = {name: value for name, value in RAW.items() if name != "write_rate"} | {"steps": lines}
    behind = composed(rl("--max-steps", 10, "--ckpt.interval", 3), raw, 1.0, 60.0)
    assert (behind.checkpoint, behind.end) == (1.0, 7.0), "a copy in memory, at 2 GB/s"
    waits = composed(rl("--max-steps", 10, "--ckpt.interval", 3, "--no-ckpt.background"), raw, 1.0, 60.0)
    assert waits.checkpoint == 6.0


def test_steps_are_averaged_without_what_not_every_one_has() -> None:
    lines = [
        {"sample": 3.0, "train": 1.0, "evaluate": 2.0, "checkpoint": 0.5, "step": 7.0, "total": 9.0},
        {"sample": 1.0, "train": 1.0, "checkpoint": 0.25, "step": 2.5, "total": 11.0},
        {"sample": 2.0, "train": 1.0, "step": 3.25, "total": 14.0},
        {"checkpoint": 4.0, "step": 4.0, "total": 18.0},
    ]
    raw = RAW | {"steps": lines, "evaluated": True, "sampled_first": True}
    raw = {name: value for name, value in raw.items() if name != "write_rate"}
    found = composed(rl("--max-steps", 10, "--ckpt.interval", 3), raw, 1.0, 60.0)
    assert found.sampled == {"sample": 1.5, "train": 1.0, "other": 0.25}, "the first step is apart"
    assert found.first == pytest.approx(4.5 - 2.75) and found.evaluation == 2.0 * 40 / 4
    assert (found.checkpoint, found.checkpoints) == (0.5, 3) and found.end == 5.0
    assert found.longest["other"] == 0.25 and found.memory_sampled == 100


@pytest.mark.parametrize(
    ("worst", "new_tokens", "told"),
    [
        (
            {"sample": 1.4, "train": 1.0},
            8.0,
            "as long as it may be: no longer, for completions run to their limit",
        ),
        ({"sample": 1.4, "train": 1.0}, 3.0, "as long as it may be: no longer"),
        ({"sample": 3.0, "train": 1.0}, 3.0, "as long as it may be: 4.0 s (sampling 75 %, training 25 %)"),
    ],
)
def test_a_longest_step_that_takes_no_longer_is_told_once(worst: dict, new_tokens: float, told: str) -> None:
    """Measured once, it may even come out shorter than the mean of others: what it is then told as is that mean."""
    lines = [{"sample": 1.5, "train": 1.0, "step": 2.5, "total": 9.0}] * 3
    raw = RAW | {"steps": lines, "sampled_first": True, "new_tokens": new_tokens, "trained": 2.0}
    raw["worst"] = RAW["worst"] | {"new_tokens": 8, "grade": 0.0} | worst
    said = words_of(composed(rl("--max-steps", 10), raw, 1.0, 60.0))
    assert [line for line in said if line.startswith("a step with")] == [f"a step with every completion {told}"]
    (run,) = [line for line in said if line.startswith("the run:")]
    assert run.endswith("as long as it may be") == ("no longer" not in told)
    assert not any(line.startswith("no step trained") for line in said)


def test_that_equal_rewards_trained_nothing_is_said() -> None:
    lines = [{"sample": 1.5, "train": 0.0, "step": 1.5, "total": 9.0}] * 3
    found = composed(rl(), RAW | {"steps": lines, "sampled_first": True, "trained": 0.0}, 1.0, 60.0)
    (note,) = [line for line in words_of(found) if line.startswith("no step trained")]
    assert "equal rewards" in note and found.longest["train"] == 6.0


def words_of(found: Calibration) -> list[str]:
    known = plan_of(rl(), DEVICES["h200"], Facts(), here=False, shape=Shape.of("hone/tiny"))
    return [line for _, lines in measured_words(known, found, None) for line in lines]


@pytest.mark.parametrize(
    ("stage", "flags", "words"),
    [
        ({"stage": "train", "sizes": {"micro_batch": 4096, "sequence": 64}}, [], r"micro-batch-tokens \(now 4,096\)"),
        (
            {"stage": "train", "sizes": {"micro_batch": 64, "sequence": 64}},
            [],
            "lower --seq-len, for one sequence of 64",
        ),
        ({"stage": "sample", "sizes": {}}, ["--inference.kv-gib", "2"], r"lower --inference.kv-gib \(now 2\)"),
        ({"stage": "checkpoint", "sizes": {}}, ["--ckpt"], "--ckpt.background false"),
        ({"stage": "load", "sizes": {}}, ["--precision", "bf16"], "^take a smaller model$"),
    ],
)
def test_the_setting_to_lower(stage: dict, flags: list[str], words: str) -> None:
    import re

    assert re.search(words, remedy(rl(*flags), stage))


def test_the_setting_to_lower_in_sft() -> None:
    config = parse(SFTConfig, SFT.split(), "sft")
    sizes = {"micro_batch": 128, "sequence": 64}
    assert remedy(config, {"stage": "train", "sizes": sizes}).startswith("lower --data.micro-batch-tokens (now 128)")
