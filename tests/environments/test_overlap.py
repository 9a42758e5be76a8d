"""Training examples that are held-out ones too."""

from __future__ import annotations

from hone.environments import Rubric, SingleTurnEnv
from hone.environments.data import Overlap, find_overlap


def right(completion, answer) -> float:
    return 1.0


def overlap(train: list[dict], held_out: list[dict], indices=None) -> Overlap:
    env = SingleTurnEnv(rubric=Rubric([right]), dataset=train, eval_dataset=held_out)
    return find_overlap(
        env.split("train"), env.split("eval"), range(len(train)) if indices is None else indices, range(len(held_out))
    )


def rows(*pairs: str) -> list[dict]:
    return [{"question": pair[0], "answer": pair[1:]} for pair in pairs]


def test_equal_prompts_are_found_whatever_the_answer():
    found = overlap(rows("a1", "b2", "c3", "b5", "d4"), rows("x0", "b2", "d9", "b2"))
    assert found == Overlap(checked=5, held_out=4, rows=(1, 3, 4), identical=1, pair=(1, 1))


def test_no_overlap():
    assert overlap(rows("a1", "b2"), rows("c1", "d2")) == Overlap(2, 2)


def test_only_the_named_rows_are_compared_in_any_order():
    assert overlap(rows("a1", "b2", "c3"), rows("a1", "b2", "c3"), [2, 0]).rows == (0, 2)


def test_prompts_that_are_all_the_same_tell_nothing():
    """Of a game that begins with the same words, examples of equal answers are the same."""
    found = overlap(rows("g1", "g2", "g3", "g4"), rows("g3", "g7", "g8"))
    assert (found.rows, found.identical) == ((2,), 1)
