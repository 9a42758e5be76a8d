"""`sft --data.run`: the best recorded completion of each example is imitated, in the tokens that were sampled."""

from __future__ import annotations

from pathlib import Path

import pytest
from by_chance import TASK
from present import NO_AUDIT, reproduced
from refusals import fails

from hone.cli import main
from hone.loops.sft import SFT
from hone.runs import Run


@pytest.fixture(scope="module")
def sampled(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of RL and an evaluation. Read only."""
    folder = tmp_path_factory.mktemp("sampled")
    (folder / "by_chance.py").write_text(TASK)
    few = "--orchestrator.batch-size 20 --orchestrator.rollouts-per-example 2 --orchestrator.sampling.max-tokens 4"
    few += " --orchestrator.env.id by-chance --max-steps 3 --seq-len 64 --display none --output-dir rl"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["rl", "--model.name", str(tiny_model_dir), *few.split(), *NO_AUDIT]) == 0
        words = ["-m", str(tiny_model_dir), "--profile", "p.parquet", "-n", "10", "-t", "4", "--output-dir", "measured"]
        assert main(["eval", "by-chance", *words]) == 0
    return folder


def settings(model: Path, run: Path, out: Path, **more) -> dict:
    base = {"model.name": str(model), "data.run": str(run), "output_dir": out, "data.pack": False, "max_steps": 2}
    return base | {"data.seq_len": 64, "data.batch_size": 4, "display": "none"} | more


def first_best(rows: list[dict]) -> dict[str, dict]:
    found = {}
    for row in rows:
        if (row["reward"] or 0) >= max(1.0, found.get(row["example_id"], {"reward": 0})["reward"] + 1e-9):
            found[row["example_id"]] = row
    return found


def test_the_sampled_ids_of_the_first_best_completion_are_learned(sampled, tiny_model_dir, tmp_path, capsys):
    run = Run(sampled / "rl")
    wanted = first_best([row for step in run.rollout_steps() for row in run.rollouts(step).to_pylist()])
    assert 2 < len(wanted) < 10
    with SFT(**settings(tiny_model_dir, run.path, tmp_path / "out")) as sft:
        source = sft.data.source
        learned = [source.sequence(0, draw, draw) for draw in range(len(source))]
        sft.train()
    ids = sorted((one.token_ids.tolist(), one.loss_mask.tolist()) for one in learned)
    assert ids == sorted((row["token_ids"], row["sampled_mask"]) for row in wanted.values())
    flags = f"--model.name {tiny_model_dir} --data.run {run.path} --data.seq-len 64 --max-steps 2 --output-dir"
    assert main(["sft", *flags.split(), str(tmp_path / "by-command"), "--val.interval", "1"]) == 0
    printed = capsys.readouterr().out
    assert "the best completions of run `rl`, of a reward from 1\n" in printed
    weights = tmp_path / "by-command" / "weights" / "step_2"
    assert f"Next: hone eval by-chance -m {weights} -n 100 -r 4 -t 4 -S '{{\"seq_len\": 64}}'\n" in printed
    reproduced(tmp_path / "out", 2)


def test_another_tokenizer_renders_the_messages_anew(sampled, tiny_model_dir, tmp_path):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}<assistant>"
    with SFT(**settings(tiny_model_dir, sampled / "rl", tmp_path / "out"), **{"model.chat_template": template}) as sft:
        sequence, row = sft.data.source.sequence(0, 0, 0), sft.data.source.rows[sft.data.source.order.index(0)]
    assert "token_ids" not in row
    text = sft.renderer.tokenizer.decode(sequence.token_ids.tolist(), skip_special_tokens=False)
    assert f"<user>{row['prompt'][-1]['content']}</s><assistant>" in text.replace(" ", " ")


def test_an_evaluation_is_learned_from_too(sampled, tiny_model_dir, tmp_path):
    wanted = first_best(Run(sampled / "measured").eval_rows())
    with SFT(**settings(tiny_model_dir, sampled / "measured", tmp_path / "out")) as sft:
        rows = list(sft.data.source.rows)
        sft.train()
    assert rows == [{name: row[name] for name in ("prompt", "completion")} for row in wanted.values()] and rows


def test_what_can_not_be_learned_is_refused(sampled, tiny_model_dir, tmp_path, capsys):
    flags = ["sft", "--model.name", str(tiny_model_dir), "--output-dir", str(tmp_path / "out"), "--data.run"]
    fails(capsys, main([*flags, str(sampled / "rl"), "--data.min-reward", "1.5"]), "lower data.min_reward")
    fails(capsys, main([*flags, str(sampled / "rl"), "--data.env.id", "reverse-text"]), "has data.env and data.run")
    fails(capsys, main([*flags, str(sampled)]), "is not a run of hone")
    fails(capsys, main([*flags[:-1], "--data.env.id", "reverse-text", "--data.min-reward", "0.5"]), "of data.run")
    with SFT(**settings(tiny_model_dir, sampled / "rl", tmp_path / "sft")) as sft:
        sft.train()
    fails(capsys, main([*flags, str(tmp_path / "sft")]), "is a run of SFT, which records no completions")
    assert not (tmp_path / "out").exists()
