"""The completions of a run on disk.

rollouts/step_N.parquet   one row per completion, with all data needed to retrain, regrade or read it
tokens/step_N.parquet     the train step's values for each token, one row per completion. They follow from rollouts
                          and weights, so no hash covers the file; a run goes on without it
evals/step_N.jsonl        the samples of version N's evaluation, one line per completion; `hone eval`: results.jsonl

SELECT text, reward, components['correctness'] FROM 'outputs/rollouts/*.parquet' WHERE outcome = 'wrong'  -- DuckDB
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.errors import UserError, first_line
from hone.extension import gathered
from hone.runs.files import dumps, open_file, write_file
from hone.runs.view import EVALS, evals_file, tokens_file

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

    from hone.types import Column, Columns, Group, Segment

COLUMNS = {"candidates": ("kept_ids", "kept_counts")} | {name: (name,) for name in gathered("COLUMNS", {})}
"""Column of a segment (`hone.types.Columns`) → its names in the file, for values and for counts. An extension's column
has only values.
"""
OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    # zstd finds what rows repeat (a group's prompt) by itself; dictionaries beside it only cost room.
    "use_dictionary": False,
    # The exponents of logprobs resemble each other, their last bits don't: apart, the exponents compress.
    "column_encoding": {f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in ("logprobs", *gathered("COLUMNS", {}))},
    # A fifth of a small step's file, and nothing needs them: the Parquet schema has the types.
    "write_statistics": False,
    "store_schema": False,
}


def schema(
    truncated: bool = False,
    mixed: bool = False,
    branched: bool = False,
    by_call: bool = False,
    columns: Sequence[str] = (),
) -> pyarrow.Schema:
    """Return columns and types. The files of all steps share them, so that they can be read as one table.

    The arguments add columns: `truncated` if sampling cuts off part of the distribution, `mixed` for several tasks,
    `branched` for an agent, `by_call` for rewards of each call, and `columns` of extensions.
    """
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    per_component = pa.map_(text, number)
    ids = [
        ("kept_ids", pa.list_(pa.int32())),  # ids that tokens were sampled among, ascending, token after token
        ("kept_counts", pa.list_(pa.int32())),  # how many of them each token has; 0 where not sampled
    ]
    calls = [
        ("call_rewards", pa.list_(number)),  # of its turns, where each call has its own
        ("call_advantages", pa.list_(pa.float32())),  # of its turns, where a call of its group has a reward of its own
    ]
    return pa.schema(
        [
            ("step", pa.int32()),  # the step that sampled it
            ("draw", pa.int64()),  # run-wide index of the draw of its example: the ledger's key
            ("group", pa.int32()),  # index of the group within the step
            ("sample_id", text),
            ("example_id", text),
            ("token_ids", pa.list_(pa.int32())),  # prompt and completion, exactly as sampled
            ("sampled_mask", pa.list_(pa.bool_())),  # True where the policy chose the token
            ("logprobs", pa.list_(pa.float32())),  # natural log, of the sampling distribution; 0 where not sampled
            ("versions", pa.list_(pa.int32())),  # policy version that produced the token; -1 where not sampled
            ("reward", number),  # null when the grader failed
            ("components", per_component),  # value before its weight; absent when it abstained
            ("weights", per_component),
            ("outcome", text),
            ("detail", text),  # why, in words
            ("advantage", pa.float32()),  # where calls have their own, their mean
            ("state", text),  # what became of it: trained, filtered, failed, surplus; in older runs also cut
            ("stop_reason", text),
            ("prompt", text),  # messages before the completion, as JSON
            ("text", text),  # the completion; of several turns their texts, with an empty line between them
            ("answer", text),
            ("info", text),  # the example's, as JSON
            ("completion", text),  # of a task of several turns: the messages after the prompt, as JSON
            *(ids if truncated else []),
            *([("env", text)] if mixed else []),  # the name of the task, of several
            *((name, pa.list_(pa.float32())) for name in columns),  # 0 where not sampled
            *([("branches", text)] if branched else []),  # of an agent's sample: its further trajectories, as JSON
            *(calls if by_call else []),
        ]
    )


def group_rows(step: int, index: int, group: Group, state: str) -> list[dict[str, Any]]:
    """Return the rows of group `index` of a step. Their state is `state`, but `failed` for samples without a grade."""
    import numpy as np

    shared = {
        "step": step,
        "draw": group.draw,
        "group": index,
        "example_id": group.example.id,
        "answer": group.example.answer,
        "info": json.dumps(group.example.info, ensure_ascii=False, default=str),
    }
    shared |= {"env": group.env} if group.env else {}
    length = len(group.example.prompt)
    rows = []
    calls_of = group.call_advantages or [None] * len(group.scores)
    for rollout, score, advantage, calls in zip(group.rollouts, group.scores, group.advantages, calls_of, strict=True):
        first, further = rollout.first, rollout.segments[1:]
        of_calls = np.concatenate(calls) if calls else ()
        failed = score.outcome.is_failure
        rows.append(
            shared
            | {
                "sample_id": rollout.sample_id,
                "token_ids": first.token_ids.astype("int32"),  # Arrow copies its own type, and converts one by one
                "sampled_mask": first.sampled_mask,
                "logprobs": first.logprobs,
                "versions": first.versions,
                "reward": None if failed else float(score.reward),
                "components": list(score.components.items()),
                "weights": list(score.weights.items()),
                "outcome": str(score.outcome),
                "detail": score.detail,
                "advantage": float(np.mean(of_calls) if len(of_calls) else advantage),
                "state": "failed" if failed else state,
                "stop_reason": rollout.stop_reason,
                "prompt": json.dumps(rollout.messages[:length], ensure_ascii=False),
                "text": rollout.completion_text,
                "completion": json.dumps(rollout.messages[length:], ensure_ascii=False)
                if rollout.state is not None or rollout.turns > 1
                else None,
            }
            | _on_disk(first.columns)
        )
        if first.turn_rewards is not None:
            rows[-1]["call_rewards"] = first.turn_rewards
        if calls is not None:
            rows[-1]["call_advantages"] = calls[0]
        if rollout.branches:
            lines = zip(further, calls[1:] if calls else [None] * len(further), strict=True)
            rows[-1]["branches"] = json.dumps([_branch(*line) for line in lines], ensure_ascii=False)
    return rows


def _branch(one: Segment, call_advantages: np.ndarray | None) -> dict[str, Any]:
    names = ("token_ids", "sampled_mask", "logprobs", "versions")
    branch = {name: getattr(one, name).tolist() for name in names}
    branch |= {"stop_reason": one.stop_reason, "messages": one.messages}
    branch |= {} if one.turn_rewards is None else {"call_rewards": one.turn_rewards.tolist()}
    branch |= {} if call_advantages is None else {"call_advantages": call_advantages.tolist()}
    return branch | {name: values.tolist() for name, values in _on_disk(one.columns).items()}


def _on_disk(columns: Columns) -> dict[str, np.ndarray]:
    from hone.types import Ragged

    found: dict[str, Any] = {}
    for name, column in columns.items():
        first, *counts = COLUMNS[name]
        found |= {first: column.values, counts[0]: column.counts} if isinstance(column, Ragged) else {first: column}
    return found


def columns_of(row: Mapping[str, Any]) -> dict[str, Column]:
    import numpy as np

    from hone.types import Ragged

    found: dict[str, Column] = {}
    for name, (first, *counts) in COLUMNS.items():
        if row.get(first) is not None:
            values = np.array(row[first], dtype=np.int32 if counts else np.float32)
            found[name] = Ragged(values, np.array(row[counts[0]], dtype=np.int32)) if counts else values
    return found


def write_rollouts(path: Path, rows: list[dict[str, Any]]) -> str:
    """Write rows as Parquet, 2 to 7 bytes a token; missing keys of `schema` are null. Return the file's SHA-256.

    Equal rows give equal bytes.
    """
    import pyarrow as pa

    optional, more = ("kept_ids", "env", "branches", "call_rewards"), gathered("COLUMNS", {})
    there = {name for row in rows for name in row}
    fields = schema(*(name in there for name in optional), columns=[name for name in more if name in there])
    for row in rows:
        assert row.keys() <= set(fields.names), f"unknown rollout columns {sorted(row.keys() - set(fields.names))}"
    as_pairs = lambda value: list(value.items()) if isinstance(value, dict) else value  # noqa: E731
    columns = [pa.array([as_pairs(row.get(field.name)) for row in rows], field.type) for field in fields]
    return _write_table(path, pa.Table.from_arrays(columns, schema=fields), OPTIONS)


def _write_table(path: Path, table: pyarrow.Table, options: dict[str, Any]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    content = sink.getvalue().to_pybytes()
    path.parent.mkdir(exist_ok=True)
    write_file(path, content)
    return hashlib.sha256(content).hexdigest()


def read_rollouts(path: Path, columns: Sequence[str] | None = None) -> pyarrow.Table:
    """Return a step's rollouts, or only some columns. Older runs have null as `completion`.

    Raises UserError if the file is damaged.
    """
    import pyarrow as pa

    columns = (
        schema(True, True, True, True, columns=list(gathered("COLUMNS", {}))).names
        if columns is None
        else list(columns)
    )
    table = _read_table(path, columns, "restore it from a copy")
    if "completion" in columns and "completion" not in table.column_names:
        table = table.append_column("completion", pa.nulls(len(table), pa.string()))
    return table


def _read_table(path: Path, columns: list[str] | None, remedy: str) -> pyarrow.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_file(path) as file:
        try:
            stored = pq.ParquetFile(file)
            return stored.read(columns and [name for name in columns if name in stored.schema_arrow.names])
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged ({first_line(error)}): {remedy}") from None


def write_tokens(folder: Path, step: int, rows: Sequence[dict[str, Any]]) -> None:
    """Write the token statistics of a step of the run in `folder`. Equal rows give equal bytes; about 5 bytes a token.

    Rows have `sample_id`, `entropies` (float16) and `trainer_logprobs` (float32): one number per sampled token, or None
    if the completion was not trained on.
    """
    import numpy as np
    import pyarrow as pa

    columns = {"sample_id": pa.array([row["sample_id"] for row in rows], pa.string())}
    for name, kind in (("entropies", "float16"), ("trainer_logprobs", "float32")):
        lists = [None if row[name] is None else np.asarray(row[name], kind) for row in rows]
        columns[name] = pa.array(lists, pa.list_(pa.from_numpy_dtype(kind)))
    # As for rollouts the exponents compress, if they lie together. DuckDB can't read float16 so.
    options = OPTIONS | {"column_encoding": {"trainer_logprobs.list.element": "BYTE_STREAM_SPLIT"}}
    _write_table(folder / tokens_file(step), pa.table(columns), options)


def read_tokens(folder: Path, step: int) -> pyarrow.Table | None:
    """Return a step's token statistics; None if not recorded. Raises UserError if the file is damaged."""
    path = folder / tokens_file(step)
    return _read_table(path, None, "delete it, nothing needs it") if path.exists() else None


def to_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [dumps(plain(row)) + "\n" for row in rows]


def as_read(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as they would be after writing and reading them."""
    return [json.loads(line) for line in to_lines(rows)]


def write_evaluation(folder: Path, version: int, rows: Sequence[dict[str, Any]]) -> str:
    """Write a version's samples into the run in `folder`. Return their SHA-256. Equal rows give equal bytes."""
    content = "".join(to_lines(rows)).encode()
    (folder / EVALS).mkdir(exist_ok=True)
    write_file(folder / evals_file(version), content)
    return hashlib.sha256(content).hexdigest()


def plain(value: Any) -> Any:
    """Convert `value` to JSON's types: dates (`info` from Parquet) to text, NaN and infinities to null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
