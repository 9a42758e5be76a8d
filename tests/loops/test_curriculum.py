"""Which example comes when: orders, the pool, epochs whose size changes, and all of it again from the ledger."""

from __future__ import annotations

import json

import pytest

from hone.config.rl import CurriculumConfig, PoolConfig
from hone.environments.data import epoch_order
from hone.errors import UserError
from hone.loops.curriculum import Curriculum
from hone.loops.ledger import Entry, Ledger

GRADED = 4


def make(total: int = 6, *, order: str = "sequential", window: int = 1, left_out=(), **pool: float) -> Curriculum:
    section = PoolConfig(**pool) if pool else None
    config = CurriculumConfig(order=order, window=window, pool=section)  # type: ignore[arg-type]
    return Curriculum(total, 3, config, left_out)


def take(curriculum: Curriculum, step: int, count: int, solved: dict[int, int], graded: int = GRADED) -> list[Entry]:
    """One step: `solved` of the completions of each example are right, by its index (others: half)."""
    entries = []
    for draw in curriculum.draw(count):
        if draw.retired:
            entries.append(Entry(draw.number, step, curriculum.ids[draw.index], "retired", 0))
        else:
            right = solved.get(draw.index, graded // 2)
            entries.append(Entry(draw.number, step, f"e{draw.index}", "trained", 10, right, graded))
    curriculum.advance(entries)
    return entries


def drawn(entries: list[Entry]) -> str:
    """The examples of a step's draws, with a minus before those that were passed over."""
    return " ".join(("-" if entry.state == "retired" else "") + entry.example_id[1:] for entry in entries)


def test_difficulty_takes_those_first_that_are_solved_half_the_time():
    """Epoch 1, by |solved / 4 - 1/2|: 1 and 3 (0), then 0 and 5 (1/4), then 2 and 4 (1/2), equals as shuffled."""
    curriculum = make(6, order="difficulty")
    first = take(curriculum, 0, 6, {0: 3, 1: 2, 2: 0, 3: 2, 4: 4, 5: 1})
    shuffled = epoch_order(6, 3, 0).tolist()
    assert [int(entry.example_id[1:]) for entry in first] == shuffled, "nothing is measured yet"
    later = [int(entry.example_id[1:]) for entry in take(curriculum, 1, 6, {})]
    rank = epoch_order(6, 3, 1).tolist().index
    assert later == [*sorted([1, 3], key=rank), *sorted([0, 5], key=rank), *sorted([2, 4], key=rank)]


def test_the_pass_rate_is_that_of_the_last_draws():
    """4/4 alone retires nothing with a window of 2, nor does 4/4 and 2/4; 2/4 and 4/4 are 6/8."""
    curriculum = make(2, window=2, retire_at=0.75)
    take(curriculum, 0, 2, {0: 4, 1: 4})
    assert curriculum.metrics()["pool/retired"] == 0
    take(curriculum, 1, 2, {0: 1, 1: 2})
    assert curriculum.metrics() == {"pool/active": 1, "pool/retired": 1, "pool/parked": 0}
    take(curriculum, 2, 1, {0: 4})
    assert curriculum.metrics()["pool/retired"] == 1
    take(curriculum, 3, 1, {0: 2})
    assert curriculum.metrics()["pool/retired"] == 2


def test_a_prompt_that_is_never_solved_is_parked_and_comes_back():
    curriculum = make(3, park_after=2, retry_parked=3)
    steps = [drawn(take(curriculum, step, 3 if step < 2 else 2, {1: 0})) for step in range(4)]
    assert steps == ["0 1 2", "0 1 2", "0 2", "0 2"]
    assert curriculum.metrics() == {"pool/active": 2, "pool/retired": 0, "pool/parked": 1}
    assert drawn(take(curriculum, 4, 3, {1: 0})) == "0 1 2", "three epochs after its last draw"
    assert [drawn(take(curriculum, step, 2, {})) for step in (5, 6)] == ["0 2", "0 2"]
    assert drawn(take(curriculum, 7, 3, {1: 1})) == "0 1 2"
    assert curriculum.metrics()["pool/parked"] == 0, "one solved completion is enough"
    assert drawn(take(curriculum, 8, 3, {})) == "0 1 2"


def test_an_empty_pool_starts_over():
    curriculum, shown = make(3, retire_at=0.9), []
    curriculum.restarted = shown.append
    take(curriculum, 0, 3, {0: 4, 1: 4, 2: 4})
    assert curriculum.metrics()["pool/active"] == 0 and shown == []
    assert drawn(take(curriculum, 1, 2, {0: 4})) == "0 1" and shown == [1]
    assert curriculum.metrics() == {"pool/active": 2, "pool/retired": 1, "pool/parked": 0}
    assert drawn(take(curriculum, 2, 3, {})) == "2 1 2", "0 was retired anew"


@pytest.mark.parametrize("order", ["shuffled", "sequential", "difficulty"])
@pytest.mark.parametrize("pool", [{}, {"retire_at": 0.75, "park_after": 1, "retry_parked": 2}], ids=["all", "pool"])
def test_the_ledger_says_all_that_a_resume_needs(order, pool):
    """At each step: from the ledger as JSON alone, the draws to come and the counts are those of the unbroken run."""
    curriculum, ledger = make(9, order=order, window=2, left_out=[5], **pool), Ledger()
    noise = [0, 4, 1, 4, 3, 2, 4, 0, 4, 4, 1]
    for step in range(25):
        entries = take(curriculum, step, 4, {index: noise[(index * 7 + step * 3) % 11] for index in range(9)})
        for entry in entries:
            ledger.close(entry)
        again = make(9, order=order, window=2, left_out=[5], **pool)
        again.restore(Ledger(json.loads(json.dumps(ledger.state()()["ledger"]))).entries)
        assert again.draw(9) == curriculum.draw(9)
        assert again.metrics() == curriculum.metrics()
    assert ("retired" in [entry.state for entry in ledger.entries]) == bool(pool)


def test_a_ledger_of_other_settings_is_refused():
    curriculum = make(4, retire_at=0.75)
    entries = [*take(curriculum, 0, 4, {1: 3}), *take(curriculum, 1, 3, {})]
    make(4, retire_at=0.75).restore(entries)
    for other in (make(4, retire_at=0.9), make(5, retire_at=0.75), make(4, order="shuffled", retire_at=0.75)):
        with pytest.raises(UserError, match=r"does not fit orchestrator\.curriculum: draw \d+ of step [01]"):
            other.restore(entries)
