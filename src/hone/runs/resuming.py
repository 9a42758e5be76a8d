"""The command that goes on with a run."""

from __future__ import annotations

import shlex
from pathlib import Path


def resume_command(folder: Path, kind: str, *more: str) -> str:
    """`hone rl @ outputs/config.toml --resume`, to paste: the run in `folder`, of this kind, and further words."""
    return shlex.join(["hone", kind, "@", str(folder / "config.toml"), "--resume", *more])
