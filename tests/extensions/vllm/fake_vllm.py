"""An environment that seems to have vLLM."""

from __future__ import annotations

import sys
from pathlib import Path


def fake_environment(folder: Path, distribution: str, version: str) -> Path:
    """A Python that finds a package `vllm` of that distribution."""
    packages = folder / "packages"
    (packages / "vllm").mkdir(parents=True)
    (packages / "vllm" / "__init__.py").touch()
    info = packages / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python
