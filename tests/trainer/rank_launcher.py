"""Runs functions of tests on several ranks: real processes with torchrun's variables, on gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hone.processes import free_port

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
"""torchrun, with a port that is free."""


def rank_variables(world: int) -> list[dict[str, str]]:
    """What torchrun sets for each of `world` processes on this machine."""
    common = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    common |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]


def on_ranks(world: int, function: str, folder: Path, timeout: float = 900) -> None:
    """Calls `function` of rank_worker.py as `function(ranks, folder)` on each of `world` ranks."""
    code = (
        "import os, sys, traceback; from pathlib import Path; sys.path.insert(0, sys.argv[3])\n"
        "import torch; torch.set_num_threads(1)\n"
        "import rank_worker; from hone.trainer.parallel import joined\n"
        "try:\n"
        "    with joined('cpu') as ranks: getattr(rank_worker, sys.argv[1])(ranks, Path(sys.argv[2]))\n"
        "except BaseException: traceback.print_exc(); os._exit(1)\n"
        "sys.stdout.flush(); os._exit(0)\n"
    )
    command = [sys.executable, "-c", code, function, str(folder), str(Path(__file__).parent)]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT / "environments"), os.environ.get("PYTHONPATH")]))
    processes = [
        subprocess.Popen(
            command, env=os.environ | {"PYTHONPATH": path} | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for variables in (rank_variables(world) if world > 1 else [{}])
    ]
    try:
        outputs = [process.communicate(timeout=timeout)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    failed = [(i, code, text) for i, (code, text) in enumerate(zip(codes, outputs, strict=True)) if code]
    assert not failed, "\n".join(f"--- rank {i}: {code}\n{text}" for i, code, text in failed)
