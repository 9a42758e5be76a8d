"""Seconds of a step on a cluster: one trainer, and 1 to 64 nodes that sample, as `hone plan` shows them.

It plays the steps of a run: step N is sampled from a version at most `max_async_level` behind, graded, trained, and its
weights go from the trainer's node to each sampler's. The seconds of each part are those of the plan on one device,
estimated or calibrated; fewer rows on a node are sampled in less time as far as the plan's estimate says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hone.config.rl import RLConfig
from hone.planning.report import Plan
from hone.planning.time import sample_seconds
from hone.runs.progress import short_seconds
from hone.trainer.memory import weight_bytes

NODES = (1, 2, 4, 8, 16, 32, 64)
STEPS = 50
"""Steps that are played; the first half are its start, the second are counted."""


@dataclass(frozen=True)
class Parts:
    """Seconds of the parts of a step: all its groups sampled, graded, trained, its weights brought to the samplers."""

    sample: float
    grade: float
    train: float
    weights: float

    @property
    def longest(self) -> str:
        """The part that takes longest, as the command prints it."""
        names = {"sampling": self.sample, "grading": self.grade, "training": self.train, "weights": self.weights}
        return max(names, key=lambda name: names[name])


def step_seconds(parts: Parts, lag: int) -> float:
    """Return the seconds of a step, with sampling at most `lag` versions behind, once the run is under way."""
    published = [0.0]
    """When each version was at the samplers."""
    sampled, trained, ends = 0.0, 0.0, list[float]()
    for step in range(STEPS):
        sampled = max(sampled, published[max(0, step - lag)]) + parts.sample + parts.grade
        trained = max(sampled, trained) + parts.train
        published.append(max(trained, published[-1]) + parts.weights)
        ends.append(published[-1])
    half = STEPS // 2
    return (ends[-1] - ends[half - 1]) / (STEPS - half)


def parts_on(plan: Plan, nodes: int, bandwidth: float) -> Parts:
    """Return the seconds of each part where so many nodes sample, and the trainer's sends `bandwidth` bytes a second.

    A group stays on one node, so the node with most groups is what a step waits for.
    """
    config, shape, usual = plan.evaluated, plan.shape, plan.usual
    assert isinstance(config, RLConfig) and shape is not None and usual is not None
    size = config.orchestrator.rollouts_per_example
    prompts = config.orchestrator.batch_size // size
    share = -(-prompts // nodes)
    whole, part = (
        sample_seconds(config, shape, plan.device, count * size, count, plan.lengths) for count in (prompts, share)
    )
    sent = nodes * weight_bytes(shape, config.precision) / bandwidth
    return Parts(usual.sample * part / whole, usual.grade, usual.train + usual.other, sent)


def nodes_record(plan: Plan, gbit: float) -> list[dict[str, float | str]]:
    """Return for each number of nodes seconds of a step and of its parts, new tokens a second, and the longest part."""
    config = plan.evaluated
    assert isinstance(config, RLConfig)
    tokens = config.orchestrator.batch_size * plan.lengths.completion
    rows = []
    for nodes in NODES:
        parts = parts_on(plan, nodes, gbit * 1e9 / 8)
        step = step_seconds(parts, config.orchestrator.max_async_level)
        rows.append(
            {"nodes": nodes, "step": step, "tokens_per_second": tokens / step, "longest": parts.longest} | vars(parts)
        )
    return rows


def nodes_words(plan: Plan, gbit: float) -> Iterator[tuple[str, list[str]]]:
    """Yield the heading and the lines of the table; nothing without the plan's times."""
    config = plan.evaluated
    if not isinstance(config, RLConfig) or config.cluster is None or plan.usual is None or plan.shape is None:
        return
    lag = config.orchestrator.max_async_level
    lines = ["nodes  tokens/s      step  sampling   grading  training   weights  longest"]
    for row in nodes_record(plan, gbit):
        seconds = (short_seconds(float(row[name])) for name in ("step", "sample", "grade", "train", "weights"))
        columns = "".join(f"{text:>10}" for text in seconds)
        lines.append(f"{row['nodes']:>5}{row['tokens_per_second']:>10,.0f}{columns}  {row['longest']}")
    behind = f"at most {lag} version{'s'[: lag != 1]} behind" if lag else "each step from the newest weights"
    heading = f"Nodes that sample beside one that trains ({behind}, {gbit:g} Gbit/s between them)"
    if not lag:
        lines.append("sampling and training take turns: --orchestrator.max-async-level 1 has them at the same time")
    yield heading, lines
