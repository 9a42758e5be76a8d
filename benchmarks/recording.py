"""Show a benchmark's result and write it to a file, and name the processor that it was measured on."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

WIDTH = 118


def show(result: Any, out: Path | None = None) -> None:
    """Print a result as JSON, and write it to `out` if there is one."""
    print(text(result))
    if out:
        keep(result, out)


def keep(result: Any, out: Path) -> None:
    """Write a result to `out` as JSON; its folder is made."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text(result) + "\n")


def text(value: Any, indent: int = 0, taken: int = 0) -> str:
    """Return a value as JSON: floats with six digits, and on one line what fits there beside `taken` characters."""
    flat = json.dumps(rounded(value))
    if not isinstance(value, (dict, list, tuple)) or not value or indent + taken + len(flat) <= WIDTH:
        return flat
    items = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    names = [("" if name is None else f"{json.dumps(str(name))}: ", one) for name, one in items]
    rows = [" " * (indent + 2) + name + text(one, indent + 2, len(name) + 1) for name, one in names]
    start, end = "{}" if isinstance(value, dict) else "[]"
    return start + "\n" + ",\n".join(rows) + "\n" + " " * indent + end


def rounded(value: Any) -> Any:
    """Return a copy of a value in which floats have six digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cpu_model() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
