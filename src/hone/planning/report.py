"""A plan, and how it is told: in words, as JSON, and in one line at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.planning.arithmetic import SFTArithmetic, StepArithmetic, checkpoints_kept, on_held_out
from hone.planning.data import Facts
from hone.planning.devices import PRICES_OF, Device
from hone.planning.lengths import Lengths
from hone.planning.memory import (
    GIB,
    KV_GIB,
    Memory,
    checkpoint_bytes,
    needed,
    parts_in_order,
    sampled_at_once,
    weight_bytes,
)
from hone.planning.remedies import more_at_once, remedies
from hone.planning.shape import Shape
from hone.planning.surprises import Known, surprises
from hone.planning.time import EFFICIENCY, Times, times


@dataclass(frozen=True)
class Plan:
    """What is known of a run before it starts. `memory` and the times are None where the model's shape isn't known.

    `usual` are the times if completions are as long as `lengths` says, `worst` if all run to their limit.
    """

    config: RLConfig | SFTConfig
    device: Device
    gpus: int
    arithmetic: StepArithmetic | SFTArithmetic
    facts: Facts
    lengths: Lengths
    shape: Shape | None
    memory: Memory | None
    usual: Times | None
    worst: Times | None
    surprises: list[str]
    remedies: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faster: list[str] = field(default_factory=list)
    """What would make it faster in the memory that is left."""

    @property
    def room(self) -> int:
        """Bytes that the device has for the run: what is free of it now, or of a device that is named, all."""
        return self.device.memory if self.device.free is None else self.device.free

    @property
    def fits(self) -> bool:
        return self.memory is None or self.memory.total <= self.room

    def record(self) -> dict[str, Any]:
        """The plan as JSON: bytes, seconds, US dollars."""
        arithmetic = {name: getattr(self.arithmetic, name) for name in _names(self.arithmetic)}
        found: dict[str, Any] = {
            "kind": "rl" if isinstance(self.config, RLConfig) else "sft",
            "model": self.config.model.name,
            "parameters": self.shape.parameters if self.shape else None,
            "device": {"name": self.device.name, "kind": self.device.kind, "memory": self.device.memory},
            "gpus": self.gpus,
            "steps": arithmetic,
            "fits": self.fits if self.memory else None,
            "surprises": self.surprises,
            "remedies": self.remedies,
            "faster": self.faster,
            "notes": [*self.notes, *self.facts.notes],
        }
        if self.memory:
            parts = self.memory.parts
            found["memory"] = {"parts": parts, "total": self.memory.total, "peak": self.memory.peak, "room": self.room}
        for name, told in (("usual", self.usual), ("worst", self.worst)):
            if told:
                fields = ("sample", "grade", "train", "evaluate", "other", "start", "step", "total", "usd")
                found.setdefault("seconds", {})[name] = {key: getattr(told, key) for key in fields}
        return found


def _names(arithmetic: StepArithmetic | SFTArithmetic) -> list[str]:
    derived = {"completions", "total", "draws", "epochs", "tokens_at_most"}
    return [*vars(arithmetic), *sorted(name for name in derived - set(vars(arithmetic)) if hasattr(arithmetic, name))]


def plan_of(
    config: RLConfig | SFTConfig,
    device: Device,
    facts: Facts,
    gpus: int = 1,
    usd_per_hour: float | None = None,
    here: bool = True,
    shape: Shape | None = None,
) -> Plan:
    """The plan of a run on `device`, `gpus` of them. `facts` are what its data showed; `shape` its model's, if it is
    at hand. `here`: on this machine. A device whose speed isn't known has no times.
    """
    notes: list[str] = []
    if shape is None:
        try:
            shape = Shape.of(config.model.name, config.model.init)
        except UserError as error:
            notes.append(f"no memory, time and cost without the model's shape: {error}")
    evaluated = config
    if isinstance(config, RLConfig):
        config = config.on_gpus(gpus)
        evaluated = on_held_out(config, facts.held_out)
        arithmetic = StepArithmetic.of(evaluated, facts.pool, facts.turns)
        ranks = config.trainer.ranks if config.mode == "split" else 1
    else:
        arithmetic, ranks = SFTArithmetic.of(config, facts.examples, facts.tokens), gpus
    lengths = facts.lengths(config)
    needs = usual = worst = None
    if shape is not None:
        needs = needed(evaluated, shape, device, ranks, gpus, lengths)
        if device.flops:
            usual = times(evaluated, shape, device, lengths, None, gpus, usd_per_hour, facts.examples)
            worst = times(evaluated, shape, device, lengths.worst, None, gpus, usd_per_hour, facts.examples)
    found = surprises(config, arithmetic, Known(facts, shape, device, usual, here))
    plan = Plan(config, device, gpus, arithmetic, facts, lengths, shape, needs, usual, worst, found, notes=notes)
    if shape is not None and not plan.fits:
        plan.remedies.extend(remedies(evaluated, shape, device, ranks, lengths, plan.room, gpus))
    elif usual is not None and shape is not None and isinstance(evaluated, RLConfig):
        plan.faster.extend(more_at_once(evaluated, shape, device, ranks, lengths, plan.room, gpus, usual))
    return plan


def words(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines) of the whole plan."""
    config, shape = plan.config, plan.shape
    size = f"{count(shape.parameters)} parameters, " if shape else ""
    kind = "RL" if isinstance(config, RLConfig) else "SFT"
    task = f" on {_task(config)}"
    yield f"{kind} of {config.model.name} ({size}{config.precision}){task}", []
    yield "Steps", [*plan.arithmetic.words(), *_checkpoint_words(plan)]
    if plan.memory:
        yield f"Memory, {_place(plan)}", list(_memory_words(plan, plan.memory))
    if plan.usual and plan.worst:
        yield "Time and cost, estimated", list(_time_words(plan, plan.usual, plan.worst))
    if plan.remedies:
        yield "What would make it fit", plan.remedies
    if plan.surprises:
        yield "Surprises", plan.surprises
    if notes := [*plan.notes, *plan.facts.notes]:
        yield "Not known", notes


def _task(config: RLConfig | SFTConfig) -> str:
    if isinstance(config, RLConfig):
        return config.orchestrator.env.id
    return config.data.env.id if config.data.env else str(config.data.name or config.data.path)


def _checkpoint_words(plan: Plan) -> Iterator[str]:
    config, written = plan.config, plan.arithmetic.checkpoints
    if not written:
        yield "checkpoints: none (weights are written at the end)"
        return
    kept = checkpoints_kept(config)
    text = f"checkpoints: {written}" + (f", of which {kept} are kept" if kept < written else "")
    if plan.shape:
        each = checkpoint_bytes(plan.shape, config.precision) + weight_bytes(plan.shape, config.precision)
        text += f"; {size(each)} each with its weights, {size(kept * each)} on the disk at the end"
    yield text


def _place(plan: Plan) -> str:
    many = f"{plan.gpus} x " if plan.gpus > 1 else ""
    place = f"{many}{plan.device.name} ({size(plan.device.memory)})"
    config = plan.config
    if not isinstance(config, RLConfig) or config.mode != "split":
        return place
    server = "a server and " if config.orchestrator.client.base_url is None else ""
    return f"{place}: {server}{config.trainer.ranks} rank{'' if config.trainer.ranks == 1 else 's'} of the trainer"


WHAT = {
    "process": "Python and its libraries",
    "weights": "parameters",
    "optimiser": "AdamW's moments",
    "engine copies": "what products read: bf16 casts, packed layouts",
    "reference model": "the initial policy, for loss.kl_coef",
    "kv cache": "keys and values in fp32, all completions at their limit",
    "prefill": "keys and values of the prompts before the cache has them",
    "sampling logits": "logits and scores of one decode step",
    "gradients": "of all parameters",
    "activations": "of the largest micro-batch",
    "logits": "of one chunk, with its gradient",
    "server": "the process that samples: two versions of the weights, keys and values",
    "other ranks": "as much as this one each",
    "orchestrator": "the process that grades and records",
    "checkpoint copy": "while a thread writes it",
}


def _memory_words(plan: Plan, needs: Memory) -> Iterator[str]:
    for name, taken in parts_in_order(needs.parts):
        there = "" if len(needs.phases) == 1 or _in_all(needs, name) else f" ({_phase(needs, name)})"
        what = WHAT[name] if name != "kv cache" else _cached(plan)
        yield f"{name:<16}{size(taken):>10}  {what}{there}"
    verdict = f"fits, with {size(plan.room - needs.total)} to spare" if plan.fits else "does NOT fit"
    free = "" if plan.device.free is None else f" of {size(plan.room)} that are free"
    yield f"{'peak':<16}{size(needs.total):>10}  in {needs.peak}, most of it {needs.dominant}: {verdict}{free}"
    if needs.host:
        yield f"{'':<16}{size(needs.host):>10}  of the machine's own memory: the copy that a checkpoint is written from"


def _cached(plan: Plan) -> str:
    """What the keys and values are of: all completions at their limit, or as many as `kv_gib` has room for."""
    assert isinstance(plan.config, RLConfig) and plan.shape is not None
    config = on_held_out(plan.config, plan.facts.held_out)
    at_once, rows, _ = sampled_at_once(config, plan.shape, plan.lengths)
    if at_once == rows:
        return WHAT["kv cache"]
    limit = config.inference.kv_gib or KV_GIB
    return f"keys and values in fp32, inference.kv_gib = {limit:g}: {at_once:,} of {rows:,} completions at once"


def _in_all(needs: Memory, name: str) -> bool:
    return all(name in names for names in needs.phases.values())


def _phase(needs: Memory, name: str) -> str:
    return " and ".join(phase for phase, names in needs.phases.items() if name in names)


def _time_words(plan: Plan, usual: Times, worst: Times) -> Iterator[str]:
    lengths = plan.lengths
    if isinstance(plan.config, RLConfig):
        how = f"as long as {lengths.measured}" if lengths.measured else "half as long as they may be, by guess"
        yield f"completions {how} ({lengths.completion:,.0f} tokens): {times_words(usual)}"
        yield f"completions that all run to their limit ({lengths.longest_completion:,} tokens): {times_words(worst)}"
    else:
        yield times_words(usual)
    yield from plan.faster
    if usual.usd is not None:
        price = plan.config.budget.usd_per_hour if plan.config.budget else None
        source = (
            ""
            if price or usual.usd_per_hour != (plan.device.usd_per_hour or 0) * plan.gpus
            else f" (a table's, {PRICES_OF})"
        )
        yield f"price: ${usual.usd_per_hour:.2f} an hour{source}; --usd-per-hour says another"
    yield f"an estimate: {EFFICIENCY[plan.device.kind].source}. --calibrate measures it."


def times_words(told: Times) -> str:
    """`0.42 s a step (sampling 70 %, training 28 %, the rest 2 %), 2 h 10 min in all, $5.20`."""
    parts = {"sampling": told.sample, "grading": told.grade, "training": told.train}
    parts["weights from trainer to server"] = told.published
    text = f"{duration(told.step)} a step ({shares(parts, told.step)})"
    text += f", {duration(told.total)} in all"
    if told.evaluations and told.evaluate:
        text += f", of which evaluations {duration(told.evaluations * told.evaluate)}"
    return text + (f", ${told.usd:,.2f}" if told.usd is not None else "")


def shares(parts: Mapping[str, float], whole: float) -> str:
    """`sampling 52 %, training 40 %, the rest 8 %`: in the order given, what takes a twentieth of the whole or more."""
    large = {name: part for name, part in parts.items() if part >= 0.05 * whole}
    rest = whole - sum(large.values())  # less than nothing, where parts go on at once
    told = large | ({"the rest": rest} if rest >= 0.005 * whole else {})
    return ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in told.items())


def short(plan: Plan) -> list[str]:
    """For the start of a run: memory in a line, then each surprise."""
    lines = []
    if plan.memory:
        free = "" if plan.device.free is None else " free"
        verdict = "" if plan.fits else ", more than that: `hone plan` says what would make it fit"
        lines.append(
            f"memory: about {size(plan.memory.total)} at worst ({plan.memory.dominant} "
            f"{size(plan.memory.parts[plan.memory.dominant])}) of {size(plan.room)}{free}{verdict}"
        )
    return [*lines, *(f"note: {text}" for text in plan.surprises)]


def size(taken: float) -> str:
    """Bytes in a fitting unit: `512 MiB`, `1.25 GiB`, `38 GiB`."""
    if abs(taken) < 1000 * 2**20:
        return f"{taken / 2**20:.0f} MiB" if abs(taken) >= 10 * 2**20 else f"{taken / 2**20:.1f} MiB"
    gib = taken / GIB
    return f"{gib:,.0f} GiB" if abs(gib) >= 100 else f"{gib:.1f} GiB"


def count(parameters: int) -> str:
    """`0.43M`, `135M`, `1.54B`."""
    if parameters < 1e9:
        return f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f}M"
    return f"{parameters / 1e9:.{2 if parameters < 1e10 else 0}f}B"


def duration(seconds: float) -> str:
    """`0.42 s`, `5 min`, `5 h 12 min`, `12 days`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes / 60
    if hours < 72:
        return f"{minutes // 60} h {minutes % 60:02d} min" if hours < 10 else f"{hours:.0f} h"
    return f"{hours / 24:,.0f} days"
