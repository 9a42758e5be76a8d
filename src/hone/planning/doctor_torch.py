"""A child process that imports torch, tells what it found, and times small matrix products when it is asked to."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

SECONDS = 30.0
"""The most that importing torch may take."""
_PROGRAM = r"""
import json, os, sys, time, warnings
told = []
warnings.showwarning = lambda message, *rest: told.append(" ".join(str(message).split()))
out = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
try:
    import torch
    cuda = torch.cuda.is_available()
    facts = {"version": torch.__version__, "cuda_build": torch.version.cuda, "hip": torch.version.hip, "cuda": cuda,
             "threads": torch.get_num_threads(), "archs": torch.cuda.get_arch_list() if cuda else [], "gpus": []}
    mps = getattr(torch.backends, "mps", None)
    facts["mps"] = bool(mps and mps.is_available())
    for i in range(torch.cuda.device_count() if cuda else 0):
        p = torch.cuda.get_device_properties(i)
        free, total = torch.cuda.mem_get_info(i)
        gpu = {"name": p.name, "uuid": str(getattr(p, "uuid", "")), "total": total, "free": free}
        facts["gpus"].append(gpu | {"capability": [p.major, p.minor]})
except BaseException as error:
    facts = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
facts["warnings"] = told
print(json.dumps(facts), file=out)
for line in sys.stdin:
    cpus, seconds = json.loads(line)
    if hasattr(os, "sched_setaffinity"):
        for task in os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else [0]:
            os.sched_setaffinity(int(task), cpus)
    torch.set_num_threads(len(cpus))
    a, b = torch.ones(128, 128), torch.ones(128, 384)
    torch.mm(a, b)
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        torch.mm(a, b)
        count += 1
    print(json.dumps({"gflops": 2 * 128 * 128 * 384 * count / spent / 1e9}), file=out)
"""


class TorchChild:
    """torch in a process of its own, with the environment variables `env`."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env) | {"PYTHONWARNINGS": "default"},
        )
        self._buffer = b""
        self._facts: dict[str, Any] | None = None
        self._lock = threading.Lock()

    @property
    def facts(self) -> dict[str, Any]:
        """What it found; `error` says what kept it from that."""
        with self._lock:
            if self._facts is None:
                self._facts = self._answer(SECONDS)
            return self._facts

    def gflops(self, cpus: list[int], seconds: float) -> float:
        """Speed of products of 128 x 128 by 128 x 384, one after another, in a thread on each of these cores."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([cpus, seconds]).encode() + b"\n")
        self._process.stdin.flush()
        return float(self._answer(seconds + 5.0).get("gflops", 0.0))

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe, deadline = self._process.stdout.fileno(), time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                self.close()
                return {"error": f"no answer within {seconds:.0f} s"}
            data = os.read(pipe, 65536)
            if not data:
                return {"error": f"the interpreter ended with exit code {self._process.wait()}"}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
