"""What benchmarks share: a result is shown, and kept as a file; the processor that it is of."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any


def show(result: Any, out: Path | None = None) -> None:
    """Print a result as JSON, and write it to `out` if there is one."""
    print(json.dumps(result, indent=2))
    if out:
        keep(result, out)


def keep(result: Any, out: Path) -> None:
    """Write a result to `out` as JSON; its folder is made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")


def cpu_model() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
