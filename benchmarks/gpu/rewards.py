"""A cheap reward for models with random weights."""

import os
import time
from pathlib import Path
from typing import Any

HOLD = "HONE_HOLD"
"""Names a file; once it is there, grading waits for ever, so that the run can be killed before its end."""


def letters(completion: Any) -> float:
    """Reward a completion by its letters: in hardly two of a group alike."""
    while HOLD in os.environ and Path(os.environ[HOLD]).exists():
        time.sleep(0.01)
    return sum(map(ord, completion[-1]["content"])) % 97 / 97
