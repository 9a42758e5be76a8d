"""The text of a completion by token, with logprob, entropy, gap and advantage.

Each token is an HTML element: its colour shows one quantity, its tooltip shows all. The middle of long texts is folded.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from hone.algorithms.advantages import distilled, token_advantages
from hone.errors import UserError
from hone.extensions.viewer import conversation
from hone.extensions.viewer.store import Row
from hone.extensions.viewer.vocabulary import Piece, Vocabulary
from hone.pages import visible
from hone.runs.reader import Run

FOLD = 20_000
"""Most characters of a completion that is not folded."""
_HEAD = 0.8
"""Share of FOLD for the beginning of a folded text; the rest is for its end."""
_ELEMENTS = 8000
"""Most tokens to draw as one element each. In longer texts, an element is a stretch of one colour without tooltip."""


@dataclass(frozen=True)
class Quantity:
    """A quantity that colours tokens: `edges` separate levels; a signed quantity has levels on both sides of 0."""

    title: str
    edges: tuple[float, ...]
    signed: bool = False

    def legend(self) -> list[tuple[str, str]]:
        ends = [f"{edge:g}" for edge in self.edges]
        ranges = [f"below {ends[0]}", *(f"{a} to {b}" for a, b in itertools.pairwise(ends)), f"{ends[-1]} and more"]
        if not self.signed:
            return [(f"l{i}" if i else "", words) for i, words in enumerate(ranges)]
        low = [(f"m{i}", f"−{ranges[i]}".replace(" to ", " to −")) for i in range(len(ranges) - 1, 0, -1)]
        return [*low, ("", f"{ranges[0]} either way"), *((f"l{i}", f"+{ranges[i]}") for i in range(1, len(ranges)))]

    def classes(self, values: np.ndarray) -> list[str]:
        """Return each value's CSS class; "" below the first edge, and for NaN."""
        levels = np.searchsorted(self.edges, np.abs(np.nan_to_num(values)), side="right")
        signs = ("m" if self.signed and value < 0 else "l" for value in values)
        return [f"{sign}{level}" if level else "" for sign, level in zip(signs, levels.tolist(), strict=True)]


QUANTITIES = {
    "logprob": Quantity("surprise: minus the sampler's logprob of the token, in nats", (0.1, 0.5, 1, 2, 4, 8)),
    "entropy": Quantity("entropy of the token's distribution, in nats", (0.1, 0.3, 0.7, 1.2, 2, 3)),
    "gap": Quantity("gap: the trainer's logprob minus the sampler's, in nats", (0.001, 0.005, 0.02, 0.1, 0.5), True),
    "advantage": Quantity("advantage: positive if training made the token likelier", (0.01, 0.25, 0.5, 1, 2), True),
}
"""Quantities by name in the address."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a completion, from the first sampled token on: pieces of text with values (NaN: unknown).

    `prompt` is the text before, with template and tools. A character of several tokens has the sum of their logprobs
    and gaps, and the largest entropy. `missing` has reasons for quantities without values. `sampled` marks pieces that
    the policy sampled.
    """

    pieces: list[Piece]
    first: int
    ids: np.ndarray
    sampled: np.ndarray
    values: dict[str, np.ndarray]
    missing: dict[str, str] = field(default_factory=dict)
    prompt: str = ""

    def turns(self) -> list[range]:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.sampled.astype(np.int8), [0]])))
        return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    def painted(self, which: Sequence[int], color: str) -> Markup:
        plain = [""] * len(self.pieces)
        classes = QUANTITIES[color].classes(self.values[color]) if color in QUANTITIES else plain
        classes = [
            f"{one} sp".strip() if piece.special else one for one, piece in zip(classes, self.pieces, strict=True)
        ]
        parts = []
        for css, group in itertools.groupby(which, lambda i: (classes[i], i if len(which) <= _ELEMENTS else 0)):
            places = list(group)
            text = escape("".join(_visible(self.pieces[i].text) for i in places))
            known = f' title="{self._describe(places[0])}"' if len(which) <= _ELEMENTS else ""
            kind = f' class="{css[0]}"' if css[0] else ""
            parts.append(f"<span{kind}{known}>{text}</span>")
        return Markup("".join(parts))

    def _describe(self, i: int) -> str:
        piece = self.pieces[i]
        ids = " + ".join(map(str, self.ids[piece.start : piece.start + piece.count].tolist()))
        where = f"id {ids}, position {self.first + piece.start}"
        if not self.sampled[i]:
            return f"{where}\nnot sampled: from the environment"
        logprob, entropy, gap, advantage = (float(self.values[name][i]) for name in QUANTITIES)
        known = [f"probability {math.exp(logprob):.3g}, logprob {logprob:.4g}"]
        known += [f"entropy {entropy:.3g} nats, gap {gap:.3g} nats, advantage {advantage:.3g}"]
        return "\n".join([where, *known]).replace("nan", "–")


def read_tokens(run: Run, row: Row, vocabulary: Vocabulary) -> Tokens:
    """Read the tokens of a completion (a row of `Store.sample`). Raises UserError if the row's columns don't match."""
    ids, mask, logprobs = (np.asarray(row[name] or ()) for name in ("token_ids", "sampled_mask", "logprobs"))
    if not len(ids) == len(mask) == len(logprobs):
        raise UserError("tokens are not coloured: the row does not have one logprob per token; restore the row's file")
    mask = mask.astype(bool)
    advantage: Any = row.get("advantage") or 0.0
    if (calls := row.get("call_advantages")) is not None:
        if len(calls) != np.count_nonzero(np.diff(mask, prepend=False) & mask):
            raise UserError(
                "tokens are not coloured: the row does not have one advantage per call; restore the row's file"
            )
        advantage = token_advantages(calls, mask)
    first = int(mask.argmax()) if mask.any() else len(ids)
    prompt = "".join(piece.text for piece in vocabulary.pieces(ids[:first].tolist()))
    ids, mask = ids[first:], mask[first:]
    pieces = vocabulary.pieces(ids.tolist())
    measured, why = _measured(run, row, int(mask.sum()))
    missing = {"entropy": why, "gap": why} if why else {}
    by_token = {"logprob": np.where(mask, logprobs[first:].astype(float), np.nan)}
    for name, column in (("entropy", "entropies"), ("gap", "trainer_logprobs")):
        by_token[name] = np.full(len(ids), np.nan)
        if measured.get(column) is not None:
            by_token[name][mask] = np.asarray(measured[column], dtype=float)
    by_token["gap"] -= by_token["logprob"]
    trained = row.get("state") == "trained"
    scored = row.get("teacher_logprobs") or ()
    if len(scored) == len(logprobs) and (teacher := run.config.get("teacher")):
        weights = teacher.get("coef", 1.0), teacher.get("reward_coef", 1.0)
        advantage = distilled(advantage, logprobs, np.asarray(scored), *weights)
    by_token["advantage"] = np.where(mask & trained, np.broadcast_to(advantage, len(logprobs))[first:], np.nan)
    if not trained:
        missing["advantage"] = f"the completion was not trained on ({row.get('state') or 'its state is not known'})"
    starts = np.array([piece.start for piece in pieces], dtype=int)
    merge = {"logprob": np.add, "gap": np.add, "entropy": np.fmax, "advantage": np.fmax}
    values = {n: merge[n].reduceat(v, starts) if len(starts) else np.zeros(0) for n, v in by_token.items()}
    return Tokens(pieces, first, ids, mask[starts] if len(starts) else np.zeros(0, bool), values, missing, prompt)


def _measured(run: Run, row: Row, sampled: int) -> tuple[dict[str, Any], str]:
    """Return the train step's record of the sampled tokens, and ""; or {} and the reason why it is missing."""
    if row.get("branch"):
        return {}, "the train step's values are shown for the first trajectory only"
    try:
        table = run.token_stats(row["step"])
    except (UserError, OSError) as error:
        return {}, f"the train step's record cannot be read: {error}"
    if table is None:
        return {}, "the train step's values were not recorded (`trainer.record_tokens`)"
    noted = next(iter(table.slice(row["row"], 1).to_pylist()), {})
    if noted.get("sample_id") != row["sample_id"]:
        return {}, "this row in tokens/ belongs to another completion: the file is from another run"
    found = [values for name in ("entropies", "trainer_logprobs") if (values := noted.get(name)) is not None]
    if not found:
        state = row.get("state") or "its state is not known"
        cut = "it was cut at its length limit, and orchestrator.truncated = mask"
        return {}, f"the completion was not trained on ({cut if state == 'trained' else state})"
    if any(len(values) != sampled for values in found):
        return {}, "tokens/ does not have one value per sampled token"
    return noted, ""


@dataclass(frozen=True)
class Text:
    """A text without the `hidden` characters between `head` and `tail`."""

    head: str
    tail: str = ""
    hidden: int = 0


Block = tuple[conversation.Turn, Text]


def blocks(one: Row, tokens: Tokens | None, limit: int, color: str) -> tuple[list[Block], str]:
    """Return the turns of a completion with coloured tokens, and the reason for uncoloured tokens."""
    turns = conversation.turns_of_row(one)
    runs = tokens.turns() if tokens else []
    if tokens and len(turns) == 1:
        runs = [range(len(tokens.pieces))]
    fits = len(runs) == sum(turn.policy is not None for turn in turns)
    each = max(2000, limit // max(1, len(turns)))
    made = []
    for turn in turns:
        if tokens is not None and fits and turn.policy is not None:
            made.append((turn, _coloured(tokens, runs[turn.policy], each, color)))
        else:
            made.append((turn, plain(turn.text, each)))
    return made, "" if fits or tokens is None else "tokens are not coloured: the turns differ from the sampled turns"


def _coloured(tokens: Tokens, which: range, limit: int, color: str) -> Text:
    upto = np.cumsum([len(_visible(tokens.pieces[i].text)) for i in which])
    total = int(upto[-1]) if len(which) else 0
    if total <= limit:
        return Text(tokens.painted(which, color))
    cut = max(1, int(np.searchsorted(upto, limit * _HEAD, side="right")))
    back = max(cut, int(np.searchsorted(upto, total - limit * (1 - _HEAD), side="left")))
    hidden = int(upto[back - 1] - upto[cut - 1])
    return Text(tokens.painted(which[:cut], color), tokens.painted(which[back:], color), hidden)


_visible = lru_cache(maxsize=50_000)(visible)
"""Cached because tokens repeat."""


def plain(text: str, limit: int = FOLD) -> Text:
    if len(text) <= limit:
        return Text(visible(text))
    head = int(limit * _HEAD)
    return Text(visible(text[:head]), visible(text[head - limit :]), len(text) - limit)
