"""Rollouts come back as they were, and equal rows are equal bytes."""

import json
import math
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from rollouts_made import rollout_of, with_first

from hone.runs.files import sha256
from hone.runs.rollouts import columns_of, group_rows, read_rollouts, schema, write_rollouts
from hone.types import Columns, Example, Group, Outcome, Ragged, Rollout, Score, joined


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


def test_the_messages_of_several_turns_are_kept(tmp_path, group):
    call = {"function": {"name": "f", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "content": "a <tool_call>", "tool_calls": [call]},
        {"role": "tool", "content": "é", "tool_call_id": "1"},
        {"role": "assistant", "content": "b"},
    ]
    mask = np.array([False, True, True, False, True])
    first = group.rollouts[0]
    talk = replace(with_first(first, sampled_mask=mask), messages=[*group.example.prompt, *turns], state={})
    write_rollouts(tmp_path / "r", group_rows(7, 2, replace(group, rollouts=[talk, first, first]), "trained"))
    row = read_rollouts(tmp_path / "r").to_pylist()[0]
    assert json.loads(row["prompt"]) == group.example.prompt and json.loads(row["completion"]) == turns
    assert row["text"] == "a <tool_call>\n\nb"


def test_kept_ids_come_back_and_have_columns_only_where_there_are_any(tmp_path, group):
    def columns(*sets: list[int]) -> Columns:
        return joined([(2, {}), (len(sets), {"candidates": Ragged.of(sets)})])

    kept = [columns(*(sorted({int(id), 7, 9}) for id in r.token_ids[2:].tolist())) for r in group.rollouts]
    cut = replace(group, rollouts=[with_first(r, columns=k) for r, k in zip(group.rollouts, kept, strict=True)])
    write_rollouts(tmp_path / "cut", group_rows(7, 2, cut, "trained"))
    table = read_rollouts(tmp_path / "cut")
    assert table.schema.equals(schema(truncated=True)) and table.schema.names[:-2] == schema().names
    for row, one in zip(table.to_pylist(), kept, strict=True):
        assert row["kept_ids"] == one["candidates"].values.tolist()
        assert row["kept_counts"] == one["candidates"].counts.tolist() == [0, 0, 3, 3, 3]
        back = columns_of(row)["candidates"]
        assert back.values.tolist() == row["kept_ids"] and back.counts.tolist() == row["kept_counts"]
    with pytest.raises(AssertionError, match="not one of its candidates"):
        with_first(group.rollouts[0], columns=columns([1], [2], [3]))


def test_calls_with_rewards_of_their_own_have_their_own_advantages(tmp_path, group):
    first, second, failed = group.rollouts
    segments = replace(second.first, turn_rewards=np.array([1.5])), replace(first.first, turn_rewards=np.array([2.5]))
    second = replace(second, segments=segments, branches=True)
    calls = [[np.float32([-1])], [np.float32([0.25]), np.float32([1])], [np.float32([0])]]
    calls = replace(group, rollouts=[first, second, failed], call_advantages=calls)
    write_rollouts(tmp_path / "calls", group_rows(7, 2, calls, "trained"))
    table = read_rollouts(tmp_path / "calls")
    assert table.schema.equals(schema(branched=True, by_call=True))
    rows = table.to_pylist()
    assert [row["call_rewards"] for row in rows] == [None, [1.5], None]
    assert [row["call_advantages"] for row in rows] == [[-1.0], [0.25], [0.0]]
    assert [row["advantage"] for row in rows] == [-1.0, 0.625, 0.0], "the mean of its calls"
    (branch,) = json.loads(rows[1]["branches"])
    assert (branch["call_rewards"], branch["call_advantages"]) == ([2.5], [1.0])


def test_files_of_all_steps_are_one_table(tmp_path, group):
    write_rollouts(tmp_path / "0.parquet", [])
    write_rollouts(tmp_path / "1.parquet", [{"step": 1, "text": "x", "components": {"a": 1.0}}])
    write_rollouts(tmp_path / "2.parquet", group_rows(2, 0, group, "filtered"))
    table = pq.read_table(tmp_path)
    assert table.num_rows == 4 and table.schema.names == schema().names
    assert table["components"].to_pylist()[0] == [("a", 1.0)]
