"""What a loop records, and what a resume leaves of it."""

import hashlib
import json
import os
import re
import shutil
import time
import tomllib
from datetime import date, datetime

import numpy as np
import pytest
import torch

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import CkptConfig, ResumeConfig, SchedulerConfig
from hone.errors import UserError
from hone.runs import Run, checkpoint, opening, writer
from hone.runs.budget import process_seconds
from hone.runs.evaluations import as_read
from hone.runs.files import remove_dir
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


def test_config_toml_reads_back_equal(tmp_path):
    original = config(tmp_path / "a b", ckpt=CkptConfig(interval=3), resume=ResumeConfig(), seed=9)
    original.orchestrator.env.args = {"answer": "007", "n": 3, "deep": {"x": [1.5, 2e-7]}}
    RunWriter.start(original, "rl", []).finish("done")
    text = (tmp_path / "a b" / "config.toml").read_text()
    assert RLConfig(**tomllib.loads(text)) == original.model_copy(update={"resume": None})
    assert Run(tmp_path / "a b").config["ckpt"] == {"interval": 3, "background": True}


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


def test_of_a_run_that_was_stopped_at_its_checkpoint_nothing_is_said_to_be_superseded(tmp_path, capsys):
    with start(tmp_path) as run:
        steps(run, 0, 4)
        run.save_checkpoint(4, {"model": {"w": torch.full((2,), 4.0)}}, {"step": 4})
        run.log_step(4, {}, weights="4444")
        run.finish("stopped")
    capsys.readouterr()
    with start(tmp_path, resume=ResumeConfig()) as run:
        assert run.start_step == 4 and "superseded" not in capsys.readouterr().out
        run.log_step(4, {"eval/x/reward/mean": 0.5}, weights="4444")
    assert [path.name for path in (tmp_path / "superseded" / "1").iterdir() if path.suffix == ".jsonl"] == [
        "hashes.jsonl"
    ]
    with start(tmp_path, resume=ResumeConfig()):
        assert "superseded/2" in capsys.readouterr().out


def test_restarts_stay_in_a_run_that_goes_back_to_the_same_step_twice(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 4)
    for cause in ("first", "second"):
        with start(tmp_path, resume=ResumeConfig()) as run:
            run.event("restart", run.start_step, cause=cause)
            run.event("alarm", run.start_step)
    events = [event for event in Run(tmp_path).events() if event["step"] == 2]
    assert [event["cause"] for event in events if event["kind"] == "restart"] == ["first", "second"]
    assert [event["kind"] for event in events].count("alarm") == 1


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


def test_tokens_are_read_as_they_were_written(tmp_path):
    values = {"entropies": np.array([0.1, 2.0], np.float16), "trainer_logprobs": np.array([-1 / 3, 0], np.float32)}
    nothing = {"entropies": None, "trainer_logprobs": None}
    with start(tmp_path) as run:
        run.token_stats(3, [{"sample_id": "3-0-0"} | nothing, {"sample_id": "3-0-1"} | values])
        run.token_stats(4, [])
    table = Run(tmp_path).token_stats(3)
    assert [(field.name, str(field.type)) for field in table.schema] == [
        ("sample_id", "string"),
        ("entropies", "list<element: halffloat>"),
        ("trainer_logprobs", "list<element: float>"),
    ]
    wanted = {"sample_id": "3-0-1"} | {name: array.tolist() for name, array in values.items()}
    assert table.to_pylist() == [{"sample_id": "3-0-0"} | nothing, wanted]
    import duckdb

    file = tmp_path / "tokens" / "step_000003.parquet"
    assert duckdb.sql(f"SELECT entropies FROM '{file}'").fetchall() == [(None,), (wanted["entropies"],)]
    assert Run(tmp_path).token_stats(4).num_rows == 0 and Run(tmp_path).token_stats(5) is None
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(UserError, match=r"step_000003\.parquet is damaged .*: delete it, nothing needs it"):
        Run(tmp_path).token_stats(3)


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


def test_resume_skips_a_damaged_checkpoint(tmp_path, capsys):
    with start(tmp_path) as run:
        steps(run, 0, 7)
    (tmp_path / "checkpoints" / "step_6" / "state.json").write_text("{}")
    with start(tmp_path, resume=ResumeConfig()) as run:
        assert run.start_step == 4
    assert "Warning: checkpoint step_6 is damaged (state.json has 2 bytes" in capsys.readouterr().out


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


def test_resume_step_that_is_missing(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 7)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"--resume.step 5: there is no such checkpoint; complete checkpoints: 2, 4, 6"):
        start(tmp_path, resume=ResumeConfig(step=5))
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match=r"--resume.step 5: there is no run in .*new to resume"):
        start(tmp_path / "new", resume=ResumeConfig(step=5))
    assert not (tmp_path / "new").exists()


def test_resume_of_another_kind(tmp_path):
    start(tmp_path).finish("done")
    other = SFTConfig(output_dir=tmp_path, data={"path": "x.jsonl"}, resume=ResumeConfig())  # type: ignore[arg-type]
    with pytest.raises(UserError, match="holds a run of `hone rl`, which `hone sft` can't resume: use another"):
        RunWriter.start(other, "sft", [])


def test_resume_with_other_settings_is_not_exact(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 5)
    free = {"display": "none", "ckpt": CkptConfig(interval=1)}
    start(tmp_path, resume=ResumeConfig(), **free).finish("done")
    assert Run(tmp_path).info["exact"] is True
    changed = config(tmp_path, resume=ResumeConfig(), max_steps=9)
    changed.trainer.scheduler = SchedulerConfig(type="linear")
    differs = "max_steps (8, now 9), trainer.scheduler.type (constant, now linear)"
    before = Run(tmp_path).info
    with pytest.raises(UserError, match=rf"with another {re.escape(differs)} would give numbers .* add --allow-drift"):
        RunWriter.start(changed, "rl", [])
    assert Run(tmp_path).info == before
    RunWriter.start(changed.model_copy(update={"allow_drift": True}), "rl", []).finish("done")
    cause = {"step": 4, "cause": f"resumed with other {differs}"}
    assert Run(tmp_path).info["inexact"] == [cause]
    RunWriter.start(changed, "rl", []).finish("done")
    assert Run(tmp_path).info["inexact"] == [cause], "it stays so, although nothing changed this time"


def test_resume_on_other_software_is_not_exact(tmp_path, monkeypatch):
    with start(tmp_path) as run:
        steps(run, 0, 5)
    versions = writer.provenance.versions()
    monkeypatch.setattr(opening.provenance, "versions", lambda: versions | {"torch": "9.9"})
    start(tmp_path, resume=ResumeConfig()).finish("done")
    assert Run(tmp_path).info["inexact"][0]["cause"] == f"resumed with other torch ({torch.__version__}, now 9.9)"


def test_resume_with_other_kernels_is_not_exact(tmp_path, monkeypatch):
    with start(tmp_path) as run:
        steps(run, 0, 5)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("UNRELATED", "1")
    start(tmp_path, resume=ResumeConfig()).finish("done")
    assert Run(tmp_path).info["inexact"][0]["cause"] == "resumed with other ONEDNN_MAX_CPU_ISA (None, now AVX2)"


def test_a_step_without_metrics_is_no_line(tmp_path):
    with start(tmp_path) as run:
        run.log_step(0, {"loss": 1.0})
        run.log_step(1, {})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 0, "loss": 1.0}\n'
    assert Run(tmp_path).timings()["step"].to_pylist() == [0]


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


def test_reading_writes_nothing(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 3)
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step"')
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    reader = Run(tmp_path)
    assert reader.metrics().num_rows == 3 and len(reader.events()) > 3
    assert reader.rollouts(2)["text"].to_pylist() == ["sample 2"]
    with pytest.raises(UserError, match="has no rollouts of step 7: it has steps 0 to 2"):
        reader.rollouts(7)
    assert reader.evals() == [0] and reader.eval_rows(0) == [{"example": 0, "reward": 0.0}]
    with pytest.raises(UserError, match="has no evaluation of version 7: it has those of 0"):
        reader.eval_rows(7)
    with pytest.raises(UserError, match=r"has no results\.jsonl: name a version"):
        reader.eval_rows()
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    with pytest.raises(UserError, match=r"is not a run of hone: it has no run\.json"):
        Run(tmp_path / "rollouts")


def test_warnings_go_to_the_log(tmp_path, capsys):
    import logging
    import warnings

    with start(tmp_path):
        warnings.warn("something odd", stacklevel=1)
        logging.getLogger("some.library").warning("hm")
    text = (tmp_path / "logs" / "rl.log").read_text()
    assert "something odd" in text and "WARNING some.library: hm" in text
    assert f"2 warnings in {tmp_path / 'logs' / 'rl.log'}." in capsys.readouterr().out


def reversed_lines(path):
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))


def without_line(path, number):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))


def quietly_changed(path):
    """Changes a byte in place, and sets the time back."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    with open(path, "r+b") as file:
        file.write(b"x")
    os.utime(path, ns=times)


def emptied(path):
    path.unlink()
    path.touch()


WHILE_IT_RUNS = {
    "rollouts/step_000003.parquet": (os.remove, 3),
    "rollouts/step_000002.parquet": (quietly_changed, 2),
    "evals/step_000004.jsonl": (os.remove, 4),
    "tokens/step_000001.parquet": (quietly_changed, 1),
    "weights/step_4/model.safetensors": (quietly_changed, 4),
    "checkpoints/step_2/state.json": (quietly_changed, 2),
    "config.toml": (quietly_changed, 0),
    "metrics.jsonl": (lambda path: without_line(path, 2), 2),
    "hashes.jsonl": (reversed_lines, 0),
}


@pytest.mark.parametrize("file", WHILE_IT_RUNS)
def test_a_file_that_is_changed_while_the_run_goes_on_makes_it_inexact(tmp_path, capsys, file):
    change, step = WHILE_IT_RUNS[file]
    with start(tmp_path) as run:
        steps(run, 0, 5)
        change(tmp_path / file)
        steps(run, 5, 7)
    info = Run(tmp_path).info
    assert (info["status"], info["exact"]) == ("done", False)
    [entry] = info["inexact"]
    assert entry["step"] == step and entry["cause"].startswith(file)
    [event] = [event for event in Run(tmp_path).events() if event["kind"] == "changed"]
    assert (event["step"], event["file"]) == (step, file)
    assert file in capsys.readouterr().out


@pytest.mark.parametrize("log", ["metrics.jsonl", "hashes.jsonl"])
@pytest.mark.parametrize("change", [os.remove, emptied, lambda path: path.write_text('{"step": 0}\n')])
def test_a_log_that_is_cut_off_while_the_run_goes_on_makes_it_inexact_from_its_first_step(tmp_path, log, change):
    with start(tmp_path) as run:
        steps(run, 0, 3)
        change(tmp_path / log)
        steps(run, 3, 5)
    [entry] = Run(tmp_path).info["inexact"]
    assert entry["step"] == 0 and entry["cause"].startswith(log)


def test_many_missing_files_are_one_cause(tmp_path):
    with start(tmp_path) as run:
        steps(run, 0, 5)
        for step in (1, 2, 4):
            (tmp_path / f"rollouts/step_00000{step}.parquet").unlink()
    [entry] = Run(tmp_path).info["inexact"]
    assert entry["step"] == 1 and "2 more of rollouts/" in entry["cause"]


@pytest.mark.parametrize("gone", ["tokens", "checkpoints", "weights/step_2", "run.json"])
def test_what_may_be_deleted_to_make_room_is_told_and_the_run_stays_exact(tmp_path, gone):
    with start(tmp_path) as run:
        steps(run, 0, 5)
        shutil.rmtree(tmp_path / gone) if (tmp_path / gone).is_dir() else (tmp_path / gone).write_text("{}")
    assert Run(tmp_path).info["exact"] is True and Run(tmp_path).info["status"] == "done"
    assert [e["file"].startswith(gone) for e in Run(tmp_path).events() if e["kind"] == "changed"] == [True]


def test_what_hone_prunes_and_what_is_only_touched_has_not_changed(tmp_path):
    with start(tmp_path, ckpt=CkptConfig(interval=2, keep_last=1)) as run:
        steps(run, 0, 7)
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            os.utime(path, (0, 0))
    assert Run(tmp_path).checkpoints.steps() == [6] and Run(tmp_path).info["exact"] is True
    assert not [event for event in Run(tmp_path).events() if event["kind"] == "changed"]


def test_what_an_earlier_process_wrote_is_looked_at_as_well(tmp_path):
    with pytest.raises(Crash), start(tmp_path) as run:
        steps(run, 0, 6)
        raise Crash
    with start(tmp_path, resume=ResumeConfig()) as run:
        steps(run, run.start_step, 7)
    assert Run(tmp_path).info["exact"] is True
    with start(tmp_path, resume=ResumeConfig(step=4)) as run:
        without_line(tmp_path / "metrics.jsonl", 2)
        (tmp_path / "rollouts/step_000001.parquet").unlink()
        steps(run, 4, 7)
    assert [entry["step"] for entry in Run(tmp_path).info["inexact"]] == [1, 2]
    with start(tmp_path, resume=ResumeConfig(step=0), max_steps=2) as run:
        steps(run, 0, 2)
    assert Run(tmp_path).info["exact"] is True
