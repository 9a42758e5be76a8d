"""A vLLM server as a child of this process."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal
from urllib.error import URLError

from hone.errors import UserError
from hone.inference.vllm import supervisor
from hone.inference.vllm.launch import (
    Settings,
    arguments,
    check_device,
    default_kv_gib,
    default_threads,
    environment,
    find_vllm,
)
from hone.inference.vllm.weights import opener_for, update_weights

GRACE = 10.0
"""Seconds that vLLM has to end by itself when it is told to."""
START = 600.0
"""Seconds that vLLM may take to load the model and answer."""
_ERROR = re.compile(r"(?:\b[A-Z]\w*Error: |Value error, )(?!\d+ validation error)(.+)")
"""Of a line in vLLM's log, what is wrong. The first such line is the cause of the others."""


class VllmServer:
    """Serves `model` (a folder or a hub id) over the OpenAI protocol while entered.

        with VllmServer("outputs/tiny-rl/weights/step_150", log=Path("vllm.log"), weights_root=Path("spool")) as server:
            client = OpenAI(base_url=server.url, api_key="none")
            server.update(Path("spool/step_151"), 151)

    Leaving it ends all of vLLM's processes; so does the end of this process, even by SIGKILL. What vLLM says goes to
    `log`. `port` None takes a free one; `python` None finds a vLLM (`find_vllm`); `threads` (on a CPU) None is 1 for a
    small model, else one per core; `device` is auto, cpu, cuda or cuda:1, as vLLM was built for. Weights are taken from
    under `weights_root` only, and without it not at all. Without an `api_key` it answers programs of this machine only.
    `kv_gib` is memory for keys and values, by default 1 on a CPU and 8 on a GPU; `more_room` is what the user can do
    where that is too little. `progress` is called with a line when the start begins and every 10 s while it lasts.

    UserError, from entering: vLLM is not installed, or it does not start, with what its log says last.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        log: Path,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        device: str = "auto",
        host: str = "127.0.0.1",
        port: int | None = None,
        max_model_len: int | None = None,
        python: Path | None = None,
        threads: int | None = None,
        kv_gib: float | None = None,
        more_room: str = "raise kv_gib, or lower max_model_len",
        seed: int = 0,
        chat_template: str | None = None,
        weights_root: Path | None = None,
        served_name: str | None = None,
        api_key: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.log = log
        self.version = 0
        """That of the last update."""
        self._installed = find_vllm(python)
        check_device(self._installed, device)
        self._settings = Settings(
            model=str(model),
            served_name=served_name or str(model),
            dtype=dtype,
            device=device,
            host=host,
            port=port or free_port(host),
            max_model_len=max_model_len,
            threads=threads or default_threads(str(model)),
            kv_gib=kv_gib or default_kv_gib(self._installed),
            seed=seed,
            chat_template=chat_template,
            weights_root=weights_root,
            api_key=api_key,
        )
        self._more_room = more_room
        self._progress = progress or (lambda line: None)
        self._log_begin = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """`http://HOST:PORT/v1`"""
        host = self._settings.host
        local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
        return f"http://{local}:{self._settings.port}/v1"

    @property
    def described(self) -> str:
        """What samples, in words: `vLLM 0.32.0, dtype auto, cpu, 1 thread`."""
        threads = self._settings.threads
        gpu = "cuda" if self._settings.device == "auto" else self._settings.device
        device = f"cpu, {threads} thread{'s' if threads > 1 else ''}" if self._installed.cpu else gpu
        return f"vLLM {self._installed.version}, dtype {self._settings.dtype}, {device}"

    def update(self, path: Path, version: int) -> None:
        """Samples come from the weights in folder `path` from now on: see `update_weights`."""
        update_weights(self.url, path, version, self._settings.api_key)
        self.version = version

    def __enter__(self) -> VllmServer:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_begin = log.seek(0, os.SEEK_END)
            argv = [sys.executable, "-I", supervisor.__file__, str(os.getpid()), str(GRACE)]
            self._process = subprocess.Popen(
                argv + arguments(self._installed, self._settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._installed, self._settings),
                start_new_session=True,  # Ctrl-C reaches this process only, which then ends the server
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, _kind: type | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()

    def wait(self) -> int:
        """Waits until vLLM has ended; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def close(self) -> None:
        """Ends all of vLLM's processes; at once if they are gone."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(GRACE + 5)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = None

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        began = said = time.monotonic()
        self._progress(f"Starting vLLM {self._installed.version} (log: {self.log}) ...")
        while not self._answers():
            now = time.monotonic()
            if (code := self._process.poll()) is not None:
                raise UserError(f"vLLM ended with exit code {code} before it served: {self.why()}")
            if now - began > START:
                raise UserError(f"vLLM does not answer after {START:.0f} s: {self.why()}")
            if now - said > 10:
                said = now
                self._progress(f"Starting vLLM: {now - began:.0f} s")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with opener_for(self.url).open(self.url.removesuffix("/v1") + "/health", timeout=5) as response:
                return response.status == 200
        except (URLError, OSError):
            return False

    def why(self) -> str:
        """What went wrong, and where all of it is: the first error in the log since the start, or its last line."""
        with self.log.open(errors="replace") as log:
            log.seek(self._log_begin)
            lines = [line.strip() for line in log if line.strip()] or ["it said nothing"]
        errors = (match[1] for line in lines if " WARNING " not in line and (match := _ERROR.search(line)))
        said = next(errors, lines[-1]).partition(" [type=")[0].partition(". ")[0][:300]
        remedy = f"; {self._more_room}" if "cache" in said else ""
        return f"{said}{remedy} (log: {self.log})"


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]
