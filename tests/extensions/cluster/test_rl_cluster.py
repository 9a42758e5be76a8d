"""`hone rl` on a real Ray cluster of two nodes, the second with a memory of its own as on another machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from processes import until
from split_runs import PROMPTS, STEPS, Command, consumed_once, draws, free_ports, hone, records, write_task

from hone.extensions.vllm.server import CHECKOUT, OWN_ENVIRONMENT
from hone.runs import Run

pytestmark = pytest.mark.cluster
TWO = ("--inference.replicas", 2, "--inference.batch-invariant")


def same_bytes(one: Path, other: Path) -> bool:
    files = ["metrics.jsonl", *(f"rollouts/step_{step:06}.parquet" for step in range(STEPS))]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in files)


def left() -> set[Path]:
    """What actors make on their nodes, for as long as they live."""
    return {path for name in ("host", "task") for path in Path("/tmp").glob(f"hone-{name}-*")}


def test_two_nodes_make_the_bytes_of_one_machine(nodes, begin):
    before, cluster = left(), nodes(2)
    other = cluster.add(3, apart=[])
    run = begin(*TWO, "--inference.port", free_ports(2), "--cluster.address", cluster.address, "--cluster.graders", 2)
    run.hold()
    run.at_step(3)
    server, *_ = other.pids(" hone.cli inference @ ")  # the head has no room for both beside the trainer
    assert "/dev/shm/hone-" in Path(f"/proc/{server}/maps").read_text(), "it maps what Ray has brought to its node"
    run.let_go()
    assert run.ended() == 0, run.output
    assert left() == before
    consumed_once(run.out)
    alone = begin("--mode", "split", *TWO, "--inference.port", free_ports(2), out="split")
    assert alone.ended() == 0, alone.output
    assert same_bytes(run.out, alone.out)


def test_whatever_is_killed_each_draw_comes_to_one_end(nodes, begin):
    cluster = nodes(3)
    other = cluster.add(4, apart=[])
    more = ("--cluster.graders", 2, "--ckpt.interval", 1, "--max-steps", 12, "--restarts", 10)
    run = begin(*TWO, "--inference.port", free_ports(2), "--cluster.address", cluster.address, *more)

    def held(at: int) -> None:
        run.hold(at)
        run.at_step(at)

    held(2)
    os.kill(other.pids("process_main.py")[0], signal.SIGKILL)
    held(4)
    os.kill(run.pids("inference-1")[0], signal.SIGKILL)
    until(lambda: (run.out / "logs" / "inference-1.log").read_text().count("Serving ") == 2)
    held(6)
    (trainer,) = run.pids("trainer")
    os.kill(trainer, signal.SIGKILL)
    run.says("from the last checkpoint, step")
    held(8)
    other.kill()
    run.let_go()
    assert run.ended() == 0, run.output
    assert "aylet" not in run.output, "what died is told in hone's words, not in Ray's"
    steps = [record["step"] for record in records(run.out / "metrics.jsonl")][:12]
    assert steps == list(range(12)) and sum(draws(run.out).values()) == 12 * PROMPTS
    restarts = [event for event in records(run.out / "events.jsonl") if event["kind"] == "restart"]
    assert [event["role"] for event in restarts] == ["trainer"]
    assert len(list((run.out / "superseded").glob("*/rollouts/*"))) <= 1, "a checkpoint may have been on its way"


@pytest.mark.skipif(not (CHECKOUT / OWN_ENVIRONMENT).exists(), reason="vLLM is not installed: make vllm-env")
def test_vllm_samples_on_two_nodes_and_one_that_is_killed_comes_back(nodes, begin):
    cluster = nodes(2)
    other = cluster.add(3, apart=[])
    flags = ("--inference.backend", "vllm", "--inference.replicas", 2, "--inference.port", free_ports(2))
    run = begin(*flags, "--inference.kv-gib", 1 / 16, "--cluster.address", cluster.address, "--ckpt.interval", 1)
    run.hold()
    run.at_step(2)
    server, *_ = other.pids(" hone.cli inference @ ")
    name = next(name for name in ("inference-0", "inference-1") if server in run.pids(name))
    os.kill(server, signal.SIGKILL)
    until(lambda: (run.out / "logs" / f"{name}.log").read_text().count("Serving ") == 2)
    run.let_go()
    assert run.ended() == 0, run.output
    consumed_once(run.out)
    versions = {version for row in Run(run.out).rollouts(3).to_pylist() for version in row["versions"]}
    assert versions - {-1} <= {2, 3}, "of what the trainer made, on either node; a prompt has none"


def test_a_replica_without_room_is_placed_on_a_node_that_joins(nodes, begin):
    cluster = nodes(2)
    run = begin(*TWO, "--inference.port", free_ports(2), "--cluster.address", cluster.address)
    run.hold()
    run.at_step(2)
    run.says("waits for a node with 1 core free")  # whichever of the two
    other = cluster.add(1, apart=[])
    until(lambda: other.pids("/inference-"))
    logs = run.out / "logs"
    until(lambda: all("Serving " in (logs / f"inference-{n}.log").read_text() for n in (0, 1)))
    run.let_go()
    assert run.ended() == 0, run.output
    consumed_once(run.out)
    assert "is back, and has version" in run.output


def test_a_trainer_without_room_says_so_and_can_be_called_off(nodes, begin):
    cluster = nodes(2)
    run = begin("--inference.port", free_ports(1), "--cluster.address", cluster.address, "--cluster.cpus", 9)
    run.says("trainer waits for 9 cores free on this machine (")
    assert "no node allowed for it has 9 cores; the most on one node are 2 cores" in run.output
    run.process.send_signal(signal.SIGINT)
    assert run.ended() == 128 + signal.SIGINT and "Stopped before the run began." in run.output


def test_without_an_address_a_cluster_is_started_here(begin, tmp_path):
    run = begin("--mode", "cluster", "--inference.port", free_ports(1))
    assert run.ended() == 0 and "Ray is started on this machine for this run alone" in run.output, run.output
    consumed_once(run.out)


def test_an_evaluation_is_spread_over_the_nodes_and_survives_a_server(nodes, tmp_path, warm_model):
    write_task(tmp_path)
    cluster = nodes(1)
    other = cluster.add(3, apart=[])
    count = ("-n", "96", "-r", "2", "--precision", "fp32", "--max-tokens", "16")
    flags = ("--cluster.address", cluster.address, "--cluster.replicas", "2", "--cluster.graders", "2")
    command = Command(["eval", "held-task", "-m", str(warm_model), *count, *flags, "--output-dir", "spread"], tmp_path)
    pid = until(lambda: other.pids("/inference.toml"))[0]
    os.kill(pid, signal.SIGKILL)
    assert command.ended() == 0, command.output
    hone(tmp_path, "eval", "held-task", "-m", str(warm_model), *count, "--output-dir", "here")
    spread, here = (records(tmp_path / name / "results.jsonl") for name in ("spread", "here"))
    same = sum(a["completion"] == b["completion"] for a, b in zip(spread, here, strict=True))
    assert same > 0.95 * 192, "but for the rounding of products of other shapes"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--cluster.address", "127.0.0.1:1"], "no Ray cluster can be used at 127.0.0.1:1"),
        (["--cluster.address", "auto"], "start one with `ray start --head`"),
        (["--mode", "colocated", "--cluster.graders", "2"], "mode colocated is one process"),
    ],
)
def test_bad_input_is_one_sentence(begin, flags, sentence):
    run = begin(*flags)
    assert run.ended() == 2 and sentence in run.output and "Traceback" not in run.output, run.output
