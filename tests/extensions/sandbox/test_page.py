"""The sandbox in docs/tasks.md: its Python runs as printed, and its numbers are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "tasks.md").read_text().split("## The sandbox")[1]
(CALLS,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_calls_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CALLS, "tasks.md", "exec"), {})
    shown = [line.split("# ")[1].rstrip("…") for line in CALLS.splitlines() if "# " in line]
    printed = capsys.readouterr().out.replace("\n\n", "\n").splitlines()
    assert len(printed) == len(shown) == 2
    assert all(line.startswith(start) for line, start in zip(printed, shown, strict=True)), printed
