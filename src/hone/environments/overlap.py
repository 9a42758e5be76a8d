"""Which training examples are held-out ones too, found by the hash of their content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hone.environments.environment import Split
from hone.errors import UserError
from hone.types import Example, content_hash


@dataclass(frozen=True)
class Overlap:
    """What was found among `checked` training and `held_out` evaluation examples.

    `rows` are the indices in the training split, ascending, `identical` how many of them are the same in answer and
    info too; `pair` has the indices of the first in both splits.
    """

    checked: int
    held_out: int
    rows: tuple[int, ...] = ()
    identical: int = 0
    pair: tuple[int, int] | None = None


def find_overlap(
    train: Split,
    held_out: Split,
    train_indices: Sequence[int],
    held_out_indices: Sequence[int],
    advance: Callable[[int], None] = lambda done: None,
) -> Overlap:
    """The training examples, of these indices, whose prompt is that of a held-out one; whatever the answer is.

    Where prompts don't tell examples apart (a game that always begins with the same words), the whole examples are
    compared. Rows that make no example are left to whoever uses them. `advance` is told how many are done.
    """
    others = list(_examples(held_out, held_out_indices))
    ids = {example.id: index for index, example in reversed(others)}
    prompts = {content_hash(example.prompt): index for index, example in reversed(others)}
    by_prompt = 2 * len(prompts) > len(ids)
    found: list[tuple[int, int]] = []
    identical = 0
    for done, (index, example) in enumerate(_examples(train, train_indices), start=1):
        other = ids.get(example.id)
        identical += other is not None
        if other is None and by_prompt:
            other = prompts.get(content_hash(example.prompt))
        if other is not None:
            found.append((index, other))
        advance(done)
    found.sort()
    rows = tuple(index for index, _ in found)
    return Overlap(len(train_indices), len(held_out_indices), rows, identical, found[0] if found else None)


def _examples(split: Split, indices: Sequence[int]) -> Iterator[tuple[int, Example]]:
    for index in indices:
        try:
            yield index, split[index]
        except UserError:  # a row without an answer, say; if the run comes to it, it says so
            continue
