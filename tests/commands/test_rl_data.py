"""`hone rl` and its data: held-out prompts in training, and a pool of prompts that runs empty."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from refusals import fails

from hone.cli import main
from hone.composition import parts
from hone.environments import load_environment
from hone.environments.data import epoch_order
from hone.runs import Run

EASY = '''
from hone.environments import Rubric, SingleTurnEnv


def load_environment():
    """Every completion is right."""
    return SingleTurnEnv(rubric=Rubric([right]), dataset=[{"question": f"q{i}"} for i in range(8)])


def right(completion) -> float:
    return 1.0
'''


@pytest.fixture
def rl(tiny_model_dir, tmp_path, monkeypatch):
    """Calls `hone rl`, two prompts a step, in a folder that holds a task `easy`; it writes into outputs."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "easy.py").write_text(EASY)
    monkeypatch.chdir(tmp_path)

    def call(*flags: str) -> int:
        base = ["rl", "--model.name", str(tiny_model_dir), "--max-steps", "4", "--display", "plain"]
        base += ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2"]
        base += ["--orchestrator.sampling.max-tokens", "6", "--seq-len", "256"]
        return main([*base, *flags])

    return call


def overlapping(folder: Path) -> list[str]:
    """Flags of a task whose eval split shares prompts 2, 5 and 6 with training, 6 with another answer."""
    train, held_out = folder / "train.jsonl", folder / "eval.jsonl"
    train.write_text("".join(json.dumps({"text": f"text number {i}"}) + "\n" for i in range(8)))
    shared = [{"text": "text number 5"}, {"text": "another"}, {"text": "text number 2"}]
    shared += [{"text": "text number 6", "answer": "six"}]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in shared))
    args = {"dataset": str(train), "eval_dataset": str(held_out)}
    return ["--orchestrator.env.id", "reverse-text", "--orchestrator.env.args", json.dumps(args),
            "--orchestrator.eval.num-examples", "2"]  # fmt: skip


def test_held_out_prompts_in_training_are_told(rl, tmp_path, capsys):
    assert rl(*overlapping(tmp_path)) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Warning")]
    assert said == [
        "Warning: 3 of 8 training prompts are held-out prompts too, 1 of them with another answer (such as "
        f"{tmp_path}/train.jsonl, line 3 and {tmp_path}/eval.jsonl, line 3): evaluation will look better than it is; "
        "--orchestrator.eval.overlap drop takes them out of training."
    ]
    (event,) = [event for event in Run("outputs").events() if event["kind"] == "overlap"]
    assert (event["rows"], event["identical"], event["checked"], event["dropped"]) == (3, 2, 8, False)
    assert len({draw["example_id"] for draw in Run("outputs").ledger()}) == 8


def test_held_out_prompts_are_taken_out_of_training(rl, tmp_path, capsys):
    flags = [*overlapping(tmp_path), "--orchestrator.eval.overlap", "drop", "--max-steps", "5", "--ckpt.interval", "2"]
    assert rl(*flags) == 0
    assert "are left out of training" in capsys.readouterr().out
    rows = Run("outputs").rollouts(0).to_pylist()
    texts = {
        json.loads(row["info"])["text"][-1] for step in range(5) for row in Run("outputs").rollouts(step).to_pylist()
    }
    assert texts == set("01347") and rows
    assert (Run("outputs").info["pool"], Run("outputs").info["left_out"]) == (5, [2, 5, 6])
    for command in (["verify", "outputs", "--steps", "2"], ["replay", "outputs"], ["runs", "ledger", "outputs"]):
        assert main(command) == 0
    assert "2 of 5 examples, each exactly once" in capsys.readouterr().out
    again = ["rl", "@", "outputs/config.toml", "--resume", "--resume.step", "2"]
    assert main(again) == 0 and Run("outputs").info["left_out"] == [2, 5, 6]
    assert main([*again, "--allow-drift", "--orchestrator.eval.overlap", "warn"]) == 0
    assert (Run("outputs").info["pool"], Run("outputs").info["left_out"]) == (8, [])


GENERATED = '''
from hone.environments import Rubric, SingleTurnEnv
from hone.environments.data import indexed_rows


def load_environment():
    """Prompts 0 to 99, of which evaluation has those from 50 on."""
    train = indexed_rows(lambda i: {"question": f"number {i}"}, 100, "generated")
    held_out = indexed_rows(lambda i: {"question": f"number {50 + i}"}, 50, "generated")
    return SingleTurnEnv(rubric=Rubric([right]), dataset=lambda: train, eval_dataset=lambda: held_out)


def right(completion) -> float:
    return len(completion[-1]["content"]) % 2
'''


def test_of_a_generated_task_those_are_taken_out_that_would_be_drawn_first(rl, tmp_path, monkeypatch, capsys):
    """Two steps of two prompts: of the ten that are looked at there are enough left."""
    monkeypatch.setattr(parts, "GENERATED", 10)
    (tmp_path / "environments" / "numbers_up.py").write_text(GENERATED)
    flags = ["--orchestrator.env.id", "numbers-up", "--orchestrator.eval.overlap", "drop", "--max-steps", "2"]
    assert rl(*flags, "--no-audit", "--orchestrator.eval.num-examples", "50") == 0
    first = epoch_order(100, 0, 0)[:10].tolist()
    held_out = [index for index in first if index >= 50]
    assert len(held_out) > 2 and f"Warning: {len(held_out)} of 10 training prompts" in capsys.readouterr().out
    assert sorted(Run("outputs").info["left_out"]) == sorted(held_out)
    train, kept = load_environment("numbers-up").split("train"), [index for index in first if index < 50][:4]
    assert [draw["example_id"] for draw in Run("outputs").ledger()] == [train[index].id for index in kept]


def test_held_out_prompts_in_training_are_refused_on_request(rl, tmp_path, capsys):
    flags = overlapping(tmp_path)
    fails(capsys, rl(*flags, "--orchestrator.eval.overlap", "refuse"), "3 of 8 training prompts", "overlap = drop")
    assert not Path("outputs").exists()
    (tmp_path / "eval.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    fails(capsys, rl(*flags, "--orchestrator.eval.overlap", "drop"), "leaves none to train on")


def test_a_pool_without_a_prompt_left_starts_over_and_says_so(rl, capsys):
    """Everything is solved: two epochs of eight prompts, two a step."""
    flags = ["--orchestrator.env.id", "easy", "--orchestrator.curriculum.pool", "--max-steps", "7", "--ckpt"]
    assert rl(*flags, "--no-audit") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "no prompt left" in line]
    assert said == ["Step 4 found no prompt left in the pool (all 8 are retired or parked): all are back, and what was "
                    "measured of them is forgotten."]  # fmt: skip
    events = [(event["kind"], event["step"]) for event in Run("outputs").events() if event["kind"] == "pool_restarted"]
    assert events == [("pool_restarted", 4)]
    assert [m["pool/retired"] for m in Run("outputs").metrics().to_pylist()[:7]] == [2, 4, 6, 8, 2, 4, 6]
    assert main(["runs", "show", "outputs"]) == 0
    assert "2 prompts active, 6 retired (solved), 0 parked (not solved yet)" in capsys.readouterr().out


def test_the_ledger_of_a_run_without_checkpoints_has_the_draws_that_were_passed_over(rl, capsys):
    """Three of eight a step, all solved: step 2 takes 6 and 7, and 6 again, for only these two are left by then.

    Step 3 passes over 7, which was to come after 6, and begins anew with all.
    Without a checkpoint the rollouts are all that is left: of draws that were passed over, only their numbers.
    """
    flags = ["--orchestrator.env.id", "easy", "--orchestrator.curriculum.pool.retire-at", "1", "--max-steps", "3"]
    flags += ["--orchestrator.curriculum.order", "sequential", "--orchestrator.batch-size", "6", "--no-audit"]
    assert rl(*flags) == 0
    ledger = Run("outputs").ledger()
    assert [(draw["solved"], draw["graded"]) for draw in ledger] == [(2, 2)] * 9
    capsys.readouterr()
    assert main(["runs", "ledger", "outputs"]) == 0
    said = capsys.readouterr().out
    assert "2/2     rollouts" in said and "1 of 8 examples, each exactly once; 1 of the 2 of the next" in said
    assert "0 prompts active, 8 retired (solved)" in said
    assert rl(*flags, "--max-steps", "4", "--ckpt") == 0
    entries = json.loads(Path("outputs/checkpoints/step_4/state.json").read_text())["ledger"]
    capsys.readouterr()
    shutil.rmtree("outputs/checkpoints")
    assert main(["runs", "ledger", "outputs", "--jsonl"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [{name: value for name, value in draw.items() if name != "source"} for draw in told] == entries
    assert [entry["state"] for entry in entries][9:] == ["retired", "filtered", "filtered", "filtered"]
    assert entries[9]["example_id"] == entries[7]["example_id"]
