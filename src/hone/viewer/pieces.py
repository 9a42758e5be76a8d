"""The text of a completion, token by token, and what the run knows of each: logprob, entropy, gap, advantage.

A page gets runs of tokens of one colour (`spans`), not an element a token: a long text stays light.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.pages import visible
from hone.runs.reader import Run
from hone.viewer.vocabulary import Piece, Vocabulary


@dataclass(frozen=True)
class Quantity:
    """What tokens can be coloured by: `edges` part its levels; of a signed one both sides of 0 have levels."""

    name: str
    title: str
    unit: str
    edges: tuple[float, ...]
    signed: bool = False

    def levels(self, values: np.ndarray) -> np.ndarray:
        """Of each value, 0 (plain, or NaN) to the number of edges; negative on the negative side of a signed one."""
        found = np.searchsorted(self.edges, np.abs(np.nan_to_num(values)), side="right")
        return np.where(values < 0, -found, found) if self.signed else found

    def legend(self) -> list[tuple[int, str]]:
        """Each level with its range in words."""
        ends = [f"{edge:g}" for edge in self.edges]
        ranges = [f"below {ends[0]}", *(f"{a} to {b}" for a, b in itertools.pairwise(ends)), f"{ends[-1]} and more"]
        if not self.signed:
            return list(enumerate(ranges))
        low = [(-i, f"−{ranges[i]}".replace(" to ", " to −")) for i in range(len(ranges) - 1, 0, -1)]
        return [*low, (0, f"below {ends[0]} either way"), *((i, f"+{ranges[i]}") for i in range(1, len(ranges)))]


QUANTITIES = {
    "logprob": Quantity(
        "logprob", "surprise: minus the logprob that the sampler gave the token", "nats", (0.1, 0.5, 1, 2, 4, 8)
    ),
    "entropy": Quantity(
        "entropy", "entropy of the distribution that the token came from", "nats", (0.1, 0.3, 0.7, 1.2, 2, 3)
    ),
    "gap": Quantity(
        "gap", "gap: the trainer's logprob minus the sampler's", "nats", (0.001, 0.005, 0.02, 0.1, 0.5), True
    ),
    "advantage": Quantity(
        "advantage", "advantage: which way training pushed the token", "", (0.01, 0.25, 0.5, 1, 2), True
    ),
}
"""By name in the address. The surprise is what `logprob` is coloured by; values shown are logprobs."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a completion from the first sampled one on: pieces of text, and values for each piece.

    `prompt` is the text before it, as the policy read it: with the template, and the tools that it offers.

    A value is NaN where there is none. Of several tokens that are one character together, logprob and gap are sums, the
    entropy is the largest. `missing` says of each quantity that has no value why. `sampled` marks pieces of the policy.
    """

    pieces: list[Piece]
    first: int
    ids: np.ndarray
    sampled: np.ndarray
    values: dict[str, np.ndarray]
    missing: dict[str, str] = field(default_factory=dict)
    prompt: str = ""

    def turns(self) -> list[range]:
        """The runs of pieces that the policy sampled, in order."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.sampled.astype(np.int8), [0]])))
        return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


@dataclass(frozen=True)
class Span:
    """A run of pieces of one colour: their text, their level, the index of the first."""

    text: str
    level: int
    first: int
    special: bool


def read_tokens(run: Run, row: dict[str, Any], vocabulary: Vocabulary) -> Tokens:
    """The tokens of a completion (a row of `Store.sample`). UserError if its columns don't fit each other."""
    ids, mask, logprobs = (np.asarray(row[name] or ()) for name in ("token_ids", "sampled_mask", "logprobs"))
    if not len(ids) == len(mask) == len(logprobs):
        raise UserError("tokens are not coloured: the row has not as many logprobs as tokens")
    mask = mask.astype(bool)
    first = int(mask.argmax()) if mask.any() else len(ids)
    prompt = "".join(piece.text for piece in vocabulary.pieces([int(token) for token in ids[:first]]))
    ids, mask = ids[first:], mask[first:]
    pieces = vocabulary.pieces([int(token) for token in ids])
    measured, missing = _measured(run, row, int(mask.sum()))
    by_token = {"logprob": np.where(mask, logprobs[first:].astype(float), np.nan)}
    for name in ("entropy", "trainer_logprob"):
        by_token[name] = np.full(len(ids), np.nan)
        if measured.get(name) is not None:
            by_token[name][mask] = measured[name]
    by_token["gap"] = by_token.pop("trainer_logprob") - by_token["logprob"]
    trained = row.get("state") == "trained"
    by_token["advantage"] = np.where(mask & trained, row.get("advantage") or 0.0, np.nan)
    if not trained:
        missing["advantage"] = f"it was not trained on ({row.get('state') or 'its state is not known'})"
    starts = np.array([piece.start for piece in pieces], dtype=int)
    merge = {"logprob": np.add, "gap": np.add, "entropy": np.fmax, "advantage": np.fmax}
    values = {name: _by_piece(merge[name], array, starts) for name, array in by_token.items()}
    sampled = mask[starts] if len(starts) else np.zeros(0, bool)
    return Tokens(pieces, first, ids, sampled, values, missing, prompt)


def _by_piece(merge: Any, values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return merge.reduceat(values, starts) if len(starts) else np.zeros(0)


def _measured(run: Run, row: dict[str, Any], sampled: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What the train step noted of the sampled tokens, and why something is not there."""
    wanted = {"entropy": "entropies", "trainer_logprob": "trainer_logprobs"}

    def without(why: str) -> tuple[dict[str, Any], dict[str, str]]:
        return {}, {"entropy": why, "gap": why}

    try:
        table = run.token_stats(row["step"])
    except (UserError, OSError) as error:
        return without(f"what the train step noted cannot be read: {error}")
    if table is None:
        return without("the train step noted nothing: it was not recorded (`trainer.record_tokens`)")
    if row["row"] >= len(table):
        return without(f"tokens/ has no row {row['row']} of this step")
    noted = table.slice(row["row"], 1).to_pylist()[0]
    if noted.get("sample_id") != row["sample_id"]:
        return without("tokens/ has another completion in this row: it is not of this run")
    found = {name: noted.get(column) for name, column in wanted.items()}
    if all(values is None for values in found.values()):
        state = row.get("state") or "its state is not known"
        cut = "it was cut by its limit, and orchestrator.truncated = mask"
        return without(f"it was not trained on ({cut if state == 'trained' else state})")
    if any(values is not None and len(values) != sampled for values in found.values()):
        return without("tokens/ has not as many values as tokens were sampled")
    return {name: np.asarray(values, dtype=float) for name, values in found.items() if values is not None}, {}


def levels(tokens: Tokens, name: str) -> np.ndarray:
    """The level of each piece by a quantity; all 0 for a name that is none."""
    quantity = QUANTITIES.get(name)
    return np.zeros(len(tokens.pieces), int) if quantity is None else quantity.levels(tokens.values[name])


def spans(tokens: Tokens, which: Sequence[int], level: np.ndarray, white: bool = False) -> list[Span]:
    """The pieces `which` as runs of one colour; with `white`, spaces and ends of lines are shown."""
    made: list[Span] = []
    for key, run in itertools.groupby(which, lambda i: (int(level[i]), tokens.pieces[i].special)):
        indices = list(run)
        text = "".join(_piece_shown(tokens.pieces[i].text, white) for i in indices)
        made.append(Span(text, key[0], indices[0], key[1]))
    return made


def shown(text: str, white: bool) -> str:
    """A text as it is displayed."""
    text = visible(text)
    return text.replace("\t", "→\t").replace(" ", "·").replace("\n", "⏎\n") if white else text


_piece_shown = lru_cache(maxsize=50_000)(shown)
"""The same of a token, which comes again and again."""


def for_script(tokens: Tokens, which: Sequence[int], white: bool = False) -> dict[str, Any]:
    """What the page's script needs of the pieces `which`, as JSON: columns in their order.

    `length` counts UTF-16 units of what is displayed, as a browser does; `ids` has a list for each piece; `values` of
    a quantity that is not known are empty.
    """
    texts = [_piece_shown(tokens.pieces[i].text, white) for i in which]
    ids = tokens.ids.tolist()
    found = np.asarray(which, dtype=int)
    return {
        "first": tokens.first,
        "start": [tokens.pieces[i].start for i in which],
        "length": [_units(text) for text in texts],
        "ids": [ids[(p := tokens.pieces[i]).start : p.start + p.count] for i in which],
        "sampled": tokens.sampled[found].astype(int).tolist(),
        "special": [int(tokens.pieces[i].special) for i in which],
        "values": {name: _rounded(array[found]) for name, array in tokens.values.items()},
        "edges": {name: quantity.edges for name, quantity in QUANTITIES.items()},
        "signed": [name for name, quantity in QUANTITIES.items() if quantity.signed],
    }


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def _rounded(values: np.ndarray) -> list[float | None]:
    """Values in four digits, None where there is none; an empty list if there is none at all."""
    there = np.isfinite(values)
    if not there.any():
        return []
    size = np.where(there & (values != 0), np.abs(values), 1.0)
    scale = 10.0 ** np.clip(3 - np.floor(np.log10(size)), 0, 12)
    rounded = np.round(np.where(there, values, 0) * scale) / scale
    return [value if known else None for value, known in zip(rounded.tolist(), there.tolist(), strict=True)]


TABLE = 500
"""Tokens on a page of their table."""


@dataclass(frozen=True)
class TokenTable:
    """A page of tokens as rows: place, ids, text, values by quantity."""

    rows: list[dict[str, Any]]
    page: int
    pages: int


def table(tokens: Tokens, page: int) -> TokenTable:
    """A page of the tokens as a table; the last one for a page that there is not."""
    pages = max(1, math.ceil(len(tokens.pieces) / TABLE))
    number = min(max(1, page), pages)
    rows = []
    for i in range((number - 1) * TABLE, min(number * TABLE, len(tokens.pieces))):
        piece = tokens.pieces[i]
        values = {name: float(array[i]) for name, array in tokens.values.items()}
        rows.append(
            {
                "at": tokens.first + piece.start,
                "ids": tokens.ids[piece.start : piece.start + piece.count].tolist(),
                "text": shown(piece.text, True),
                "sampled": bool(tokens.sampled[i]),
                "values": {name: value if math.isfinite(value) else None for name, value in values.items()},
            }
        )
    return TokenTable(rows, number, pages)
