"""Training prompts that are held-out ones too: what `hone rl` does about them before it begins."""

from __future__ import annotations

from hone.composition.slow_work import slow_work
from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.environments.overlap import Overlap, find_overlap
from hone.errors import UserError
from hone.orchestrator.curriculum import Curriculum
from hone.runs.writer import RunWriter

GENERATED = 2000
"""Training examples of a generated task that are looked at, at most, those drawn first: each has to be made."""
HELD_OUT = 20_000
"""Held-out examples of a data set that are looked at, at most."""


def check_overlap(config: RLConfig, env: Environment) -> Overlap | None:
    """What training and evaluation have in common; None without evaluation. UserError if that is to be refused.

    Of a data set, the training examples that the run will come to (those of its first epoch, at most) are looked at; to
    be dropped, all of `max_examples`: what is dropped must not depend on the number of steps, as a resume may add some.
    """
    settings = config.orchestrator.eval
    if settings is None:
        return None
    train, held_out = env.split("train"), env.split("eval")
    curriculum = Curriculum.of_run(config, len(train))
    steps_draws = config.max_steps * config.orchestrator.batch_size // config.orchestrator.rollouts_per_example
    drop = settings.overlap == "drop"
    if train.generated:
        indices = curriculum.first(GENERATED if drop else min(GENERATED, steps_draws))
    else:
        indices = range(curriculum.total) if drop else curriculum.first(steps_draws)
    most = settings.num_examples if held_out.generated else HELD_OUT
    with slow_work("comparing training with held-out prompts", len(indices), config.display) as advance:
        overlap = find_overlap(train, held_out, indices, range(min(most, len(held_out))), advance)
    if overlap.rows and settings.overlap == "refuse":
        raise UserError(
            f"{_sentence(env, overlap)}: take them out of the data, or set orchestrator.eval.overlap = drop, which "
            "takes them out of training"
        )
    if drop and len(overlap.rows) == curriculum.total:
        raise UserError(
            f"all {curriculum.total:,} training prompts are held-out ones too, and orchestrator.eval.overlap = drop "
            "leaves none to train on: give an eval_dataset of other examples, or set overlap = warn"
        )
    return overlap


def left_out(config: RLConfig, overlap: Overlap | None) -> list[int]:
    """The indices of the training examples that are not to be drawn."""
    settings = config.orchestrator.eval
    return list(overlap.rows) if overlap and settings and settings.overlap == "drop" else []


def tell_overlap(config: RLConfig, env: Environment, overlap: Overlap | None, writer: RunWriter) -> None:
    """One sentence and an event, if there is one."""
    if overlap is None or not overlap.rows:
        return
    dropped = bool(left_out(config, overlap))
    facts = {"rows": len(overlap.rows), "identical": overlap.identical, "checked": overlap.checked}
    writer.event("overlap", 0, **facts, held_out=overlap.held_out, dropped=dropped)
    what = "they are left out of training" if dropped else "evaluation will look better than it is; "
    if not dropped:
        what += "--orchestrator.eval.overlap drop takes them out of training"
    writer.display.message(f"Warning: {_sentence(env, overlap)}: {what}.")


def _sentence(env: Environment, overlap: Overlap) -> str:
    """How many there are, and one of them."""
    assert overlap.pair is not None
    count, (row, other) = len(overlap.rows), overlap.pair
    where = f"{env.split('train').where(row)} and {env.split('eval').where(other)}"
    are = "is a held-out prompt too" if count == 1 else "are held-out prompts too"
    answers = "" if overlap.identical == count else f", {count - overlap.identical:,} of them with another answer"
    return f"{count:,} of {overlap.checked:,} training prompts {are}{answers} (such as {where})"
