"""`hone rl` in several processes, for real: what it learns, and what it survives."""

from __future__ import annotations

import os
import re
import signal
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import until
from split_runs import (
    PROMPTS,
    STEPS,
    Command,
    Run,
    alive,
    consumed_once,
    draws,
    hone,
    records,
    small_run,
    write_task,
)

from hone.processes import free_port

pytestmark = pytest.mark.split


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a run in `tmp_path`, whose processes are all gone after the test."""
    write_task(tmp_path)
    begun: list[Command] = []

    def start(*argv: object, out: str = "out") -> Run:
        begun.append(Run([str(word) for word in argv], tmp_path / out))
        return begun[-1]

    yield start
    for command in begun:
        command.kill()


@pytest.fixture
def small(warm_model: Path) -> list[str]:
    return [*small_run(warm_model), "--mode", "split", "--inference.port", str(free_port())]


def test_when_the_server_is_killed_the_run_goes_on_from_what_it_saved_then(begin, small):
    run = begin(*small)
    run.hold()
    run.at_step(3)
    (pid,) = run.pids("inference")
    os.kill(pid, signal.SIGKILL)
    run.let_go()
    assert run.ended() == 0, run.output
    cause = f"The inference server (pid {pid}) was ended by SIGKILL: starting inference, trainer and orchestrator again"
    assert cause in run.output
    consumed_once(run.out)
    (event,) = [event for event in records(run.out / "events.jsonl") if event["kind"] == "restart"]
    assert event["role"] == "inference"
    assert list((run.out / "superseded").glob("*/rollouts/*")) == [], "no step was lost"
    assert (run.out / "logs" / "inference.log").read_text().count("Serving ") == 2


def shared_folder_of(run: Run) -> Path:
    """The folder in memory that the launcher has named to the server."""
    (pid,) = run.pids("inference")
    (name,) = re.findall(rb"HONE_SHARED_MEMORY=([^\0]+)", Path(f"/proc/{pid}/environ").read_bytes())
    return Path(name.decode())


def test_weights_pass_through_memory_that_the_next_run_frees_if_this_one_is_killed(begin, small):
    run = begin(*small)
    run.hold()
    run.at_step(3)
    memory = shared_folder_of(run)
    assert (memory.parent, memory.stat().st_mode & 0o777) == (Path("/dev/shm"), 0o700)
    there = {path.relative_to(memory).parts[1] for path in memory.glob("*/*/model.safetensors")}
    assert "step_3" in there and not list((run.out / ".transport/weights").glob("*/step_*"))
    (server,) = run.pids("inference")
    assert f"{memory}/" in Path(f"/proc/{server}/maps").read_text(), "sampled from where the trainer wrote it"
    os.kill(run.process.pid, signal.SIGKILL)
    until(lambda: not alive(run.mark))
    assert memory.exists()
    run.let_go()
    again = begin("@", "out/config.toml", "--resume")
    again.hold()
    memory_of_again = shared_folder_of(again)
    assert not memory.exists() and memory_of_again != memory
    again.let_go()
    assert again.ended() == 0, again.output
    consumed_once(again.out)
    assert not memory_of_again.exists()


@pytest.mark.parametrize("lag", [0, 2])
def test_ctrl_c_saves_what_was_on_its_way_and_a_resume_makes_the_rest(begin, small, lag):
    run = begin(*small, "--orchestrator.max-async-level", lag)
    run.hold()
    run.at_step(3)
    run.signal(signal.SIGINT)
    run.let_go()
    assert run.ended() == 130, run.output
    assert "Ctrl-C: finishing this step and saving a checkpoint" in run.output
    (stopped,) = map(int, re.findall(rf"^Stopped after (\d+) of {STEPS} steps", run.output, re.MULTILINE))
    assert (run.out / "checkpoints" / f"step_{stopped}" / "COMPLETE").exists()
    assert [line["step"] for line in records(run.out / "metrics.jsonl")] == list(range(stopped))
    assert sum(draws(run.out).values()) == stopped * PROMPTS
    assert f"hone rl @ {run.out.name}/config.toml --resume" in run.output
    again = begin("@", "out/config.toml", "--resume")
    assert again.ended() == 0, again.output
    assert f"Resuming out at step {stopped}." in again.output
    consumed_once(run.out)
    assert (run.out / "logs" / "orchestrator.log").read_text().count("Resuming") == 1, "logs are continued"


def test_a_grader_that_breaks_ends_the_run_with_its_state_saved(begin, small, tmp_path):
    """All that is on its way then fails as well; the run still ends at once, and goes on once that is mended."""
    run = begin(*small, "--orchestrator.max-async-level", 2)
    run.hold()
    run.at_step(2)
    (tmp_path / "broken").touch()
    run.let_go()
    assert run.ended() == 2, run.output
    (step,) = map(int, re.findall(r"every completion of step (\d+) failed in the grader", run.output)[-1:])
    (saved,) = re.findall(r"Saved: out/checkpoints/step_(\d+);", run.output)
    assert step < int(saved) <= step + 3 and run.output.count("error: ") == 1
    (tmp_path / "broken").unlink()
    again = begin("@", "out/config.toml", "--resume")
    assert again.ended() == 0, again.output
    consumed_once(run.out, "failed")


def sections(folder: Path, warm_model: Path, port: int) -> None:
    """Write the files of two roles, for a server that is up at `port`."""
    shared = f'max_steps = {STEPS}\nseq_len = 96\nseed = 3\nprecision = "fp32"\noutput_dir = "out"\n'
    model = f'[model]\nname = "{warm_model}"\n[ckpt]\ninterval = 2\n'
    (folder / "train.toml").write_text(f"{shared}{model}[optim]\nlr = 1e-3\n")
    batch = f"batch_size = {4 * PROMPTS}\nrollouts_per_example = 4\n"
    client = f'[client]\nbase_url = "http://localhost:{port}/v1"\n'
    (folder / "orch.toml").write_text(f"{shared}{batch}{model}[sampling]\nmax_tokens = 16\n{client}")


def test_roles_that_are_started_alone_in_any_order(warm_model, tmp_path):
    port = free_port()
    sections(tmp_path, warm_model, port)
    serve = f"inference --model.name {warm_model} --output-dir out --port {port} --precision fp32"
    roles = [
        Command(["orchestrator", "@", "orch.toml", "--no-audit"], tmp_path, PYTHONUNBUFFERED="1"),
        Command(["trainer", "@", "train.toml"], tmp_path, PYTHONUNBUFFERED="1"),
        Command(serve.split(), tmp_path, PYTHONUNBUFFERED="1"),
    ]
    try:
        assert roles[0].ended() == 0, roles[0].output
        assert roles[1].ended() == 0, roles[1].output
        roles[2].signal(signal.SIGINT)
        assert roles[2].ended() == 0
        consumed_once(tmp_path / "out")
        config = tomllib.loads((tmp_path / "out/config.toml").read_text())
        assert config["trainer"]["optim"]["lr"] == 1e-3, "the trainer's, which the orchestrator's file does not say"
        assert "verdict       equal" in hone(tmp_path, "replay", "out")
    finally:
        for role in roles:
            role.kill()


def test_an_adapter_killed_with_all_its_processes_goes_on_to_the_same_bytes(begin, small):
    """In lock-step, with a KL to the model without the adapter."""
    flags = ["--model.lora.rank", 2, "--trainer.optim.lr", "1e-2", "--trainer.loss.kl-coef", "0.1"]
    flags += ["--inference.batch-invariant", "--precision", "fp32", "--no-report"]
    whole = begin(*small, *flags, out="whole")
    assert whole.ended() == 0, whole.output
    run = begin(*small, *flags)
    run.hold()
    run.at_step(5)
    run.kill()
    run.let_go()
    again = begin(*small, *flags, "--resume")
    assert again.ended() == 0, again.output
    assert f"Resuming {run.out.name} at step 4." in again.output
    consumed_once(run.out)
    files = ["metrics.jsonl", *(f"rollouts/step_{step:06}.parquet" for step in range(STEPS))]
    files += [f"weights/step_{STEPS}/{name}" for name in ("model.safetensors", "adapter/adapter_model.safetensors")]
    assert [name for name in files if (run.out / name).read_bytes() != (whole.out / name).read_bytes()] == []
