"""Scripts on the fake GPU, each in a process of its own: it patches torch.cuda for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def report(script: str, *args: str, **variables: str | None) -> Any:
    """Run the script, and return what it prints last. `variables`: of the environment, None for one that is not set."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | variables
    done = subprocess.run(
        [sys.executable, str(HERE / script), *args],
        capture_output=True,
        text=True,
        env={name: value for name, value in env.items() if value is not None},
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])
