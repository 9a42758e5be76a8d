"""Converts the sequences of a train step to flat arrays for transports, and back, bit for bit."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np

from hone.trainer.packing import Batch, Sequence
from hone.types import Column, Counts, Ragged, joined, split

_COLUMN = "column/"


def to_arrays(batch: Batch) -> dict[str, np.ndarray]:
    """Return a batch as named arrays. The S sequences are concatenated to N tokens.

    One value per sequence, `[S]`: `lengths`, `groups`, `samples` int64 and `advantages` float64; if sequences have
    rewards, `rewards` float64 and `pools` int64.

    One value per token, `[N]`: `token_ids` int32 and `loss_mask` bool; if sequences have logprobs, `logprobs` float32.
    If tokens have separate advantages, `token_advantages` float32 replaces `advantages`.

    `counts` `[4]` int64: the filtered tokens, sequences and prompts, and the tokens of the longest completion.

    A column NAME is `column/NAME` `[N]`. A ragged column has two arrays: `column/NAME/values`, and
    `column/NAME/counts` `[N]`, the number of values of each token.
    """
    sequences = batch.sequences

    def flat(parts: list[np.ndarray], dtype: type) -> np.ndarray:
        joined = np.concatenate([np.zeros(0, dtype), *parts])
        narrowed = joined.astype(dtype)
        assert np.array_equal(narrowed, joined, equal_nan=joined.dtype.kind == "f"), f"beyond {narrowed.dtype}"
        return narrowed

    def each(values: list[float], dtype: type) -> np.ndarray:
        return np.array(values, dtype=dtype)

    arrays = {
        "counts": np.array([*astuple(batch.filtered), batch.longest], dtype=np.int64),
        "lengths": each([len(s) for s in sequences], np.int64),
        "groups": each([s.group for s in sequences], np.int64),
        "samples": each([s.sample for s in sequences], np.int64),
        "token_ids": flat([s.token_ids for s in sequences], np.int32),
        "loss_mask": flat([s.loss_mask for s in sequences], np.bool_),
    }
    if any(np.ndim(s.advantage) for s in sequences):
        arrays["token_advantages"] = flat([np.broadcast_to(s.advantage, len(s)) for s in sequences], np.float32)
    else:
        arrays["advantages"] = each([float(s.advantage) for s in sequences], np.float64)
    logprobs = [s.logprobs for s in sequences if s.logprobs is not None]
    assert len(logprobs) in (0, len(sequences)), "only some have logprobs"
    if logprobs:
        arrays["logprobs"] = flat(logprobs, np.float32)
    for name, column in joined([(len(s), s.columns) for s in sequences]).items():
        ragged = isinstance(column, Ragged)
        parts = {"/values": column.values, "/counts": column.counts} if ragged else {"": column}
        arrays |= {f"{_COLUMN}{name}{part}": values for part, values in parts.items()}
    rewards = [s.reward for s in sequences if s.reward is not None]
    assert len(rewards) in (0, len(sequences)), "only some have rewards"
    if rewards:
        arrays |= {"rewards": each(rewards, np.float64), "pools": each([s.pool for s in sequences], np.int64)}
    return arrays


def from_arrays(arrays: dict[str, np.ndarray]) -> Batch:
    """Return the batch that `to_arrays` converted, with token ids as int64."""
    *filtered, longest = arrays["counts"].tolist()
    cuts = np.cumsum(arrays["lengths"])[:-1]

    def cut(name: str) -> list[np.ndarray] | list[None]:
        return np.split(arrays[name], cuts) if name in arrays else [None] * len(arrays["lengths"])

    if not len(arrays["lengths"]):
        return Batch([], Counts(*filtered), longest)
    found: dict[str, Column] = {}
    for name in {key.split("/")[1] for key in arrays if key.startswith(_COLUMN)}:
        key = f"{_COLUMN}{name}"
        found[name] = arrays[key] if key in arrays else Ragged(arrays[f"{key}/values"], arrays[f"{key}/counts"])
    count = len(arrays["lengths"])
    columns = zip(
        np.split(arrays["token_ids"].astype(np.int64), cuts),
        np.split(arrays["loss_mask"], cuts),
        cut("logprobs"),
        cut("token_advantages") if "token_advantages" in arrays else arrays["advantages"].tolist(),
        arrays["groups"].tolist(),
        arrays["samples"].tolist(),
        [None] * count,
        split(found, arrays["lengths"]),
        arrays["rewards"].tolist() if "rewards" in arrays else [None] * count,
        arrays["pools"].tolist() if "pools" in arrays else [0] * count,
        strict=True,
    )
    sequences = [Sequence(*column) for column in columns]
    return Batch(sequences, Counts(*filtered), longest)
