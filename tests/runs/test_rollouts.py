"""Rollouts come back as they were, and equal rows are equal bytes."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from hone.runs.rollouts import group_rows, read_rollouts, schema, write_rollouts
from hone.types import Example, Group, Outcome, Score, Trajectory


def trajectory(seed: int, length: int = 5) -> Trajectory:
    rng = np.random.default_rng(seed)
    mask = np.arange(length) >= 2
    return Trajectory(
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
    return Group(example, 41, [trajectory(i) for i in range(3)], scores, np.array([0.45, -0.45, 0], np.float32))


def test_values_round_trip(tmp_path, group):
    write_rollouts(tmp_path / "r.parquet", group_rows(7, 2, group, "trained"))
    table = read_rollouts(tmp_path / "r.parquet")
    assert table.schema.equals(schema())
    rows = table.to_pylist()
    for i, row in enumerate(rows):
        original = trajectory(i)
        assert row["token_ids"] == original.token_ids.tolist()
        assert row["sampled_mask"] == original.sampled_mask.tolist()
        assert np.array_equal(np.float32(row["logprobs"]), original.logprobs)
        assert row["versions"] == original.versions.tolist()
        assert (row["step"], row["draw"], row["group"], row["sample_id"]) == (7, 41, 2, f"7-{i}")
        assert row["text"] == f"ba {i} é" and row["answer"] == "ba" and row["example_id"] == group.example.id
        assert json.loads(row["prompt"]) == group.example.prompt and json.loads(row["info"]) == group.example.info
        assert dict(row["weights"]) == {"format": 0.1, "correct": 0.9}
    assert [row["reward"] for row in rows] == [1.0, 0.1, None]
    assert [dict(row["components"]) for row in rows] == [{"format": 1.0, "correct": 1.0}, {"format": 1.0}, {}]
    assert [row["outcome"] for row in rows] == ["correct", "wrong", "grader_error"]
    assert [row["state"] for row in rows] == ["trained", "trained", "failed"]
    assert np.array_equal(np.float32([row["advantage"] for row in rows]), group.advantages)
    assert [row["stop_reason"] for row in rows] == ["stop", "length", "length"]
    assert rows[2]["detail"] == "ZeroDivisionError"


def test_the_messages_of_several_turns_are_kept_and_those_of_one_follow_from_its_text(tmp_path, group):
    said = [
        {
            "role": "assistant",
            "content": "a <tool_call>",
            "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "é", "tool_call_id": "1"},
        {"role": "assistant", "content": "b"},
    ]
    first = group.trajectories[0]
    mask = np.array([False, True, True, False, True])
    talk = replace(first, messages=[*group.example.prompt, *said], sampled_mask=mask, state={})
    rows = group_rows(7, 2, replace(group, trajectories=[talk, first, first]), "trained")
    write_rollouts(tmp_path / "r.parquet", rows)
    row, other, _ = read_rollouts(tmp_path / "r.parquet").to_pylist()
    assert json.loads(row["prompt"]) == group.example.prompt and json.loads(row["completion"]) == said
    assert row["text"] == "a <tool_call>\n\nb"
    assert other["completion"] is None and other["text"] == "ba 0 é"


def test_equal_rows_give_equal_bytes(tmp_path, group):
    for name in ("a", "b"):
        write_rollouts(tmp_path / name, group_rows(7, 2, group, "trained"))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    write_rollouts(tmp_path / "c", group_rows(8, 2, group, "trained"))
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()
    assert pq.ParquetFile(tmp_path / "a").metadata.row_group(0).column(0).compression == "ZSTD"


def test_files_of_all_steps_are_one_table(tmp_path, group):
    write_rollouts(tmp_path / "0.parquet", [])
    write_rollouts(tmp_path / "1.parquet", [{"step": 1, "text": "x", "components": {"a": 1.0}}])
    write_rollouts(tmp_path / "2.parquet", group_rows(2, 0, group, "filtered"))
    table = pq.read_table(tmp_path)
    assert table.num_rows == 4 and table.schema.names == schema().names
    assert table["components"].to_pylist()[0] == [("a", 1.0)]
