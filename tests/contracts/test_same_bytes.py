"""Contract 1 between revisions: a change of the code does not change the bytes of a run.

`base` names the commit whose bytes these are. A change that alters them on purpose raises `NUMERICS`, and moves that
name to its own commit. `python tests/contracts/same_bytes.py REV` does all runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import same_bytes

RUNS = ("kl", "agent", "mix", "eval")


def test_runs_have_the_bytes_of_the_base(capsys: pytest.CaptureFixture[str]) -> None:
    base = Path(__file__).with_name("base").read_text().strip()
    found = subprocess.run(["git", "cat-file", "-e", f"{base}^{{commit}}"], cwd=same_bytes.ROOT, capture_output=True)
    if found.returncode:
        pytest.skip(f"this clone has no commit {base}: git fetch --unshallow")
    assert same_bytes.main([base, *RUNS]) == 0, capsys.readouterr().out


def test_a_difference_and_a_key_of_one_side_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    base, here = {"a": [0.1, float("nan")], "b": 1, "old": 2}, {"a": [0.1, float("nan")], "b": 1.0, "new": 3}
    assert list(same_bytes.differences(base, here)) == ["b: 1 there, 1.0 here", "old: only there", "new: only here"]
    assert list(same_bytes.differences({}, {})) == ["nothing was written"]
    monkeypatch.setattr(same_bytes, "ONE_SIDED", {"o*": "its reason"})
    assert list(same_bytes.differences(base, here)) == ["b: 1 there, 1.0 here", "new: only here"]
