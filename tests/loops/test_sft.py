"""`SFT` in a program's own hands: the bytes of the command, and a run that can be resumed whatever happens."""

from __future__ import annotations

import signal

from run_folders import exact_files

from hone.loops.sft import SFT
from hone.runs import Run

COMMAND = ["sft"]
SETTINGS = {
    "max_steps": 4,
    "data.env.id": "reverse-text",
    "data.env.args": {"num_train_examples": 99},
    "data.seq_len": 64,
    "data.batch_size": 4,
    "data.pack": False,
    "val.interval": 2,
    "val.max_examples": 4,
    "optim.lr": 1e-3,
}


def test_the_loop_in_ones_own_hands_has_the_bytes_of_the_command(settings, by_command, tmp_path):
    losses = []
    with SFT(**settings, output_dir=tmp_path / "out") as sft:
        while not sft.done:
            losses.append(sft.step()["loss"])
    assert losses == Run(by_command).metrics().column("loss").to_pylist()[:4] and sft.ending == "done"
    assert exact_files(tmp_path / "out") == exact_files(by_command)


def test_ctrl_c_in_the_block_leaves_a_run_that_can_be_resumed(settings, by_command, tmp_path):
    with SFT(**settings, output_dir=tmp_path / "out") as sft:
        while True:
            sft.step()
            if sft.version == 2:
                signal.raise_signal(signal.SIGINT)
    assert Run(tmp_path / "out").checkpoints.steps() == [2] and sft.exit_code == 130
    with SFT(**settings, output_dir=tmp_path / "out", resume=True) as sft:
        sft.train()
    assert exact_files(tmp_path / "out") == exact_files(by_command)


def test_it_stops_at_the_version_whose_validation_loss_is_at_the_target(settings, by_command, tmp_path):
    losses = Run(by_command).metrics()["val/loss"].to_pylist()
    assert losses[2] < losses[0]
    goal = {"stop.metric": "val/loss", "stop.below": losses[2]}
    with SFT(**settings, **goal, output_dir=tmp_path / "out") as sft:
        sft.train()
    run, unbroken = Run(tmp_path / "out"), Run(by_command)
    assert (sft.ending, sft.version, list(run.weights())) == ("done", 2, [2])
    assert (
        run.metrics().to_pylist()[:2] == unbroken.metrics().slice(0, 2).select(run.metrics().column_names).to_pylist()
    )
    assert run.metrics()["val/loss"].to_pylist() == [losses[0], None, losses[2]]
    assert run.info["target"] == {"metric": "val/loss", "value": losses[2], "target": f"<= {losses[2]:g}", "step": 2}
