"""On how many processes a run was trained: run.json has it for its beginning and for each resume, if it was not one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def most_ranks(info: Mapping[str, Any]) -> int:
    """The most processes that any step of the run was trained on, of those that no resume rolled back."""
    parts = [(0, info.get("ranks", 1))]
    for resume in info.get("resumes", []):
        parts = [part for part in parts if part[0] < resume["step"]] + [(resume["step"], resume.get("ranks", 1))]
    return max(ranks for _, ranks in parts)
