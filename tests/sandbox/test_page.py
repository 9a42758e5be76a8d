"""docs/sandbox.md: its Python runs as printed, and its numbers are those of the code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from attempts import ATTEMPTS

from hone.environments import load_environment
from hone.grading import Limits

pytestmark = pytest.mark.sandbox
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sandbox.md").read_text()
CALLS, TASK = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_calls_of_the_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(CALLS, "sandbox.md", "exec"), {})
    told = [line.split("# ")[1].rstrip("…") for line in CALLS.splitlines() if "# " in line]
    printed = capsys.readouterr().out.replace("\n\n", "\n").splitlines()
    assert len(printed) == len(told) == 2
    assert all(line.startswith(start) for line, start in zip(printed, told, strict=True)), printed


def test_the_task_of_the_page_grades(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "doubles", raising=False)
    (tmp_path / "doubles.py").write_text(TASK)
    env = load_environment("doubles")
    (example,) = env.split("train")
    programs = ["print(2 * int(input()))", "print(8)", "print(8 / 0)", "while True: pass"]
    scores = [env.grade(example, f"So:\n```python\n{program}\n```") for program in programs]
    assert [(score.reward, score.outcome) for score in scores] == [
        (1.0, "correct"),
        (0.5, "wrong"),
        (0.0, "wrong"),
        (0.0, "wrong"),
    ]
    assert env.grade(example, "twice that number").outcome == "unparsable"


def test_the_limits_of_the_page_are_the_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", PAGE, re.MULTILINE)
    assert {name: float(value) for name, value in rows} == vars(Limits())
    assert f"tries {len(ATTEMPTS)} ways out" in PAGE
