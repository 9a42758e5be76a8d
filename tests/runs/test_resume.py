"""A resume rolls back to a checkpoint, a branch copies up to one; what would break exactness is refused, and nothing is
changed then. Killed at any move, it can be repeated.
"""

import json
from functools import partial

import pytest
import run_folders
import torch
from run_folders import Crash, contents, crash_at

from hone.config.shared import CkptConfig, ResumeConfig, SchedulerConfig
from hone.errors import UserError
from hone.runs import Run
from hone.runs.settings import about
from hone.runs.writer import RunWriter

SOURCES = {"environment": "e" * 64, "data": "d" * 16, "model": "a" * 16, "tokenizer": "t" * 64}
start = partial(run_folders.start, sources=SOURCES)


def save(run: RunWriter, step: int) -> None:
    with run.weights_dir(step) as folder:
        (folder / "model.safetensors").write_text(f"version {step}")
    tensors = {"model": {"w": torch.full((2,), float(step))}}
    run.save_checkpoint(step, tensors, {"step": step, "logs": run.log_positions()})


def steps(run: RunWriter, first: int, last: int) -> None:
    """A loop as hone's are: save every other version, then take the step that makes the next one."""
    for step in range(first, last):
        if step % 2 == 0 and step > first:
            save(run, step)
        if step % 4 == 0:
            run.evaluation(step, [{"example": 0, "reward": step / 7}])
        run.rollouts(step, [{"step": step, "text": f"sample {step}"}])
        run.token_stats(step, [{"sample_id": "a", "entropies": [step, 0.5], "trainer_logprobs": None}])
        run.event("alarm", step)
        metrics = {"reward/mean": step / 7, "tokens/total": 10 * (step + 1)}
        run.log_step(step, metrics, {"tokens/s": 100.0}, weights=f"{step:016x}")


def exact_files(folder):
    """What must be equal, byte for byte, whatever happened in between."""
    names = ("metrics.jsonl", "hashes.jsonl", "rollouts/", "weights/", "evals/", "tokens/", "checkpoints/")
    return {name: content for name, content in contents(folder).items() if name.startswith(names)}


@pytest.fixture
def run_dir(tmp_path):
    with start(tmp_path / "a") as run:
        steps(run, 0, 7)
    return tmp_path / "a"


def test_resume_equals_a_run_that_never_stopped(run_dir, tmp_path, capsys):
    with start(tmp_path / "whole") as run:
        steps(run, 0, 8)
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "rew')  # killed in the middle of a line
    with start(run_dir, resume=ResumeConfig(step=4)) as run:
        assert run.start_step == 4 and run.restored is not None
        tensors, state = run.restored
        assert tensors["model"]["w"].tolist() == [4.0, 4.0] and state["step"] == 4
        assert Run(run_dir).metrics()["step"].to_pylist() == Run(run_dir).rollout_steps() == [0, 1, 2, 3]
        assert Run(run_dir).evals() == [0] and list(Run(run_dir).weights()) == [2, 4]
        steps(run, 4, 8)
    assert exact_files(run_dir) == exact_files(tmp_path / "whole")
    out = capsys.readouterr().out
    assert f"Resuming {run_dir} at step 4." in out and "superseded/1" in out
    info, place = Run(run_dir).info, run_dir / "superseded" / "1"
    assert info["exact"] is True and [r["step"] for r in info["resumes"]] == [4]
    assert [json.loads(line)["step"] for line in (place / "metrics.jsonl").read_text().splitlines()] == [4, 5, 6]
    kept = {name: sorted(p.name for p in (place / name).iterdir()) for name in ("rollouts", "evals", "checkpoints")}
    assert kept["rollouts"] == [f"step_{n:06d}.parquet" for n in (4, 5, 6)]
    assert kept["evals"] == ["step_000004.jsonl"] and kept["checkpoints"] == ["step_6"]
    kinds = [(e["kind"], e["step"]) for e in Run(run_dir).events() if e["step"] == 4]
    assert kinds == [("weights", 4), ("checkpoint", 4), ("resume", 4), ("alarm", 4)]


@pytest.mark.parametrize("move", range(1, 24, 2))
def test_a_resume_that_is_killed_can_be_repeated(run_dir, monkeypatch, move):
    """Killed at each rename and each whole-file write of the roll-back in turn."""
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, move, "rename", "replace")
        start(run_dir, resume=ResumeConfig(step=4))._lock.release()  # as when its process ends
        raise Crash  # later than the last move: nothing was interrupted
    with start(run_dir, resume=ResumeConfig(step=4)) as run:
        assert run.start_step == 4
        assert list(Run(run_dir).weights()) == Run(run_dir).checkpoints.steps() == [2, 4]
        assert Run(run_dir).rollout_steps() == Run(run_dir).timings()["step"].to_pylist() == [0, 1, 2, 3]
    place = run_dir / "superseded" / "1"
    assert [p.name for p in (run_dir / "superseded").iterdir()] == ["1"]
    assert sorted(p.name for p in (place / "rollouts").iterdir()) == [f"step_{n:06d}.parquet" for n in (4, 5, 6)]
    for name in ("metrics", "timings"):
        assert [json.loads(line)["step"] for line in (place / f"{name}.jsonl").read_text().splitlines()] == [4, 5, 6]
    assert not list(run_dir.rglob(".tmp-hone-*"))


def test_an_unfinished_roll_back_is_finished_before_a_checkpoint_is_chosen(run_dir, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, 1, "rename")
        start(run_dir, resume=ResumeConfig(step=2))
    assert Run(run_dir).checkpoints.steps() == [2, 4, 6]
    with start(run_dir, resume=ResumeConfig()) as run:
        assert run.start_step == 2, "checkpoints 4 and 6 were given up"


def test_resume_without_a_checkpoint_starts_a_new_run_and_says_so(tmp_path, capsys):
    with start(tmp_path) as run:
        run.log_step(0, {"reward/mean": 0.1})
    with start(tmp_path, resume=ResumeConfig(), seed=4) as run:
        assert run.start_step == 0 and run.restored is None and Run(tmp_path).metrics().num_rows == 0
    assert f"No checkpoint to resume in {tmp_path}: starting at step 0." in capsys.readouterr().out
    assert Run(tmp_path).info["exact"] is True and Run(tmp_path).info["seed"] == 4
    start(tmp_path / "new", resume=ResumeConfig()).finish("done")
    assert f"There is nothing to resume in {tmp_path / 'new'}: starting at step 0." in capsys.readouterr().out


def test_resuming_a_finished_run_has_nothing_left_to_do(tmp_path, capsys):
    with start(tmp_path) as run:
        steps(run, 0, 8)
        save(run, 8)
        run.log_step(8, {"eval/x/reward/mean": 0.5})
    before = contents(tmp_path)
    with start(tmp_path, resume=ResumeConfig()) as run:
        assert run.nothing_left and run.start_step == 8
    assert f"Nothing left to do in {tmp_path}: all 8 steps are done." in capsys.readouterr().out
    assert contents(tmp_path) == before
    with start(tmp_path, resume=ResumeConfig(), max_steps=9) as run:
        assert not run.nothing_left and run.start_step == 8


def edit_metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line.replace("0.1", "0.9") for line in lines))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sources": SOURCES | {"environment": "f" * 64}}, r"with another task file \(eeeeeeee, now ffffffff\) would"),
        ({"sources": SOURCES | {"model": "f" * 16}}, r"with another initial model \(aaaaaaaa, now ffffffff\) would"),
        ({"seed": 5}, r"with another seed \(0, now 5\)"),
        ({"damage": edit_metrics}, r"metrics\.jsonl changed or went missing after checkpoint step_6 was written"),
        (
            {"damage": lambda folder: (folder / "rollouts" / "step_000002.parquet").unlink()},
            r"rollouts/step_000002\.parquet changed or went missing",
        ),
    ],
)
def test_what_changed_is_refused_unless_drift_is_allowed(run_dir, capsys, change, message):
    settings = dict(change)
    if damage := settings.pop("damage", None):
        damage(run_dir)
    before = contents(run_dir)
    with pytest.raises(UserError, match=message):
        start(run_dir, resume=ResumeConfig(), **settings)
    assert contents(run_dir) == before
    start(run_dir, resume=ResumeConfig(), allow_drift=True, **settings).finish("done")
    assert "Changed since the run began: " in capsys.readouterr().out
    (entry,) = Run(run_dir).info["inexact"]
    assert entry["step"] == 6 and entry["cause"].startswith("resumed with other ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {"w": torch.zeros(3)}}, r"another model \(w has shape \[2\], not \[3\]\): resume with the"),
        ({"max_steps": 5}, r"checkpoint step_6 is past max_steps = 5"),
        ({"resume": ResumeConfig(step=5)}, r"step 5: there is no such checkpoint; complete checkpoints: 2, 4, 6"),
        ({"name": "metrics.jsonl", "text": b'{"step": 0}\nxxx\n'}, r"metrics\.jsonl, line 2, is damaged"),
        ({"name": "events.jsonl", "text": b"xxx\n"}, r"events\.jsonl, line 1, is damaged"),
        ({"name": "config.toml", "text": b"a = 1\nb = x\n"}, r"config\.toml is damaged \(.*line 2.*\): fix it"),
        ({"name": "run.json", "text": b"{"}, r"run\.json is damaged \(.*line 1.*\): fix it"),
        ({"fact": "inexact"}, r"run\.json is damaged \(inexact is missing\): fix it"),
    ],
)
def test_what_can_not_be_gone_on_from_is_named_and_nothing_is_changed(run_dir, change, message):
    settings = {"resume": ResumeConfig()} | change
    if name := settings.pop("name", None):
        (run_dir / name).write_bytes(settings.pop("text"))
    if fact := settings.pop("fact", None):
        info = json.loads((run_dir / "run.json").read_text())
        (run_dir / "run.json").write_text(json.dumps({name: info[name] for name in info if name != fact}))
    before = contents(run_dir)
    with pytest.raises(UserError, match=message):
        start(run_dir, allow_drift=True, **settings)
    assert contents(run_dir) == before


@pytest.mark.parametrize(("schedule", "allowed"), [("constant", True), ("cosine", False)])
def test_more_steps_are_drift_where_the_learning_rate_depends_on_them(tmp_path, capsys, schedule, allowed):
    trainer = {"scheduler": SchedulerConfig(type=schedule)}
    with start(tmp_path, trainer=trainer) as run:
        steps(run, 0, 6)
    if not allowed:
        with pytest.raises(UserError, match=r"with another max_steps \(8, now 20\)"):
            start(tmp_path, trainer=trainer, resume=ResumeConfig(), max_steps=20)
        return
    start(tmp_path, trainer=trainer, resume=ResumeConfig(), max_steps=20).finish("done")
    assert "Changed since the run began: max_steps (8, now 20)." in capsys.readouterr().out
    assert Run(tmp_path).info["exact"] is True


def test_settings_that_decide_no_number_may_change(run_dir, capsys):
    free = {"ckpt": CkptConfig(interval=1), "grace_seconds": 5.0, "budget": {"hours": 1}}
    start(run_dir, resume=ResumeConfig(), model={"name": "elsewhere/model"}, **free).finish("done")
    assert "Changed" not in capsys.readouterr().out and Run(run_dir).info["exact"] is True
    assert about("trainer.loss.tau_positive").decides == "nothing", "a key of an older hone"


def test_drift_is_undone_by_a_resume_from_before_it(run_dir):
    """With the settings that the run had then, though config.toml has others since."""
    other = SOURCES | {"data": "f" * 16}
    with start(run_dir, sources=other, resume=ResumeConfig(step=4), seed=5, allow_drift=True) as run:
        steps(run, 4, 7)
    assert Run(run_dir).info["drift"] == [{"step": 4, "settings": {"seed": 0}, "sources": {"data": "d" * 16}}]
    with pytest.raises(UserError, match=r"with another seed \(5, now 0\), data \(ffffffff, now dddddddd\)"):
        start(run_dir, resume=ResumeConfig(step=6))
    start(run_dir, sources=other, resume=ResumeConfig(step=4), seed=5).finish("done")
    start(run_dir, resume=ResumeConfig(step=2)).finish("done")
    info = Run(run_dir).info
    assert info["exact"] is True and info["drift"] == [] and info["sources"]["data"] == SOURCES["data"]


def test_a_branch_has_the_history_up_to_its_checkpoint(run_dir, tmp_path, capsys):
    before = contents(run_dir)
    branch, resume = tmp_path / "b", ResumeConfig(dir=run_dir, step=2)
    with start(branch, resume=resume, max_steps=7) as run:
        assert run.start_step == 2 and run.restored is not None
        assert run.budget.tokens == 20 and run.budget.seconds > 0
        steps(run, 2, 5)
    assert contents(run_dir) == before
    a, b = Run(run_dir), Run(branch)
    assert b.info["parent"] == {"id": a.info["id"], "dir": str(run_dir), "step": 2} and b.info["id"] != a.info["id"]
    copied = {name: content for name, content in exact_files(branch).items() if name in before}
    assert {"rollouts/step_000004.parquet", "checkpoints/step_2/state.json", "weights/step_2/COMPLETE"} <= {*copied}
    logs = [name for name in copied if name.endswith("s.jsonl")]
    assert logs and all(before[name].startswith(copied.pop(name)) for name in logs if "/" not in name)
    assert all(before[name] == content for name, content in copied.items())
    with start(branch, resume=resume, max_steps=7) as run:  # as a scheduler repeats the same command
        assert run.start_step == 4 and run.info["id"] == b.info["id"]
    assert f"{branch} branched from {run_dir} at step 2, and is resumed." in capsys.readouterr().out
    with start(branch, resume=ResumeConfig(dir=run_dir, step=4)) as run:
        assert run.start_step == 4 and run.info["parent"]["step"] == 4, "from another step it is another branch"
    info = json.loads((branch / "run.json").read_text()) | {"status": "copying"}
    (branch / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"copying .*a to .*b was interrupted: begin again with --resume\.dir"):
        start(branch, resume=ResumeConfig())
    with start(branch, resume=ResumeConfig(dir=run_dir)) as run:
        assert run.start_step == 6 and len(list((branch / ".previous").iterdir())) == 2
