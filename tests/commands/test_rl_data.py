"""`hone rl` and its data: held-out prompts in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from present import reproduced
from refusals import fails

from hone.cli import main
from hone.runs import Run


@pytest.fixture
def rl(tiny_model_dir, here):
    """Calls `hone rl`, two prompts a step; it writes into outputs."""

    def call(*flags: str) -> int:
        base = ["rl", "--model.name", str(tiny_model_dir), "--max-steps", "4", "--display", "plain"]
        base += ["--orchestrator.batch-size", "4", "--orchestrator.rollouts-per-example", "2"]
        base += ["--orchestrator.sampling.max-tokens", "6", "--seq-len", "256", "--output-dir", "outputs"]
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


def test_held_out_prompts_are_taken_out_of_training(rl, tmp_path, capsys):
    flags = [*overlapping(tmp_path), "--orchestrator.eval.overlap", "drop", "--max-steps", "5", "--ckpt.interval", "2"]
    assert rl(*flags) == 0
    assert "are left out of training" in capsys.readouterr().out
    infos = [info for step in range(5) for info in Run("outputs").rollouts(step)["info"].to_pylist()]
    assert {json.loads(info)["text"][-1] for info in infos} == set("01347")
    assert (Run("outputs").info["pool"], Run("outputs").info["left_out"]) == (5, [2, 5, 6])
    reproduced(Path("outputs"), 2)
    assert main(["runs", "ledger", "outputs"]) == 0
    assert "draws     10 in 5 steps: 10 filtered" in capsys.readouterr().out
    again = ["rl", "@", "outputs/config.toml", "--resume", "--resume.step", "2"]
    assert main(again) == 0 and Run("outputs").info["left_out"] == [2, 5, 6]
    assert main([*again, "--allow-drift", "--orchestrator.eval.overlap", "warn"]) == 0
    assert (Run("outputs").info["pool"], Run("outputs").info["left_out"]) == (8, [])


def test_special_tokens_in_prompts_are_text_and_said_once(rl, tmp_path, capsys):
    rows = [{"text": f"text number {i}" + "<|im_end|>" * (i == 3)} for i in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "eval.jsonl").write_text(json.dumps({"text": "another"}) + "\n")
    args = json.dumps({"dataset": str(tmp_path / "train.jsonl"), "eval_dataset": str(tmp_path / "eval.jsonl")})
    ends = []
    for flags in ([], ["--model.special-tokens"]):
        assert rl("--orchestrator.env.id", "reverse-text", "--orchestrator.env.args", args, *flags) == 0
        run = Run("outputs")
        table = [row for step in range(4) for row in run.rollouts(step).to_pylist() if "<|im_end|>" in row["prompt"]]
        prompt = [i for i, sampled in zip(table[0]["token_ids"], table[0]["sampled_mask"], strict=True) if not sampled]
        ends.append(prompt.count(2))
        events = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
        first = [event["first"] for event in events if event["kind"] == "special_tokens"]
        assert first == ([] if flags else [f"{tmp_path / 'train.jsonl'}, line 4"])
        assert capsys.readouterr().out.count("1 text holds special tokens of the model") == (not flags)
    assert ends[1] == ends[0] + 1
    assert main(["eval", "reverse-text", "-m", "outputs/weights/step_4", "-n", "8", "-r", "1", "-t", "4", "--no-save",
                 "-a", json.dumps({"eval_dataset": str(tmp_path / "train.jsonl")})]) == 0  # fmt: skip
    assert "1 text holds special tokens of the model" in capsys.readouterr().err


def test_held_out_prompts_in_training_are_refused_on_request(rl, tmp_path, capsys):
    flags = overlapping(tmp_path)
    fails(capsys, rl(*flags, "--orchestrator.eval.overlap", "refuse"), "3 of 8 training prompts", "overlap = drop")
    assert not Path("outputs").exists()
    (tmp_path / "eval.jsonl").write_text((tmp_path / "train.jsonl").read_text())
    fails(capsys, rl(*flags, "--orchestrator.eval.overlap", "drop"), "leaves none to train on")
