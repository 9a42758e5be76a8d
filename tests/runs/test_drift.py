"""A resume lists what changed; what would break exactness is refused; another run's checkpoint can be gone on from."""

import json

import pytest
import torch

from hone.config.rl import RLConfig
from hone.config.shared import CkptConfig, ResumeConfig, SchedulerConfig
from hone.errors import UserError
from hone.runs import Run
from hone.runs.files import dumps
from hone.runs.writer import RunWriter

SOURCES = {"environment": "e" * 64, "data": "d" * 16, "model": "a" * 16, "tokenizer": "t" * 64}


def config(folder, **settings) -> RLConfig:
    return RLConfig(**{"output_dir": folder, "max_steps": 8, "display": "plain"} | settings)


def start(folder, sources=SOURCES, out=None, **settings) -> RunWriter:
    return RunWriter.start(config(folder, **settings), "rl", ["hone", "rl"], sources=sources, out=out)


def steps(run: RunWriter, first: int, last: int) -> None:
    """A loop as hone's are, with a checkpoint at every other step."""
    for step in range(first, last):
        if step % 2 == 0 and step > first:
            with run.weights_dir(step) as folder:
                (folder / "model.safetensors").write_text(f"version {step}")
            tensors = {"model": {"w": torch.full((2,), float(step))}}
            run.save_checkpoint(step, tensors, {"ledger": [], "logs": run.log_positions()})
        run.rollouts(step, [{"step": step, "text": f"sample {step}"}])
        run.log_step(step, {"reward/mean": step / 7, "tokens/total": 10 * (step + 1)}, weights=f"{step:016x}")


def state_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def run_dir(tmp_path):
    with start(tmp_path / "a") as run:
        steps(run, 0, 6)
    return tmp_path / "a"


@pytest.mark.parametrize(
    ("source", "words"), [("environment", "task file"), ("data", "data"), ("model", "initial model")]
)
def test_an_edited_source_is_refused_unless_drift_is_allowed(run_dir, capsys, source, words):
    before = state_of(run_dir)
    edited = SOURCES | {source: "f" * 16}
    was = SOURCES[source][:8]
    with pytest.raises(UserError, match=rf"with another {words} \({was}, now ffffffff\) would give numbers that no"):
        start(run_dir, edited, resume=ResumeConfig())
    assert state_of(run_dir) == before
    start(run_dir, edited, resume=ResumeConfig(), allow_drift=True).finish("done")
    assert f"Changed since the run began: {words} ({was}, now ffffffff)." in capsys.readouterr().out
    (entry,) = Run(run_dir).info["inexact"]
    assert entry == {"step": 4, "cause": f"resumed with other {words} ({was}, now ffffffff)"}


def test_more_steps_are_no_drift_where_the_learning_rate_does_not_depend_on_them(run_dir, capsys):
    start(run_dir, resume=ResumeConfig(), max_steps=20).finish("done")
    assert "Changed since the run began: max_steps (8, now 20)." in capsys.readouterr().out
    assert Run(run_dir).info["exact"] is True


def test_more_steps_are_drift_where_it_does(tmp_path):
    first = config(tmp_path)
    first.trainer.scheduler = SchedulerConfig(type="cosine")
    with RunWriter.start(first, "rl", []) as run:
        steps(run, 0, 6)
    longer = first.model_copy(update={"resume": ResumeConfig(), "max_steps": 20})
    with pytest.raises(UserError, match=r"with another max_steps \(8, now 20\)"):
        RunWriter.start(longer, "rl", [])


def test_settings_that_decide_no_number_may_change(run_dir, capsys):
    free = {"ckpt": CkptConfig(interval=1), "display": "plain", "grace_seconds": 5.0, "budget": {"hours": 1}}
    start(run_dir, resume=ResumeConfig(), **free).finish("done")
    assert "Changed" not in capsys.readouterr().out and Run(run_dir).info["exact"] is True
    start(run_dir, SOURCES, resume=ResumeConfig(), model={"name": "elsewhere/model"}).finish("done")
    assert Run(run_dir).info["exact"] is True, "the same weights under another name"


def edit_metrics(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(line.replace("0.1", "0.9") for line in lines))


@pytest.mark.parametrize(
    ("edit", "name"),
    [
        (edit_metrics, "metrics.jsonl"),
        (lambda folder: (folder / "rollouts" / "step_000002.parquet").unlink(), "rollouts/step_000002.parquet"),
    ],
)
def test_edited_records_are_refused_unless_drift_is_allowed(run_dir, edit, name):
    edit(run_dir)
    before = state_of(run_dir)
    with pytest.raises(UserError, match=rf"a: {name} changed or went missing after checkpoint step_4 was written"):
        start(run_dir, resume=ResumeConfig())
    assert state_of(run_dir) == before
    start(run_dir, resume=ResumeConfig(), allow_drift=True).finish("done")
    (entry,) = Run(run_dir).info["inexact"]
    assert entry["cause"] == f"resumed with other {name} (recorded, now edited)"


def test_drift_is_undone_by_a_resume_from_before_it(run_dir):
    """With the settings that the run had then, though config.toml has others since."""
    with start(run_dir, SOURCES | {"data": "f" * 16}, resume=ResumeConfig(), seed=5, allow_drift=True) as run:
        steps(run, 4, 7)
    assert Run(run_dir).info["drift"] == [{"step": 4, "settings": {"seed": 0}, "sources": {"data": "d" * 16}}]
    with pytest.raises(UserError, match=r"with another seed \(5, now 0\), data \(ffffffff, now dddddddd\)"):
        start(run_dir, resume=ResumeConfig(step=6))
    with pytest.raises(UserError, match=r"with another data \(ffffffff, now dddddddd\)"):
        start(run_dir, resume=ResumeConfig(step=2), seed=5)
    start(run_dir, resume=ResumeConfig(step=2)).finish("done")
    info = Run(run_dir).info
    assert info["exact"] is True and info["drift"] == [] and info["sources"]["data"] == SOURCES["data"]


def test_a_branch_has_the_history_up_to_its_checkpoint(run_dir, tmp_path):
    before = state_of(run_dir)
    with start(tmp_path / "b", resume=ResumeConfig(dir=run_dir, step=2), max_steps=5) as run:
        assert run.start_step == 2 and run.restored is not None
        assert run.budget.tokens == 20 and run.budget.seconds > 0
        steps(run, 2, 5)
    assert state_of(run_dir) == before
    a, b = Run(run_dir), Run(tmp_path / "b")
    assert b.info["parent"] == {"id": a.info["id"], "dir": str(run_dir), "step": 2} and b.info["id"] != a.info["id"]
    assert b.info["exact"] is True
    assert b.metrics().to_pylist() == a.metrics().to_pylist()[:5]
    assert b.rollout_steps() == [0, 1, 2, 3, 4] and b.hashes() == a.hashes()[:5]
    assert b.checkpoints.steps() == [2, 4] and list(b.weights()) == [2, 4]
    for name in ("rollouts/step_000001.parquet", "checkpoints/step_2/state.json", "weights/step_2/model.safetensors"):
        assert (tmp_path / "b" / name).read_bytes() == before[name]


def test_a_branch_that_was_not_copied_to_the_end_is_begun_again(run_dir, tmp_path):
    start(tmp_path / "b", resume=ResumeConfig(dir=run_dir)).finish("done")
    info = json.loads((tmp_path / "b" / "run.json").read_text()) | {"status": "copying"}
    (tmp_path / "b" / "run.json").write_text(dumps(info))
    with pytest.raises(UserError, match=r"copying .*a to .*b was interrupted: begin again with --resume\.dir"):
        start(tmp_path / "b", resume=ResumeConfig())
    start(tmp_path / "b", resume=ResumeConfig(dir=run_dir)).finish("done")
    assert len(list((tmp_path / "b" / ".previous").iterdir())) == 1
    with start(tmp_path / "b", resume=ResumeConfig()) as run:
        assert run.start_step == 4


def test_the_command_that_made_a_branch_can_be_repeated(run_dir, tmp_path, capsys):
    """As a scheduler does that starts the same command again after each time the machine was taken away."""
    with start(tmp_path / "b", resume=ResumeConfig(dir=run_dir, step=2)) as run:
        steps(run, 2, 7)
    with start(tmp_path / "b", resume=ResumeConfig(dir=run_dir, step=2)) as run:
        assert run.start_step == 6
    assert f"{tmp_path / 'b'} branched from {run_dir} at step 2, and is resumed." in capsys.readouterr().out
    with start(tmp_path / "b", resume=ResumeConfig(dir=run_dir, step=4)) as run:
        assert run.start_step == 4 and run.info["parent"]["step"] == 4, "from another step it is another branch"
