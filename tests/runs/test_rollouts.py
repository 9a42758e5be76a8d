"""Rollouts come back as they were, and equal rows are equal bytes."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest
from rollouts_made import rollout_of

from hone.runs.files import sha256
from hone.runs.rollouts import group_rows, read_rollouts, schema, write_rollouts
from hone.types import Example, Group, Outcome, Rollout, Score


def rollout(seed: int, length: int = 5) -> Rollout:
    rng = np.random.default_rng(seed)
    mask = np.arange(length) >= 2
    return rollout_of(
        token_ids=rng.integers(0, 150_000, length),
        sampled_mask=mask,
        logprobs=np.where(mask, rng.standard_normal(length), 0).astype(np.float32),
        versions=np.where(mask, 7, -1).astype(np.int32),
        messages=[{"role": "user", "content": "Reverse: ab\n"}, {"role": "assistant", "content": f"ba {seed} é"}],
        stop_reason="length" if seed else "stop",
        sample_id=f"7-{seed}",
    )


@pytest.fixture
def group() -> Group:
    weights = {"format": 0.1, "correct": 0.9}
    scores = [
        Score(1.0, {"format": 1.0, "correct": 1.0}, weights, Outcome.CORRECT),
        Score(0.1, {"format": 1.0}, weights, Outcome.WRONG, detail='expected "ba"'),
        Score(math.nan, {}, weights, Outcome.GRADER_ERROR, detail="ZeroDivisionError", seconds=1.5),
    ]
    example = Example([{"role": "user", "content": "Reverse: ab\n"}], answer="ba", info={"n": 2, "é": [1.5]})
    return Group(example, 41, [rollout(i) for i in range(3)], scores, np.array([0.45, -0.45, 0], np.float32))


def test_values_round_trip_and_equal_rows_give_equal_bytes(tmp_path, group):
    digest = write_rollouts(tmp_path / "r.parquet", group_rows(7, 2, group, "trained"))
    assert digest == write_rollouts(tmp_path / "again.parquet", group_rows(7, 2, group, "trained"))
    assert digest != write_rollouts(tmp_path / "other.parquet", group_rows(8, 2, group, "trained"))
    assert digest == sha256(tmp_path / "r.parquet") == sha256(tmp_path / "again.parquet")
    assert pq.ParquetFile(tmp_path / "r.parquet").metadata.row_group(0).column(0).compression == "ZSTD"
    table = read_rollouts(tmp_path / "r.parquet")
    assert table.schema.equals(schema())
    rows = table.to_pylist()
    for i, row in enumerate(rows):
        original = rollout(i)
        for name in ("token_ids", "sampled_mask", "versions"):
            assert row[name] == getattr(original, name).tolist()
        assert np.array_equal(np.float32(row["logprobs"]), original.logprobs)
        assert (row["step"], row["draw"], row["group"], row["sample_id"]) == (7, 41, 2, f"7-{i}")
        assert row["text"] == f"ba {i} é" and row["answer"] == "ba" and row["example_id"] == group.example.id
        assert json.loads(row["prompt"]) == group.example.prompt and json.loads(row["info"]) == group.example.info
        assert dict(row["weights"]) == {"format": 0.1, "correct": 0.9} and row["completion"] is None
    columns = {name: [row[name] for row in rows] for name in ("reward", "outcome", "state", "stop_reason", "detail")}
    assert columns == {
        "reward": [1.0, 0.1, None],
        "outcome": ["correct", "wrong", "grader_error"],
        "state": ["trained", "trained", "failed"],
        "stop_reason": ["stop", "length", "length"],
        "detail": ["", 'expected "ba"', "ZeroDivisionError"],
    }
    assert [dict(row["components"]) for row in rows] == [{"format": 1.0, "correct": 1.0}, {"format": 1.0}, {}]
    assert np.array_equal(np.float32([row["advantage"] for row in rows]), group.advantages)


def test_files_of_all_steps_are_one_table(tmp_path, group):
    write_rollouts(tmp_path / "0.parquet", [])
    write_rollouts(tmp_path / "1.parquet", [{"step": 1, "text": "x", "components": {"a": 1.0}}])
    write_rollouts(tmp_path / "2.parquet", group_rows(2, 0, group, "filtered"))
    table = pq.read_table(tmp_path)
    assert table.num_rows == 4 and table.schema.names == schema().names
    assert table["components"].to_pylist()[0] == [("a", 1.0)]
