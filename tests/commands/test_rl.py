"""`hone rl` at the command line: what it writes and says, its exit codes, and that bad input touches nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from present import NO_AUDIT, QUIET

from hone.cli import main
from hone.runs import Run
from hone.runs.view import RunView, read_lines

CONSTANT = '''
from hone.environments import Rubric, SingleTurnEnv


def load_environment(length: int = 5):
    """Every completion gets the same reward; `length` characters of prompt."""
    rows = [{"question": "x" * length + str(i)} for i in range(8)]
    return SingleTurnEnv(id="constant", rubric=Rubric([same]), dataset=rows, eval_dataset=rows)


def same(completion) -> float:
    return 0.5
'''

LENGTHS = """
from hone.environments import Rubric, SingleTurnEnv
from hone.environments.rubric import Range


def load_environment(least: float = 0.0, declared: bool = False):
    def length(completion) -> float:
        return least + len(completion[-1]["content"]) % 3

    ends = least, least + 2.0
    rubric = Rubric([length], ranges={"length": Range(ends, ends)} if declared else None)
    rows = [{"question": f"q{i}"} for i in range(8)]
    return SingleTurnEnv(id="lengths", rubric=rubric, dataset=rows, eval_dataset=rows)
"""

BROKEN = """
from hone.environments import Rubric, SingleTurnEnv, inline


def load_environment():
    return SingleTurnEnv(rubric=Rubric([judge]), dataset=[{"question": f"q{i}"} for i in range(8)])


@inline
def judge(completion) -> float:
    raise RuntimeError("the judge \\x1b[2J is away")
"""


@pytest.fixture
def rl(tiny_model_dir, here):
    """Calls `hone rl` with working defaults, in a folder that holds two environments; later flags win."""
    (here / "environments").mkdir()
    for name, text in {"constant": CONSTANT, "broken": BROKEN, "lengths": LENGTHS}.items():
        (here / "environments" / f"{name}.py").write_text(text)

    def call(*flags: str, model: str | Path = tiny_model_dir) -> int:
        base = f"--model.name {model} --max-steps 3 --output-dir {here / 'out'} --seq-len 64 --display plain"
        base += " --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4"
        base += " --orchestrator.sampling.max-tokens 12 --trainer.optim.lr 1e-4"
        return main(["rl", *base.split(), *flags])

    return call


def metrics(folder: Path) -> list[dict]:
    return read_lines(folder / "metrics.jsonl")


def test_the_run_directory_holds_the_whole_story(rl, tmp_path, capsys):
    greedy = "--orchestrator.eval.sampling.temperature 0 --orchestrator.eval.sampling.max-tokens 60"
    assert rl(*f"--orchestrator.eval.interval 2 --orchestrator.eval.num-examples 4 --ckpt {greedy}".split()) == 0
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
    command = f"hone eval @ {out}/config.toml -m {out / 'weights' / 'step_3'} -n 100 -r 4"
    look = f"Look: hone view {out}\n" if "report" in QUIET else ""
    assert f"{look}Next: {command}" in printed
    assert main([*command.split()[1:], "-n", "4", "-r", "1", "--output-dir", "evaluated"]) == 0
    again, _ = RunView(Path("evaluated")).evaluation()
    assert again == {name: metrics(out)[3][name] for name in again}
    assert again["eval/reverse-text/completion/length/mean"] == 38.75, "each is cut by seq_len, before max_tokens"


def test_without_any_signal_the_update_is_skipped_and_the_run_goes_on(rl, tmp_path, tiny_model_dir):
    assert rl(*NO_AUDIT, "--orchestrator.env.id", "constant") == 0
    out = tmp_path / "out"
    for line in metrics(out)[:3]:
        assert line["frac_reward_zero_std"] == 1.0 and line["groups/filtered"] == 2
        assert line["optimizer/skipped"] == 1.0 and line["lr"] == 1e-4 and "grad_norm" not in line
    weights = (out / "weights" / "step_3" / "model.safetensors").read_bytes()
    assert weights == (tiny_model_dir / "model.safetensors").read_bytes()
    assert {row["state"] for row in Run(out).rollouts(0).to_pylist()} == {"filtered"}


def test_rewards_below_0_are_refused_where_a_mean_reward_divides_or_warned_of(rl, tmp_path, capsys):
    flags = [*NO_AUDIT, "--orchestrator.env.id", "lengths", "--algorithm", "maxrl"]
    assert rl(*flags, "--orchestrator.env.args", '{"least": -1.0, "declared": true}') == 2
    assert "needs rewards of 0 or more, and a reward of lengths can be -1: add 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert rl(*flags, "--orchestrator.env.args", '{"least": -1.0}') == 0
    events = read_lines(tmp_path / "out" / "events.jsonl")
    assert [(e["step"], e["reward"]) for e in events if e["kind"] == "negative_reward"] == [(0, -1.0)]
    assert "has a reward of -1" in " ".join(capsys.readouterr().out.split())
    assert rl(*flags, "--orchestrator.env.args", '{"declared": true}') == 0
    assert "has a reward of" not in capsys.readouterr().out


def test_a_run_whose_completions_are_all_cut_off_and_masked_says_so(rl, tmp_path, capsys):
    words = ("--orchestrator.truncated", "mask", "--orchestrator.sampling.max-tokens", "1", "--max-steps", "2")
    assert rl(*NO_AUDIT, *words) == 0
    printed, out = capsys.readouterr().out, tmp_path / "out"
    assert printed.count("All completions of step 0 were cut off at the length limit") == 1
    assert "not finite" not in printed
    for line in metrics(out)[:2]:
        assert (line["groups/trained"], line["groups/filtered"], line["optimizer/skipped"]) == (0, 2, 1.0)
    assert {draw["state"] for draw in Run(out).ledger()} == {"filtered"}
    assert [event["step"] for event in Run(out).events() if event["kind"] == "all_masked"] == [0]


def test_a_step_without_a_graded_completion_ends_the_run(rl, tmp_path, capsys):
    assert rl(*NO_AUDIT, "--orchestrator.env.id", "broken") == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: every completion of step 0 failed in the grader")
    assert 'raise RuntimeError("the judge' in captured.err and "is away" in captured.err and "\x1b" not in captured.err
    out = tmp_path / "out"
    assert Run(out).info["status"] == "failed"
    assert [line["step"] for line in metrics(out)] == [0] and metrics(out)[0]["outcome/grader_error"] == 1.0
    assert {row["outcome"] for row in Run(out).rollouts(0).to_pylist()} == {"grader_error"}
