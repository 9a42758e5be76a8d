"""What a loop records, and what a resume leaves of it."""

import hashlib
import json
import os
import time
from datetime import date, datetime

import pytest
import torch

from hone.config.rl import RLConfig
from hone.config.shared import CkptConfig, ResumeConfig
from hone.runs import Run, checkpoint, writer
from hone.runs.budget import process_seconds
from hone.runs.files import remove_dir
from hone.runs.rollouts import as_read
from hone.runs.writer import RunWriter


class Crash(BaseException):
    """Nothing may catch it, as nothing catches SIGKILL."""


def config(folder, **settings) -> RLConfig:
    return RLConfig(**{"output_dir": folder, "max_steps": 8, "display": "plain"} | settings)


def start(folder, out=None, kind="rl", **settings) -> RunWriter:
    return RunWriter.start(config(folder, **settings), kind, ["hone", kind], out=out)


def steps(run: RunWriter, first: int, last: int, interval: int = 2) -> None:
    """A loop as hone's are: save, then step, whose update makes the next version."""
    for step in range(first, last):
        if step % interval == 0 and step > first:
            with run.weights_dir(step) as folder:
                (folder / "model.safetensors").write_text(f"version {step}")
            run.save_checkpoint(step, {"model": {"w": torch.full((2,), float(step))}}, {"step": step})
        if step % 4 == 0:
            run.evaluation(step, [{"example": 0, "reward": step / 7}])
        run.rollouts(step, [{"step": step, "text": f"sample {step}"}])
        run.token_stats(step, [{"sample_id": "a", "entropies": [step, 0.5], "trainer_logprobs": None}])
        run.event("alarm", step)
        run.log_step(step, {"reward/mean": step / 7}, {"tokens/s": 100.0})


def exact_files(folder):
    """What must be equal, byte for byte, whatever happened in between."""
    files = [folder / "metrics.jsonl", *(folder / "rollouts").iterdir(), *(folder / "weights").rglob("*")]
    files += [folder / "hashes.jsonl", *(folder / "evals").iterdir(), *(folder / "tokens").iterdir()]
    files += [*(folder / "checkpoints").rglob("*")]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if p.is_file()}


def test_lines_of_a_step(tmp_path):
    with start(tmp_path) as run:
        with run.phase("sample"):
            pass
        with run.phase("train"):
            pass
        with run.phase("train"):
            pass
        run.log_step(
            0, {"reward/mean": 1 / 3, "groups": 3, "eval/x/reward/mean": torch.tensor(0.5)}, {"tokens/s": 7.25}
        )
        run.log_step(1, {"reward/mean": None})
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 0, "reward/mean": 0.3333333333333333, "groups": 3, "eval/x/reward/mean": 0.5}\n'
        '{"step": 1, "reward/mean": null}\n'
    )
    first, second = Run(tmp_path).timings().to_pylist()
    assert [name for name, value in first.items() if value is not None] == [
        *("step", "time/sample", "time/train", "time/step", "time/total", "tokens/s")
    ]
    assert first["tokens/s"] == 7.25 and 0 <= first["time/train"] <= first["time/step"]
    assert second["step"] == 1 and second["time/train"] is None
    table = Run(tmp_path).metrics()
    assert table.column_names == ["step", "reward/mean", "groups", "eval/x/reward/mean"]
    assert [str(field.type) for field in table.schema] == ["int64", "double", "int64", "double"]
    assert table["reward/mean"].to_pylist() == [1 / 3, None]


def test_a_metric_that_is_not_finite_is_null_and_told(tmp_path, capsys):
    with start(tmp_path) as run:
        for step in (3, 4):
            run.log_step(step, {"grad_norm": float("inf"), "loss": 1.0})
    assert Run(tmp_path).metrics()["grad_norm"].to_pylist() == [None, None]
    told = [e for e in Run(tmp_path).events() if e["kind"] == "not_finite"]
    assert [(e["step"], e["metric"], e["value"]) for e in told] == [(3, "grad_norm", "inf"), (4, "grad_norm", "inf")]
    assert capsys.readouterr().out.count("grad_norm is inf at step 3") == 1


def test_run_json(tmp_path):
    run = start(tmp_path, seed=5)
    info = Run(tmp_path).info
    assert info["status"] == "running" and info["exact"] is True and info["kind"] == "rl" and info["seed"] == 5
    began = time.time() - process_seconds()
    assert abs(datetime.fromisoformat(info["started"]).timestamp() - began) < 3, "when its process did"
    assert info["versions"]["torch"] == torch.__version__ and info["versions"]["hone-rl"]
    assert info["threads"] == torch.get_num_threads() and info["hardware"]["cores"] >= 1
    assert info["command"] == ["hone", "rl"] and info["pid"] == os.getpid() and info["resumes"] == []
    run.finish("stopped")
    assert Run(tmp_path).info["status"] == "stopped" and Run(tmp_path).info["ended"] >= info["started"]


@pytest.mark.parametrize(
    ("error", "status"), [(None, "done"), (KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")]
)
def test_status_by_how_the_block_ends(tmp_path, error, status):
    try:
        with start(tmp_path):
            if error:
                raise error
    except (KeyboardInterrupt, RuntimeError):
        pass
    assert Run(tmp_path).info["status"] == status


def test_inexact_says_step_and_cause_once(tmp_path, capsys):
    with start(tmp_path) as run:
        run.mark_inexact(3, "a grader deadline fired")
        run.mark_inexact(4, "a grader deadline fired")
    info = Run(tmp_path).info
    assert info["exact"] is False and info["inexact"] == [{"step": 3, "cause": "a grader deadline fired"}]
    assert "may differ from step 3 on: a grader deadline fired" in capsys.readouterr().out


def test_resume_equals_a_run_that_never_stopped(tmp_path, capsys):
    with start(tmp_path / "whole") as run:
        steps(run, 0, 8)
    with start(tmp_path / "split") as run:
        steps(run, 0, 6, interval=2)
        run.mark_inexact(4, "a grader deadline fired")
        run.evaluation(6, [{"example": 0, "reward": 0.5}])
        run.rollouts(6, [{"step": 6, "text": "another sample 6"}])
    with open(tmp_path / "split" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "rew')  # killed in the middle of a line
    run_id = Run(tmp_path / "split").info["id"]
    assert Run(tmp_path / "split").checkpoints.steps() == [2, 4]
    capsys.readouterr()
    with start(tmp_path / "split", resume=ResumeConfig()) as run:
        assert run.start_step == 4 and run.restored is not None
        tensors, state = run.restored
        assert tensors["model"]["w"].tolist() == [4.0, 4.0] and state == {"step": 4}
        assert [r["step"] for r in Run(tmp_path / "split").metrics().to_pylist()] == [0, 1, 2, 3]
        assert Run(tmp_path / "split").rollout_steps() == [0, 1, 2, 3]
        assert Run(tmp_path / "split").evals() == [0]
        assert sorted(Run(tmp_path / "split").weights()) == [2, 4]
        steps(run, 4, 8)
    assert exact_files(tmp_path / "split") == exact_files(tmp_path / "whole")
    out = capsys.readouterr().out
    assert f"Resuming {tmp_path / 'split'} at step 4." in out and "superseded/1" in out
    info = Run(tmp_path / "split").info
    assert info["id"] == run_id and info["exact"] is True and [r["step"] for r in info["resumes"]] == [4]
    place = tmp_path / "split" / "superseded" / "1"
    assert [json.loads(line)["step"] for line in (place / "metrics.jsonl").read_text().splitlines()] == [4, 5]
    assert sorted(p.name for p in (place / "rollouts").iterdir()) == [f"step_{n:06d}.parquet" for n in (4, 5, 6)]
    assert sorted(p.name for p in (place / "evals").iterdir()) == ["step_000004.jsonl", "step_000006.jsonl"]
    assert sorted(p.name for p in (place / "tokens").iterdir()) == ["step_000004.parquet", "step_000005.parquet"]
    kinds = [(e["kind"], e["step"]) for e in Run(tmp_path / "split").events() if e["step"] == 4]
    assert kinds == [("weights", 4), ("checkpoint", 4), ("resume", 4), ("alarm", 4)]


def test_resume_from_a_named_step_supersedes_later_versions(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 8)
    with start(tmp_path, resume=ResumeConfig(step=2)) as run:
        assert run.start_step == 2
    assert sorted(Run(tmp_path).weights()) == [2] and Run(tmp_path).checkpoints.steps() == [2]
    place = tmp_path / "superseded" / "1"
    assert {p.name for p in (place / "checkpoints").iterdir()} == {"step_4", "step_6"}
    assert {p.name for p in (place / "weights").iterdir()} == {"step_4", "step_6"}
    start(tmp_path, resume=ResumeConfig(step=2)).finish("done")
    assert [p.name for p in (tmp_path / "superseded").iterdir()] == ["1"], "there was nothing more to roll back"


def test_an_evaluation_is_hashed_with_its_step(tmp_path):
    row = {"example": 0, "info": {"when": date(2026, 1, 2), 3: float("nan")}, "prompt": ["ä\n"], "reward": 1 / 3}
    with start(tmp_path) as run:
        run.evaluation(0, [row, {"example": 1}])
        run.log_step(0, {"reward/mean": 0.5}, weights="ab")
        run.log_step(1, {"reward/mean": 0.5})
    read = [
        {"example": 0, "info": {"when": "2026-01-02", "3": None}, "prompt": ["ä\n"], "reward": 1 / 3},
        {"example": 1},
    ]
    assert Run(tmp_path).eval_rows(0) == read == as_read([row, {"example": 1}])
    digest = hashlib.sha256((tmp_path / "evals" / "step_000000.jsonl").read_bytes()).hexdigest()
    first, second = Run(tmp_path).hashes()
    assert first["evals"] == digest and list(first) == ["step", "weights", "metrics", "rollouts", "evals"]
    assert "evals" not in second


@pytest.mark.parametrize("move", range(1, 24))
def test_a_resume_that_is_killed_can_be_repeated(tmp_path, monkeypatch, move):
    """Killed at each rename and each whole-file write of the roll-back in turn."""
    with start(tmp_path) as run:
        steps(run, 0, 7)
    calls, originals = [], {name: getattr(os, name) for name in ("rename", "replace")}

    def crashing(name):
        def call(*args):
            calls.append(args)
            if len(calls) == move:
                raise Crash
            originals[name](*args)

        return call

    with monkeypatch.context() as patch, pytest.raises(Crash):
        for name in originals:
            patch.setattr(os, name, crashing(name))
        start(tmp_path, resume=ResumeConfig(step=4))._lock.release()  # as when its process ends
        raise Crash  # later than the last move: nothing was interrupted
    with start(tmp_path, resume=ResumeConfig(step=4)) as run:
        assert run.start_step == 4
        assert sorted(Run(tmp_path).weights()) == [2, 4] and Run(tmp_path).checkpoints.steps() == [2, 4]
        assert Run(tmp_path).rollout_steps() == [0, 1, 2, 3] and Run(tmp_path).evals() == [0]
        for table in (Run(tmp_path).metrics(), Run(tmp_path).timings()):
            assert table["step"].to_pylist() == [0, 1, 2, 3]
    place = tmp_path / "superseded" / "1"
    assert [p.name for p in (tmp_path / "superseded").iterdir()] == ["1"]
    assert sorted(p.name for p in (place / "rollouts").iterdir()) == [f"step_{n:06d}.parquet" for n in (4, 5, 6)]
    assert (
        {p.name for p in (place / "checkpoints").iterdir()}
        == {p.name for p in (place / "weights").iterdir()}
        == {"step_6"}
    )
    for name in ("metrics", "timings"):
        assert [json.loads(line)["step"] for line in (place / f"{name}.jsonl").read_text().splitlines()] == [4, 5, 6]
    assert not list(tmp_path.rglob(".tmp-hone-*"))


def test_an_unfinished_roll_back_is_finished_before_a_checkpoint_is_chosen(tmp_path, monkeypatch):
    with start(tmp_path) as run:
        steps(run, 0, 7)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(Crash()))
        start(tmp_path, resume=ResumeConfig(step=2))
    assert Run(tmp_path).checkpoints.steps() == [2, 4, 6]
    with start(tmp_path, resume=ResumeConfig()) as run:
        assert run.start_step == 2, "checkpoints 4 and 6 were given up"
        assert Run(tmp_path).metrics()["step"].to_pylist() == [0, 1]


def test_resume_without_a_checkpoint_starts_at_step_0_and_says_so(tmp_path, capsys):
    with start(tmp_path) as run:
        run.log_step(0, {"reward/mean": 0.1})
    with start(tmp_path, resume=ResumeConfig()) as run:
        assert run.start_step == 0 and run.restored is None
        assert Run(tmp_path).metrics().num_rows == 0
    assert f"No checkpoint to resume in {tmp_path}: starting at step 0." in capsys.readouterr().out
    with start(tmp_path / "new", resume=ResumeConfig()) as run:
        assert run.start_step == 0
    assert f"There is nothing to resume in {tmp_path / 'new'}: starting at step 0." in capsys.readouterr().out


@pytest.mark.parametrize("saved", [False, True])
def test_an_interrupted_run_says_what_is_kept(tmp_path, capsys, saved):
    with pytest.raises(KeyboardInterrupt), start(tmp_path) as run:
        steps(run, 0, 5 if saved else 2)
        raise KeyboardInterrupt
    last = capsys.readouterr().out.splitlines()[-1]
    kept = (
        f"the last checkpoint is step_4; go on with: hone rl @ {tmp_path}/config.toml --resume"
        if saved
        else "no checkpoint was saved"
    )
    assert last == f"Interrupted: {kept}."


def test_checkpoints_beyond_keep_go_with_their_weights(tmp_path):
    with start(tmp_path, ckpt=CkptConfig(interval=2, keep_last=1)) as run:
        steps(run, 0, 5)
        with run.weights_dir(5) as folder:
            (folder / "model.safetensors").write_text("without a checkpoint")
        steps(run, 5, 8, interval=3)
    assert Run(tmp_path).checkpoints.steps() == [6]
    assert sorted(Run(tmp_path).weights()) == [5, 6]


@pytest.mark.parametrize("call", range(1, 7))
def test_killed_while_pruning_ends_with_the_same_files(tmp_path, monkeypatch, call):
    ckpt = CkptConfig(interval=2, keep_last=1)
    with start(tmp_path / "whole", ckpt=ckpt) as run:
        steps(run, 0, 8)
    calls = []

    def crashing(path):
        calls.append(path)
        if len(calls) == call:
            raise Crash
        remove_dir(path)

    with monkeypatch.context() as patch, pytest.raises(Crash), start(tmp_path / "split", ckpt=ckpt) as run:
        patch.setattr(writer, "remove_dir", crashing)
        patch.setattr(checkpoint, "remove_dir", crashing)
        steps(run, 0, 8)
        raise Crash  # more calls than there are
    with start(tmp_path / "split", resume=ResumeConfig(), ckpt=ckpt) as run:
        steps_from(run, 8)
    assert exact_files(tmp_path / "split") == exact_files(tmp_path / "whole")


def steps_from(run: RunWriter, last: int) -> None:
    """What is left of `steps(run, 0, last)`; like hone's loops, it doesn't save the version it began with."""
    steps(run, run.start_step, last)


def test_weights_that_fail_to_export_leave_nothing(tmp_path):
    with pytest.raises(RuntimeError), start(tmp_path) as run, run.weights_dir(3) as folder:
        (folder / "model.safetensors").write_text("half")
        raise RuntimeError
    assert Run(tmp_path).weights() == {} and not list((tmp_path / "weights").iterdir())
