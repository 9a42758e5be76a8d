"""The command that goes on with a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.runs.spent import Spent


def resume_command(folder: Path, kind: str, *more: str, ranks: int = 1) -> str:
    """`hone rl @ outputs/config.toml --resume`, to paste: the run in `folder`, of this kind, and further words.

    Several `ranks` of SFT are started by torchrun; those of RL are a setting.
    """
    program = ["hone", kind]
    if ranks > 1 and kind == "sft":
        program = ["torchrun", "--nproc-per-node", str(ranks), "-m", "hone.trainer.sft"]
    return shlex.join([*program, "@", str(folder / "config.toml"), "--resume", *more])


def ranks_of(info: Mapping[str, Any]) -> int:
    """On how many ranks the run with this run.json trained last."""
    newest = info["resumes"][-1] if info.get("resumes") else info
    return newest.get("ranks", 1)


def larger_budget(limits: Mapping[str, Any], spent: Spent) -> list[str]:
    """Flags for twice the budget, or twice what is spent if that is more: `--budget.hours 4`."""
    used = {"hours": spent.seconds / 3600, "usd": spent.usd or 0.0, "tokens": spent.tokens}
    doubled = {name: 2 * max(limits[name], used[name]) for name in used if limits.get(name) is not None}
    return [word for name, value in doubled.items() for word in (f"--budget.{name}", _number(value))]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}"
