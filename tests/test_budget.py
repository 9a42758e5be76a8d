"""`make check` fails if the project grew; what is written down only falls."""

from __future__ import annotations

import json
from pathlib import Path

import budget
import circles
import pytest


@pytest.mark.parametrize(
    ("lines", "words", "flags", "code", "recorded"),
    [
        (100, 10, [], 0, 100),
        (101, 10, [], 1, 100),
        (100, 11, ["--slice"], 1, 100),
        (900, 10, ["--slice"], 0, 100),
        (901, 10, ["--slice"], 1, 100),
        (900, 10, ["--write"], 1, 100),
        (99, 10, ["--write"], 0, 99),
    ],
)
def test_numbers_only_fall(
    lines: int, words: int, flags: list[str], code: int, recorded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record := tmp_path / "budget.json").write_text(json.dumps({"lines of src": 100, "words of docs": 10}))
    monkeypatch.setattr(budget, "RECORD", record)
    monkeypatch.setattr(budget, "measure", lambda: {"lines of src": lines, "words of docs": words})
    assert budget.main(flags) == code
    assert json.loads(record.read_text())["lines of src"] == recorded


def test_circles_and_imports_against_the_order_are_found() -> None:
    found = {
        "config/rl.py": {"model/hf.py", "errors.py"},
        "model/hf.py": {"model/lora.py", "extensions/chat/config.py"},
        "model/lora.py": {"model/head.py"},
        "model/head.py": {"model/hf.py", "config/rl.py"},
        "extensions/chat/config.py": {"commands/rl.py"},
        "commands/rl.py": set(),
        "errors.py": set(),
    }
    assert circles.circles(found) == [["config/rl.py", "model/head.py", "model/hf.py", "model/lora.py"]]
    wrong = [("config/rl.py", "model/hf.py"), ("model/hf.py", "extensions/chat/config.py")]
    assert circles.against_the_order(found) == wrong
