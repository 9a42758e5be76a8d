"""From a config to the processes of a run: commands, environments, refusals. Other files here have runs."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.server.config import ServeConfig
from hone.extensions.split.config import OrchestratorRole, TrainerRole
from hone.extensions.split.launch import Role
from hone.extensions.split.launcher import roles, run_split, serve_config, variables
from hone.extensions.split.placement import placed


def config(line: str = "") -> RLConfig:
    return parse(RLConfig, shlex.split(f"--mode split {line}"), "rl")


def started(tmp_path: Path, line: str = "", gpus: tuple[str, ...] = ()) -> dict[str, Role]:
    given = config(line)
    servers = given.inference.replicas if given.orchestrator.client.base_url is None else 0
    place = placed(gpus, given.trainer.ranks, servers, given.inference.tensor_parallel)
    return {role.name: role for role in roles(given, place, tmp_path, on_gpus=bool(gpus))}


def read_by(cls, role: Role):
    """The config that a role is started with, as it reads it."""
    words = [*role.command, *role.first]
    return parse(cls, words[words.index("@") :], role.name)


def test_each_role_reads_the_config_of_the_run(tmp_path):
    line = (
        "--max-steps 7 --output-dir x --trainer.optim.lr 0.25 --inference.port 8123 --trainer.ranks 2 --ckpt.interval 3"
    )
    found = started(tmp_path, line)
    assert list(found) == ["inference", "trainer", "orchestrator"]
    own = config(line).model_dump()
    assert read_by(TrainerRole, found["trainer"]).model_dump() == own and found["trainer"].ranks == 2
    assert read_by(OrchestratorRole, found["orchestrator"]).model_dump() == own
    server = read_by(ServeConfig, found["inference"])
    assert (server.host, server.port, server.weights_folder) == (
        "127.0.0.1",
        8123,
        Path("x/.transport/weights").absolute(),
    )
    assert found["inference"].port == 8123


def test_a_resume_is_the_orchestrators_and_every_later_start_goes_on_from_the_newest_checkpoint(tmp_path):
    driver = started(tmp_path, "--resume.step 4 --allow-drift --detach")["orchestrator"]
    first = read_by(OrchestratorRole, driver)
    assert first.resume is not None and first.resume.step == 4 and first.allow_drift and not first.detach
    assert driver.again == ["--resume", "--allow-drift"]
    branch = started(tmp_path, "--resume.dir other")["orchestrator"]
    assert branch.first == ["--resume", "--resume.dir", "other"] and branch.again == ["--resume"]
    assert started(tmp_path)["orchestrator"].first == []
    up = started(tmp_path, "--orchestrator.client.base-url http://localhost:1/v1")
    assert list(up) == ["trainer", "orchestrator"], "a server that is up is not started"


def test_each_role_sees_its_own_gpus_and_a_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    found = started(tmp_path, "--trainer.ranks 2", ("0", "1", "2"))
    seen = {name: role.env.get("CUDA_VISIBLE_DEVICES") for name, role in found.items()}
    assert seen == {"inference": "0", "trainer": "1,2", "orchestrator": ""}
    cores = {name: role.env.get("HONE_CORES") for name, role in found.items()}
    assert cores == {"inference": "4", "trainer": "8", "orchestrator": None}, "the ranks divide theirs"
    for gpus, shares in ((("0", "1", "2"), None), (("0", "1"), "1")):
        of_roles = started(tmp_path, "--trainer.ranks 2", gpus)
        assert {name: role.env.get("HONE_SHARES_GPU") for name, role in of_roles.items()} == {
            **dict.fromkeys(of_roles),
            "trainer": shares,
        }
    assert "CUDA_VISIBLE_DEVICES" not in started(tmp_path)["trainer"].env


def test_each_of_several_servers_has_its_own_port_and_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)), raising=False)
    line = "--inference.replicas 2 --inference.tensor-parallel 2 --inference.backend vllm --inference.port 9000"
    found = started(tmp_path, line, (*"012345",))
    assert list(found) == ["inference-0", "inference-1", "trainer", "orchestrator"]
    servers = [read_by(ServeConfig, found[f"inference-{number}"]) for number in (0, 1)]
    assert [(server.port, server.tensor_parallel) for server in servers] == [(9000, 2), (9001, 2)]
    assert [found[f"inference-{number}"].port for number in (0, 1)] == [9000, 9001]
    seen = {name: role.env.get("CUDA_VISIBLE_DEVICES") for name, role in found.items()}
    assert seen == {"inference-0": "0,1", "inference-1": "2,3", "trainer": "5", "orchestrator": ""}
    assert {role.env.get("HONE_CORES") for role in found.values()} == {"4", None}
    own = read_by(OrchestratorRole, found["orchestrator"])
    assert own.server_urls == ["http://127.0.0.1:9000/v1", "http://127.0.0.1:9001/v1"]


def test_what_is_meant_for_the_launcher_is_kept_from_the_roles(monkeypatch):
    for name in ("RANK", "MASTER_PORT", "HONE_DETACHED", "HONE_SHARED_MEMORY"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    monkeypatch.setattr(sys, "argv", ["rl", "--mode", "split"])
    found = variables(None)
    assert variables(Path("/dev/shm/hone-1"))["HONE_SHARED_MEMORY"] == "/dev/shm/hone-1"
    assert (
        not {"RANK", "MASTER_PORT", "HONE_DETACHED", "HONE_SHARED_MEMORY"} & set(found)
        and found["GOMP_SPINCOUNT"] == "7"
    )
    assert json.loads(found["HONE_LAUNCHED"]) == ["rl", "--mode", "split"]
    assert found["HONE_LAUNCHER"] == str(os.getpid())


def test_a_vllm_of_the_run_has_its_room_and_precision():
    tiny = "--inference.backend vllm --model.init.max-positions 64 --seq-len"
    server = serve_config(config(f"{tiny} 32 --precision fp32"), on_gpu=False)
    assert (server.max_model_len, server.dtype, server.kv_gib) == (33, "float32", 1.0)
    server = serve_config(config(f"{tiny} 64"), on_gpu=True)
    assert (server.max_model_len, server.dtype, server.kv_gib) == (64, "bfloat16", None)
    assert serve_config(config(f"{tiny} 64"), on_gpu=True, shares=True).kv_gib == 8.0
    assert serve_config(config(f"{tiny} 64 --inference.kv-gib 2"), on_gpu=True).kv_gib == 2
    assert serve_config(config("--inference.kv-gib 2"), on_gpu=False).kv_gib == 2
    assert serve_config(config(), on_gpu=False).max_model_len is None
    own = config("--inference.backend hone")
    assert serve_config(own, on_gpu=True).kv_gib is None, "half of what is free on its GPU"
    assert serve_config(own, on_gpu=True, shares=True).kv_gib == 4, "the trainer is there, too"


def test_a_port_that_is_taken_is_refused(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"listen on port {port} .* --inference.port {port + 1}"):
            run_split(config(f"--mode split --output-dir {tmp_path} --inference.port {port}"))
