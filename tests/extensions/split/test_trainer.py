"""`hone trainer` against an orchestrator that is played by the test, over the real transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from played import CANARY, LIMIT, Orchestrator

from hone.config.rl import AdvantageConfig
from hone.config.shared import LoraConfig
from hone.environments.task_files import source_digest
from hone.extensions.split.transport import FileTransport, Hello, Order
from hone.loops.parts import make_trainer
from hone.model.hf import load_model
from hone.model.lora import start_adapter
from hone.runs.view import read_lines
from hone.trainer.fingerprint import fingerprint
from hone.trainer.kl_reward import RewardKL


@pytest.fixture
def orchestrator(rl_run, tmp_path) -> Orchestrator:
    return Orchestrator(rl_run, tmp_path / "transport")


def same_files(ours: Path, theirs: Path) -> bool:
    names = ["model.safetensors", "optimizer.safetensors"]
    assert sorted(file.name for file in ours.iterdir()) == names
    return all((ours / name).read_bytes() == (theirs / name).read_bytes() for name in names)


def test_the_updates_are_those_of_the_colocated_run_to_the_bit(orchestrator, rl_run, tmp_path, capsys):
    recorded = {line["step"]: line for line in read_lines(rl_run / "metrics.jsonl")}
    weights = {line["step"]: line["weights"] for line in read_lines(rl_run / "hashes.jsonl")}
    trained_on = {"lr", "loss", "entropy", "grad_norm", "optimizer/skipped", "clipped", "logprob_gap/mean"}
    part = tmp_path / "part"
    part.mkdir()
    with orchestrator.trainer():
        hello = orchestrator.transport.hello(LIMIT)
        assert isinstance(hello, Hello) and hello.fingerprint == weights[0] and hello.ranks == 1
        assert hello.settings["optim"]["lr"] == 1e-3 and hello.pid == os.getpid()
        orchestrator.open("s1")
        first = orchestrator.result(0)
        assert (first.version, first.metrics, first.fingerprint, first.saved) == (0, {}, weights[0], False)
        for step in range(6):
            orchestrator.put(step, part if step == 3 else None)
            result = orchestrator.result(step + 1)
            assert result.fingerprint == weights[step + 1]
            assert trained_on <= result.metrics.keys()
            assert result.metrics == {name: recorded[step][name] for name in result.metrics}
            assert result.saved == (step == 3) and {"train", "wait", "publish"} <= result.seconds.keys()
            loaded = load_model(orchestrator.transport.weights(step + 1))
            assert fingerprint(dict(loaded.named_parameters())) == weights[step + 1]
            assert result.canary == pytest.approx(scores(loaded), abs=1e-6) and len(result.canary) == len(CANARY) - 1
        assert same_files(part, rl_run / "checkpoints" / "step_4")
        end = tmp_path / "end"
        end.mkdir()
        orchestrator.transport.put(Order(6, "end", save=str(end)))
        assert orchestrator.result(6).saved and same_files(end, rl_run / "checkpoints" / "step_6")
    orchestrator.transport.close()
    assert not orchestrator.transport.path.exists()
    shown = capsys.readouterr().out
    assert "Trainer: model (" in shown and f"Waiting for the orchestrator at {tmp_path}/transport" in shown
    assert "step 5: " in shown and "Done: the run has reached version 6." in shown


def scores(model) -> list[float]:
    """The canary's logprobs, in one piece."""
    from hone.model.attention import PackedAttention

    ids = torch.tensor(CANARY)
    with torch.no_grad():
        logits = model.logits(model.hidden(ids, torch.arange(len(ids)), PackedAttention([len(ids)])))
    return torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]].tolist()


def test_a_new_session_goes_back_to_its_checkpoint_or_to_the_initial_model(orchestrator, rl_run, tmp_path):
    """What an orchestrator that was started again asks of a trainer that lives on."""
    weights = {line["step"]: line["weights"] for line in read_lines(rl_run / "hashes.jsonl")}
    with orchestrator.trainer():
        orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1")
        for step in range(3):
            orchestrator.put(step, tmp_path / "tidied-up" if step == 2 else None)
            assert not orchestrator.result(step + 1).saved
        again = Orchestrator(rl_run, orchestrator.transport.path)
        for name, start in (("s2", 2), ("s3", 0), ("s4", 4)):
            again.open(name, start)
            assert again.result(start).fingerprint == weights[start]
            again.put(start)
            assert again.result(start + 1).fingerprint == weights[start + 1]
        again.put(5)
        assert again.result(6).fingerprint == weights[6]
        again.transport.put(Order(6, "end"))
        assert not again.result(6).saved
    again.transport.close()


def test_a_session_says_how_advantages_are_made(rl_run, tmp_path, monkeypatch):
    """A trainer's own file has no orchestrator, but the KL in the reward changes the advantages."""
    kl = ("--loss.kl-coef", "0.2", "--loss.kl-in", "reward", "--loss.kl-estimator", "k1")
    orchestrator, made = Orchestrator(rl_run, tmp_path / "transport", ("--max-steps", "1", *kl)), []

    def spy(*arguments):
        made.append(make_trainer(*arguments))
        return made[-1]

    monkeypatch.setattr("hone.extensions.split.commands.trainer.make_trainer", spy)
    keys = {"baseline": "batch", "scale": "token_std", "std_ddof": 0}
    with orchestrator.trainer():
        orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1", rollouts=4, advantage=keys)
        orchestrator.put(0)
        assert orchestrator.result(1).metrics["optimizer/skipped"] == 0
        orchestrator.transport.put(Order(1, "end"))
        orchestrator.result(1)
    orchestrator.transport.close()
    (trainer,) = made
    assert trainer.use.kl_in_reward == RewardKL(0.2, 4, AdvantageConfig(**keys))


def test_a_session_that_disagrees_ends_the_trainer(orchestrator, capfd):
    with orchestrator.trainer(code=2):
        orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1", shared={"max_steps": 7})
    assert "error: max_steps is 6 in this trainer's config, but 7 in" in capfd.readouterr().err


def test_it_tells_what_it_reads_besides_its_config(rl_run, tmp_path):
    (tmp_path / "own.py").write_text("def loss(log_ratios, advantages):\n    return -advantages * log_ratios.exp()\n")
    flags = ("--model.lora.rank", "2", "--trainer.loss.function", f"{tmp_path}/own.py:loss")
    orchestrator = Orchestrator(rl_run, tmp_path / "transport", flags)
    with orchestrator.trainer(code=2):
        hello = orchestrator.transport.hello(LIMIT)
        orchestrator.open("s1", shared={"max_steps": 7})
    begun = load_model(rl_run.parent / "model", lora=LoraConfig(rank=2))
    start_adapter(begun, orchestrator.config.seed)
    assert hello is not None
    assert hello.digests == {"adapter": fingerprint(begun.trained), "loss": source_digest(tmp_path / "own.py")}


@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_a_signal_ends_it_at_once_and_leaves_nothing(tmp_path, numbers):
    """Also if another one comes while it tidies up, as torchrun sends SIGTERM after Ctrl-C."""
    argv = ["trainer", "--model.init.layers", "1", "--model.init.hidden", "48", "--output-dir", str(tmp_path / "out")]
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; from hone.cli import main; sys.exit(main())", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    transport = FileTransport(tmp_path / "out" / ".transport")
    assert transport.hello(LIMIT).pid == child.pid
    for number in (signal.SIGSTOP, *numbers, signal.SIGCONT):
        child.send_signal(number)
    out, error = child.communicate(timeout=LIMIT)
    assert child.returncode == 128 + numbers[0] and error == "", error
    assert "Waiting for the orchestrator" in out and not transport.path.exists()
