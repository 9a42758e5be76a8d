"""What tests of the core say and do only where an extension is there; `@pytest.mark.needs(NAME)` leaves out a test."""

from __future__ import annotations

from pathlib import Path

from hone.cli import main
from hone.extension import extensions

QUIET = {key: False for key, name in {"audit": "audit", "report": "viewer"}.items() if name in extensions()}
"""Settings of a run whose task is not tried beforehand, and that has no report."""
QUIETLY = [f"--no-{key}" for key in QUIET]
NO_AUDIT = ["--no-audit"] if "audit" in QUIET else []


def reproduced(run: Path, steps: int) -> None:
    """`hone verify`, and for RL `hone replay`, find the run equal."""
    if "reproduce" in extensions():
        assert main(["verify", str(run), "--steps", str(steps)]) == 0
        assert not (run / "rollouts").exists() or main(["replay", str(run)]) == 0
