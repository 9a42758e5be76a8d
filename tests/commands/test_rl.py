"""`hone rl` at the command line: what it writes and says, its exit codes, and that bad input touches nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from recorded import PARITY
from refusals import fails
from tracker_files import WandbFile

from hone.cli import main
from hone.config.rl import RLConfig
from hone.orchestrator.groups import trainable
from hone.runs import Run
from hone.runs import monitors as background
from hone.trainer.step import Trainer

CONSTANT = '''
from hone.environments import Rubric, SingleTurnEnv


def load_environment(length: int = 5):
    """Every completion gets the same reward; `length` characters of prompt."""
    rows = [{"question": "x" * length + str(i)} for i in range(8)]
    return SingleTurnEnv(id="constant", rubric=Rubric([same]), dataset=rows, eval_dataset=rows)


def same(completion) -> float:
    return 0.5
'''

FLAKY = """
from hone.environments import Rubric, SingleTurnEnv, inline


def load_environment(failing: int = 1):
    calls = []

    @inline  # it counts
    def judge(completion) -> float:
        calls.append(1)
        if len(calls) <= failing:
            raise RuntimeError("the judge \\x1b[2J is away")
        return len(calls) % 2

    rows = [{"question": f"q{i}"} for i in range(8)]
    return SingleTurnEnv(rubric=Rubric([judge]), dataset=rows)
"""


@pytest.fixture
def rl(tiny_model_dir, tmp_path, monkeypatch):
    """Calls `hone rl` with working defaults, in a folder that holds two environments; later flags win."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "constant.py").write_text(CONSTANT)
    (tmp_path / "environments" / "flaky.py").write_text(FLAKY)
    monkeypatch.chdir(tmp_path)

    def call(*flags: str, model: str | Path = tiny_model_dir) -> int:
        base = [
            "--model.name",
            str(model),
            "--max-steps",
            "3",
            "--output-dir",
            str(tmp_path / "out"),
            "--seq-len",
            "64",
        ]
        base += [
            "--seq-len",
            "64",
            "--orchestrator.batch-size",
            "8",
            "--orchestrator.rollouts-per-example",
            "4",
            "--display",
            "plain",
        ]
        base += ["--orchestrator.sampling.max-tokens", "12", "--trainer.optim.lr", "1e-4"]
        return main(["rl", *base, *flags])

    return call


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_run_directory_holds_the_whole_story(rl, tmp_path, capsys):
    assert rl("--orchestrator.eval.interval", "2", "--orchestrator.eval.num-examples", "4", "--ckpt") == 0
    out = tmp_path / "out"
    run = Run(out)
    assert run.info["kind"] == "rl" and run.info["status"] == "done" and run.info["exact"] is True
    assert [line["step"] for line in metrics(out)] == [0, 1, 2, 3]
    assert [line["step"] for line in metrics(out) if "eval/reverse-text/ci95/low" in line] == [0, 2, 3]
    rows = run.rollouts(1).to_pylist()
    assert len(rows) == 8 and {row["draw"] for row in rows} == {2, 3}
    assert {row["stop_reason"] for row in rows} <= {"stop", "length"} and all(row["versions"][-1] == 1 for row in rows)
    for row in rows:
        assert sum(row["sampled_mask"]) == sum(version == 1 for version in row["versions"]) <= 12
    assert metrics(out)[1]["reward/mean"] == pytest.approx(sum(row["reward"] for row in rows) / 8)
    assert (out / "weights" / "step_3" / "model.safetensors").exists() and (out / "checkpoints" / "step_3").exists()
    timings = run.timings().to_pylist()
    assert [line["step"] for line in timings] == [0, 1, 2, 3]
    assert all(timings[0][f"time/{phase}"] > 0 for phase in ("sample", "grade", "train", "record", "step"))
    printed = capsys.readouterr().out
    assert "3 steps x 2 prompts x 4 completions = 24 completions" in printed
    assert f"Look: hone view {out}\nNext: hone eval reverse-text -m {out / 'weights' / 'step_3'}" in printed


def test_tokens_lie_beside_the_rollouts_row_by_row(rl, tmp_path, monkeypatch):
    """In their order; null where the step was not trained on them: filtered groups, and completions that were cut."""
    monkeypatch.chdir(tmp_path)
    task = PARITY.replace("completion)", "completion, answer)").replace("/ 1", "* (int(answer) % 2)")
    Path("half_parity.py").write_text(task.replace("-> float", ""))
    flags = [
        "--no-audit",
        "--orchestrator.env.id",
        "half-parity",
        "--orchestrator.truncated",
        "mask",
        "--max-steps",
        "4",
    ]
    flags += ["--orchestrator.sampling.max-tokens", "40", "--trainer.micro-batch-tokens", "50", "--precision", "fp32"]
    assert rl(*flags) == 0
    run, states = Run(tmp_path / "out"), []
    for step in range(4):
        rows, told = run.rollouts(step).to_pylist(), run.token_stats(step).to_pylist()
        assert [row["sample_id"] for row in told] == [row["sample_id"] for row in rows]
        entropies = []
        for row, of_row in zip(rows, told, strict=True):
            left_out = row["state"] != "trained" or row["stop_reason"] == "length"
            states.append((row["state"], row["stop_reason"] == "length"))
            assert (of_row["entropies"] is None) == (of_row["trainer_logprobs"] is None) == left_out
            if not left_out:
                logprobs = [one for one, mask in zip(row["logprobs"], row["sampled_mask"], strict=True) if mask]
                assert of_row["trainer_logprobs"] == pytest.approx(logprobs, abs=1e-5)
                assert len(of_row["entropies"]) == len(logprobs)
                entropies += of_row["entropies"]
        if entropies:
            assert metrics(tmp_path / "out")[step]["entropy"] == pytest.approx(
                sum(entropies) / len(entropies), rel=1e-3
            )
    assert {("trained", False), ("trained", True), ("filtered", True)} <= set(states)
    assert run.token_stats(4) is None


def test_without_recorded_tokens_all_else_is_the_same(rl, tmp_path):
    assert rl("--ckpt") == 0
    (tmp_path / "out").rename(tmp_path / "with")
    assert rl("--ckpt", "--no-trainer.record-tokens") == 0
    files = {path: path.read_bytes() for path in sorted((tmp_path / "with").rglob("*")) if path.is_file()}
    same = [path for path in files if path.relative_to(tmp_path / "with").parts[0] in SAME]
    assert len(same) > 12
    for path in same:
        assert (tmp_path / "out" / path.relative_to(tmp_path / "with")).read_bytes() == files[path]
    assert (tmp_path / "with" / "tokens").is_dir() and not (tmp_path / "out" / "tokens").exists()
    assert rl("--resume", "--max-steps", "4") == 0, "the setting may change: it decides no number"
    assert Run(tmp_path / "out").info["exact"] and Run(tmp_path / "out").token_stats(3) is not None


SAME = ("metrics.jsonl", "hashes.jsonl", "rollouts", "weights", "checkpoints")


def test_the_resolved_config_repeats_the_run(rl, tmp_path):
    assert rl("--seed", "5") == 0
    first = tmp_path / "out"
    assert main(["rl", "@", str(first / "config.toml"), "--output-dir", str(tmp_path / "again")]) == 0
    for name in ("metrics.jsonl", "rollouts/step_000002.parquet", "weights/step_3/model.safetensors"):
        assert (tmp_path / "again" / name).read_bytes() == (first / name).read_bytes()


def test_without_any_signal_the_update_is_skipped_and_the_run_goes_on(rl, tmp_path, tiny_model_dir):
    assert rl("--no-audit", "--orchestrator.env.id", "constant") == 0
    out = tmp_path / "out"
    for line in metrics(out)[:3]:
        assert line["frac_reward_zero_std"] == 1.0 and line["groups/filtered"] == 2
        assert line["optimizer/skipped"] == 1.0 and line["lr"] == 1e-4 and "grad_norm" not in line
    weights = (out / "weights" / "step_3" / "model.safetensors").read_bytes()
    assert weights == (tiny_model_dir / "model.safetensors").read_bytes()
    assert {row["state"] for row in Run(out).rollouts(0).to_pylist()} == {"filtered"}


def flaky(failing: int) -> list[str]:
    return ["--no-audit", "--orchestrator.env.id", "flaky", "--orchestrator.env.args", json.dumps({"failing": failing})]


def test_a_grader_that_fails_is_told_once(rl, tmp_path, capsys):
    assert rl(*flaky(9), "--orchestrator.batch-size", "16") == 0
    printed = capsys.readouterr().out
    assert printed.count("9 of 16 completions could not be graded; the first: Traceback") == 1
    assert "RuntimeError: the judge \\x1b[2J is away" in printed
    (event,) = [e for e in Run(tmp_path / "out").events() if e["kind"] == "grader_error"]
    assert (event["step"], event["count"], event["total"]) == (0, 9, 16)
    assert "RuntimeError: the judge" in event["detail"]


LATE = '''
from hone.environments import Rubric, SingleTurnEnv, inline
from hone.grading import GraderFailure
from hone.types import Outcome


def load_environment():
    """From the ninth completion on, one in eight takes too long."""
    return SingleTurnEnv(rubric=Rubric([late]), dataset=[{"question": f"q{i}"} for i in range(6)])


graded = []


@inline  # it counts
def late(completion) -> float | GraderFailure:
    graded.append(completion)
    if len(graded) > 8 and len(graded) % 8 == 4:
        return GraderFailure(Outcome.GRADER_TIMEOUT, "too late")
    return len(graded) % 2
'''


def test_a_grader_that_was_ended_at_its_deadline_makes_the_run_inexact(rl, tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text(LATE)
    monkeypatch.chdir(tmp_path)
    assert rl("--no-audit", "--orchestrator.env.id", "late") == 0
    info = Run(tmp_path / "out").info
    assert (info["exact"], info["inexact"]) == (False, [{"step": 1, "cause": "a grader was ended at its deadline"}])


def test_a_deadline_in_an_evaluation_makes_the_run_inexact_too(rl, tmp_path, monkeypatch, capsys):
    late = LATE.replace("SingleTurnEnv(", 'SingleTurnEnv(eval_dataset=[{"question": "q"}] * 8, ')
    (tmp_path / "late_there.py").write_text(late.replace("len(graded) > 8", "len(graded) < 8"))
    monkeypatch.chdir(tmp_path)
    flags = ("--orchestrator.eval.num-examples", "8", "--orchestrator.eval.rollouts-per-example", "1")
    assert rl("--no-audit", "--orchestrator.env.id", "late-there", *flags) == 0
    info, said = Run(tmp_path / "out").info, capsys.readouterr().out
    assert (info["exact"], info["inexact"]) == (False, [{"step": 0, "cause": "a grader was ended at its deadline"}])
    assert (
        "1 of 8 completions of the evaluation at step 0 could not be graded and are in no average; the first: " in said
    )
    assert "0 of 24" not in said and "of 24 completions" not in said


def test_a_step_without_a_graded_completion_ends_the_run(rl, tmp_path, capsys):
    assert rl(*flaky(16)) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: every completion of step 0 failed in the grader")
    assert 'raise RuntimeError("the judge' in captured.err and "is away" in captured.err and "\x1b" not in captured.err
    out = tmp_path / "out"
    assert Run(out).info["status"] == "failed"
    assert [line["step"] for line in metrics(out)] == [0] and metrics(out)[0]["outcome/grader_error"] == 1.0
    assert {row["outcome"] for row in Run(out).rollouts(0).to_pylist()} == {"grader_error"}


EDITED = """
import os
from pathlib import Path

from hone.environments import Rubric, SingleTurnEnv


def load_environment():
    return SingleTurnEnv(rubric=Rubric([graded]), dataset=[{"question": f"q{i}"} for i in range(8)])


def graded(completion) -> float:
    with open("graded", "a") as file:
        file.write("x")
        if file.tell() == 12:
            Path(__file__).write_text("# another task")
            os._exit(1)
    return file.closed * 0.5
"""


def test_a_run_whose_task_was_edited_saves_what_it_has_when_it_needs_another_worker(rl, tmp_path, monkeypatch, capsys):
    (tmp_path / "edited.py").write_text(EDITED)
    monkeypatch.chdir(tmp_path)
    assert rl("--no-audit", "--orchestrator.env.id", "edited", "--orchestrator.grading.workers", "1") == 2
    said = capsys.readouterr().err
    assert "the process for grading could not start: " in said and "edited.py" in said
    assert f"Saved: {tmp_path}/out/checkpoints/step_1; go on with: " in said
    assert [line["step"] for line in metrics(tmp_path / "out")] == [0]


BRITTLE = """
from hone.environments import Rubric, SingleTurnEnv


def load_environment():
    return SingleTurnEnv(rubric=Rubric([brittle]), dataset=[{"question": f"q{i}"} for i in range(8)])


def brittle(completion) -> float:
    text = completion[-1]["content"]
    if sum(map(ord, text)) % 2:
        raise KeyError(len(text))
    return len(text)
"""


def test_too_many_failures_end_the_run_with_its_state_saved(rl, tmp_path, monkeypatch, capsys):
    """About half of 64 completions a step: more than a tenth of 320 within two steps."""
    (tmp_path / "brittle.py").write_text(BRITTLE)
    monkeypatch.chdir(tmp_path)
    more = ("--orchestrator.batch-size", "64", "--max-steps", "5", "--no-audit", "--orchestrator.env.id", "brittle")
    assert rl(*more) == 2
    said, out = capsys.readouterr(), tmp_path / "out"
    assert said.out.count("Traceback (most recent call last)") == 1 and "raise KeyError(len(text))" in said.out
    assert "of the last" in said.err and "at most 10% of 320 (--orchestrator.grading.max-failed)" in said.err
    version = len(metrics(out))
    assert f"Saved: {out}/checkpoints/step_{version}; go on with: " in said.err and version <= 2
    assert rl(*more, "--resume", "--orchestrator.grading.max-failed", "1") == 0
    shares = [line["outcome/grader_error"] for line in metrics(out)[:5]]
    failed = round(64 * sum(shares))
    assert [line["step"] for line in metrics(out)] == [0, 1, 2, 3, 4, 5] and 96 < failed < 224
    assert f"{failed} of 320 completions could not be graded" in capsys.readouterr().out


def test_masked_truncated_completions_carry_no_loss(rl, monkeypatch):
    seen = []

    def spy(groups, truncated):
        sequences = trainable(groups, truncated)
        cut = sum(t.num_sampled for g in groups for t in g.trajectories if t.truncated)
        seen.append((truncated, cut, sum(int(sequence.loss_mask.sum()) for sequence in sequences)))
        return sequences

    monkeypatch.setattr("hone.composition.rl.trainable", spy)
    assert rl("--orchestrator.truncated", "mask", "--orchestrator.sampling.max-tokens", "2", "--max-steps", "2") == 0
    assert all(truncated == "mask" and cut > 0 and trained == 0 for truncated, cut, trained in seen)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_saves_and_says_where(rl, tmp_path, monkeypatch, capfd, signum, code):
    step = Trainer.step

    def interrupted(self, batches):
        if self.version == 1:
            signal.raise_signal(signum)
        return step(self, batches)

    monkeypatch.setattr(Trainer, "step", interrupted)
    assert rl() == code
    monkeypatch.undo()
    out = tmp_path / "out"
    assert [line["step"] for line in metrics(out)] == [0, 1]
    assert (out / "checkpoints" / "step_2" / "COMPLETE").exists() and (out / "weights" / "step_2").exists()
    assert json.loads((out / "run.json").read_text())["status"] == "stopped"
    printed = capfd.readouterr().out
    assert f"Saved: {out / 'checkpoints' / 'step_2'}\nGo on with: " in printed
    assert printed.endswith(f"rl @ {out / 'config.toml'} --resume\n")
    assert main(["rl", "@", str(out / "config.toml"), "--resume"]) == 0
    assert rl("--output-dir", str(tmp_path / "straight")) == 0
    assert (tmp_path / "straight" / "metrics.jsonl").read_bytes() == (out / "metrics.jsonl").read_bytes()


def test_resume_without_a_checkpoint_starts_at_step_0_and_says_so(rl, tmp_path, capsys):
    assert rl("--resume") == 0
    assert "starting at step 0" in capsys.readouterr().out
    assert [line["step"] for line in metrics(tmp_path / "out")][:3] == [0, 1, 2]


def test_every_metric_of_every_step_is_in_wandb_and_the_run_is_the_same_bytes(rl, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "FINISH_SECONDS", 300.0)  # its client may be slow to load
    out = tmp_path / "out"
    assert rl("--output-dir", str(tmp_path / "without")) == 0
    assert rl("--wandb.project", "P", "--wandb.name", "N", "--wandb.mode", "offline") == 0
    file = WandbFile(out)
    told = {name for row in file.history for name in row} - {"step", "samples"}
    lines = [*metrics(out), *(json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines())]
    assert told == {name for line in lines for name, value in line.items() if value is not None} - {"step"}
    for name in told:
        expected = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        assert file.values(name) == expected, name
    (step, table), *_ = file.values("samples")
    assert step == 0 and len(file.table(table)["data"]) == 8
    assert file.config["orchestrator"]["rollouts_per_example"] and file.exit_code == 0
    for name in ("metrics.jsonl", "hashes.jsonl", *(f"rollouts/{path.name}" for path in (out / "rollouts").iterdir())):
        assert (out / name).read_bytes() == (tmp_path / "without" / name).read_bytes(), name


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "fragments"),
    [
        (["--orchestrator.rollouts-per-example", "1"], ["orchestrator.rollouts_per_example", "2"]),
        (["--orchestrator.batch-size", "9"], ["batch_size", "rollouts_per_example"]),
        (["--orchestrator.env.id", "no-such-task"], ["no-such-task"]),
        (["--orchestrator.env.args", '{"colour": 1}'], ["colour"]),
        (["--orchestrator.sampling.top-p", "0.9"], ["top_p"]),
        (["--orchestrator.sampling.temperature", "0"], ["temperature"]),
        (["--seq-len", "4096"], ["seq_len = 4096", "2048"]),
        (["--seq-len", "20", "--orchestrator.sampling.max-tokens", "4"], ["leaves no room", "seq_len = 20"]),
        (["--model.device", "foo"], ["model.device = 'foo'", "use auto, cpu, cuda"]),
        (["--orchestrator.max-async-level", "1"], ["max_async_level"]),
        (["--resume.step", "7"], ["7"]),
        (["@", "nowhere.toml"], ["nowhere.toml"]),
        (["--trainer.optim.learning-rate", "1"], ["--trainer.optim.learning-rate", "did you mean --trainer.optim.lr?"]),
        (["--max-steps", "many"], ["max_steps", "many"]),
    ],
)
def test_bad_settings_are_one_sentence_with_the_remedy(rl, tmp_path, capsys, flags, fragments):
    fails(capsys, rl(*flags), *fragments)
    assert not (tmp_path / "out").exists()


def test_the_defaults_fit_each_other():
    config = RLConfig()
    assert config.seq_len <= config.model.init.max_positions


def test_a_model_folder_without_weights(rl, tmp_path, tiny_model_dir, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_model_dir.iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).write_bytes(file.read_bytes())
    fails(capsys, rl(model=bare), str(bare), "safetensors")


def test_a_prompt_longer_than_the_context(rl, capsys):
    args = ["--orchestrator.env.id", "constant", "--orchestrator.env.args", '{"length": 300}']
    fails(capsys, rl(*args), "leaves no room for a completion in seq_len = 64")


def test_cuda_without_cuda(rl, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fails(capsys, rl("--model.device", "cuda:1"), "model.device = 'cuda:1'", "use auto or cpu")


def test_every_row_that_will_be_used_is_tried(rl, tmp_path, capsys):
    """Row 100 of 101 is too long: named if it is drawn, and for no reason else."""
    rows = [{"text": f"text {i}"} for i in range(100)] + [{"text": "much too long " * 10}]
    for name, members in (("long", rows), ("short", rows[:100])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in members))

    def env(train: str, held_out: str) -> list[str]:
        args = {"dataset": str(tmp_path / f"{train}.jsonl"), "eval_dataset": str(tmp_path / f"{held_out}.jsonl")}
        return ["--orchestrator.env.args", json.dumps(args), "--seq-len", "96"]

    every_row = ["--max-steps", "51"]
    fails(
        capsys, rl(*env("long", "short"), *every_row), "long.jsonl, line 101: the prompt has", "raise --seq-len (up to"
    )
    held_out = ["--orchestrator.eval.interval", "5", "--orchestrator.eval.num-examples"]
    fails(capsys, rl(*env("short", "long"), *held_out, "101"), "long.jsonl, line 101")
    assert not (tmp_path / "out").exists()
    assert rl(*env("long", "long"), "--orchestrator.max-examples", "100", *held_out, "4", "--max-steps", "1") == 0


def test_an_output_directory_that_is_not_hones_stays_as_it_was(rl, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    fails(capsys, rl(), str(tmp_path / "out"), "--output-dir")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years of work"


def test_the_run_that_holds_its_own_model_is_not_moved_away(rl, tmp_path, capsys):
    assert rl() == 0
    before = sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file())
    fails(capsys, rl(model=tmp_path / "out" / "weights" / "step_3"), "--output-dir")
    assert sorted(p for p in (tmp_path / "out").rglob("*") if p.is_file()) == before


def test_a_dataset_row_without_the_needed_column(rl, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "abc"}\n{"words": "abc"}\n')
    args = json.dumps({"dataset": str(tmp_path / "rows.jsonl"), "eval_dataset": str(tmp_path / "rows.jsonl")})
    fails(capsys, rl("--orchestrator.env.args", args), "rows.jsonl", "'text'", "'words'")


def test_a_signal_during_the_final_evaluation_does_not_undo_the_run(rl, tmp_path, monkeypatch, capfd):
    """All updates are made and the weights are written: the evaluation is finished, and the run is done."""
    import hone.composition.parts as command

    original = command.evaluate

    def interrupted(policy, *args, **kwargs):
        if policy.version == 3:
            signal.raise_signal(signal.SIGTERM)
        return original(policy, *args, **kwargs)

    monkeypatch.setattr(command, "evaluate", interrupted)
    assert rl("--orchestrator.eval.num-examples", "2") == 0
    out = tmp_path / "out"
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    assert "eval/reverse-text/reward/mean" in metrics(out)[3]
    assert f"Done: 3 steps. Weights: {out / 'weights' / 'step_3'}" in capfd.readouterr().out


def test_kernels_that_may_vary_make_the_run_inexact(rl, tmp_path):
    assert rl("--no-deterministic") == 0
    info = json.loads((tmp_path / "out" / "run.json").read_text())
    assert info["exact"] is False and info["inexact"][0]["cause"] == "deterministic = false"


@pytest.mark.parametrize("invariant", [True, False])
def test_batch_invariance_is_a_setting(rl, tmp_path, invariant):
    """What fits into the cache decides who is sampled beside whom; only with it that changes nothing, to the bit."""
    rows = {}
    for kv_gib in ("4", "0.00008"):
        out = tmp_path / kv_gib
        flags = [f"--inference.batch-invariant={str(invariant).lower()}", "--inference.kv-gib", kv_gib]
        assert rl("--output-dir", str(out), "--orchestrator.env.id", "constant", *flags) == 0
        rows[kv_gib] = [(row["token_ids"], row["logprobs"]) for row in Run(out).rollouts(0).to_pylist()]
    assert (rows["4"] == rows["0.00008"]) == invariant
