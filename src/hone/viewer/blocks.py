"""A completion as it is laid out: its turns, folded where they are long, the policy's own in colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hone.errors import UserError
from hone.viewer import conversation, pieces, vocabulary
from hone.viewer.store import Row, Store

FOLD = 20_000
"""Characters of a completion that are shown at first."""
_HEAD = 0.8
"""The part of them from its beginning; the rest is its end."""


@dataclass(frozen=True)
class Text:
    """A text that is shown, of which `hidden` characters between `head` and `tail` are not.

    Of coloured ones these are spans of the pieces `first` to `cut` and `cut` to `end` of the page's.
    """

    head: Any
    tail: Any
    hidden: int
    coloured: bool
    first: int = 0
    cut: int = 0
    end: int = 0


@dataclass(frozen=True)
class Block:
    """A message of the conversation with its text."""

    turn: conversation.Turn
    text: Text


def tokens_of(store: Store, one: Row) -> tuple[pieces.Tokens | None, str]:
    """The tokens of a completion; None, and why they can't be told."""
    known, why = vocabulary.of_run(store.run)
    if known is None:
        return None, why
    try:
        return pieces.read_tokens(store.run, one, known), ""
    except UserError as error:
        return None, str(error)


def blocks_of(
    one: Row, tokens: pieces.Tokens | None, color: str, white: bool, limit: int
) -> tuple[list[Block], list[int], str]:
    """The turns of a completion, which pieces of its tokens they show in this order, and what is to be said."""
    turns = conversation.turns(conversation.completion_of(one))
    said = [turn for turn in turns if turn.policy is not None]
    runs = tokens.turns() if tokens else []
    several = len(turns) > 1
    if tokens and not several:
        runs = [range(len(tokens.pieces))]
    fits_tokens = tokens is not None and len(runs) == len(said)
    each = max(2000, limit // max(1, len(turns)))
    chosen: list[int] = []
    blocks = []
    level = pieces.levels(tokens, color) if tokens else None
    for turn in turns:
        if fits_tokens and turn.policy is not None:
            assert tokens is not None and level is not None
            text = _coloured(tokens, runs[turn.policy], level, white, each, chosen)
        else:
            text = plain(turn.text, white, each)
        blocks.append(Block(turn, text))
    aside = (
        "" if fits_tokens or tokens is None else "tokens are not coloured: its turns are not those that were sampled"
    )
    return blocks, chosen, aside


def _coloured(
    tokens: pieces.Tokens, which: range, level: np.ndarray, white: bool, limit: int, chosen: list[int]
) -> Text:
    """The pieces `which`, folded to `limit` characters; those shown are added to `chosen`."""
    lengths = np.array([len(tokens.pieces[i].text) for i in which])
    first = len(chosen)
    total = int(lengths.sum())
    head, tail = list(which), []
    if total > limit:
        upto = np.cumsum(lengths)
        cut = max(1, int(np.searchsorted(upto, limit * _HEAD, side="right")))
        back = max(cut, int(np.searchsorted(upto, total - limit * (1 - _HEAD), side="left")))
        head, tail = list(which[:cut]), list(which[back:])
    hidden = total - sum(len(tokens.pieces[i].text) for i in (*head, *tail))
    chosen += [*head, *tail]
    made = [pieces.spans(tokens, part, level, white) for part in (head, tail)]
    return Text(made[0], made[1], hidden, True, first, first + len(head), len(chosen))


def plain(text: str, white: bool = False, limit: int = FOLD) -> Text:
    """A text without colours, folded to `limit` characters."""
    if len(text) <= limit:
        return Text(pieces.shown(text, white), "", 0, False)
    head = int(limit * _HEAD)
    tail = limit - head
    return Text(pieces.shown(text[:head], white), pieces.shown(text[-tail:], white), len(text) - limit, False)
