"""Behaviours are counted by step, and begin where a hundredth of the completions shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import row, write_run

from hone.extensions.viewer.behaviours import behaviours
from hone.extensions.viewer.store import Store


def step(size: int, *texts: str) -> list[dict]:
    return [row(text) for text in (*texts, *["a plain text"] * (size - len(texts)))]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(
        write_run(
            tmp_path / "run",
            {
                0: step(200, "he was waiting there"),
                1: step(200, "so. WAIT, no", "two <answer>1</answer> or <answer>2</answer>"),
                4: step(200, "Hmm…", "let me double-check", "пять is five", "a mistake", "answers <answer>\n<answer>"),
            },
        )
    )


def test_shares_and_where_each_begins(store: Store) -> None:
    every = behaviours(store)
    assert every.steps.tolist() == [0, 1, 4] and every.completions == 600
    found = {one.marker.name: one for one in every.found}
    correction = found["correction"]
    assert correction.shares.tolist() == [0, 1 / 200, 3 / 200] and correction.begins == 4
    assert correction.highest == (4, 0.015)
    assert found["drafts"].shares.tolist() == [0, 1 / 200, 1 / 200] and found["drafts"].begins is None
    assert found["mixed"].shares.tolist() == [0, 0, 1 / 200] and found["non_ascii"].shares.tolist() == [0, 0, 2 / 200]


def test_files_that_come_and_go_are_counted(store: Store) -> None:
    behaviours(store)
    write_run(store.run.path, {5: step(100, "wait")})
    found = behaviours(store)
    assert found.steps.tolist() == [0, 1, 4, 5] and found.found[0].shares.tolist()[-1] == 0.01
    (store.run.path / "rollouts" / "step_000004.parquet").unlink()
    found = behaviours(store)
    assert found.steps.tolist() == [0, 1, 5] and found.found[0].begins == 5


def test_a_damaged_file_costs_a_sentence(store: Store) -> None:
    (store.run.path / "rollouts" / "step_000001.parquet").write_bytes(b"nothing")
    found = behaviours(store)
    assert found.steps.tolist() == [0, 4] and "step_000001.parquet is left out" in found.skipped[0]


def test_a_run_without_completions(tmp_path: Path) -> None:
    found = behaviours(Store(write_run(tmp_path / "run", {})))
    assert found.completions == 0 and all(one.begins is None for one in found.found)
