"""A plan: in words, as JSON, and in one line at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.planning.advice import remedies, surprises
from hone.planning.arithmetic import Lengths, SFTArithmetic, StepArithmetic, checkpoints_kept, on_held_out
from hone.planning.data import Facts
from hone.planning.devices import PRICES_OF, Device
from hone.planning.memory import GIB, KV_GIB, Memory, checkpoint_bytes, needed, sampled_at_once, weight_bytes
from hone.planning.shape import Shape
from hone.planning.time import EFFICIENCY, Times, times


@dataclass(frozen=True)
class Plan:
    """What is known of a run before it starts. `memory` and the times are None where the model's shape isn't known.

    `evaluated` is the config with an evaluation of no more examples than are held out. The model is on `ranks` of the
    `gpus`; `here`: on this machine. `usual` are the times if completions are as long as `lengths` says, `worst` if all
    run to their limit.
    """

    config: RLConfig | SFTConfig
    evaluated: RLConfig | SFTConfig
    device: Device
    gpus: int
    ranks: int
    here: bool
    arithmetic: StepArithmetic | SFTArithmetic
    facts: Facts
    lengths: Lengths
    shape: Shape | None
    memory: Memory | None
    usual: Times | None
    worst: Times | None
    notes: list[str]
    surprises: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Bytes that the device has for the run: what is free of it now, or of a device that is only named, all."""
        return self.device.memory if self.device.free is None else self.device.free

    @property
    def fits(self) -> bool:
        return self.memory is None or self.memory.total <= self.room

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON: bytes, seconds, US dollars."""
        arithmetic, derived = self.arithmetic, ("completions", "draws", "epochs", "tokens_at_most", "total")
        steps = vars(arithmetic) | {name: getattr(arithmetic, name) for name in derived if hasattr(arithmetic, name)}
        found: dict[str, Any] = {
            "kind": "rl" if isinstance(self.config, RLConfig) else "sft",
            "model": self.config.model.name,
            "parameters": self.shape.parameters if self.shape else None,
            "device": {"name": self.device.name, "kind": self.device.kind, "memory": self.device.memory},
            "gpus": self.gpus,
            "steps": steps,
            "fits": self.fits if self.memory else None,
            "surprises": self.surprises,
            "remedies": self.remedies,
            "notes": self.notes,
        }
        if self.memory:
            parts = self.memory.parts
            found["memory"] = {"parts": parts, "total": self.memory.total, "peak": self.memory.peak, "room": self.room}
        if self.usual and self.worst:
            found["seconds"] = {"usual": self.usual.record(), "worst": self.worst.record()}
        return found


def plan_of(
    config: RLConfig | SFTConfig,
    device: Device,
    facts: Facts,
    gpus: int = 1,
    usd_per_hour: float | None = None,
    here: bool = True,
    shape: Shape | None = None,
) -> Plan:
    """Return the plan of a run on `device`, `gpus` of them; `here`: on this machine.

    `facts` are what its data showed, `shape` its model's, if it is at hand. A device whose speed isn't known has no
    times.
    """
    notes = list(facts.notes)
    if shape is None:
        try:
            shape = Shape.of(config.model.name, config.model.init)
        except UserError as error:
            notes.insert(0, f"no memory, time and cost without the model's shape: {error}")
    if isinstance(config, RLConfig):
        config = config.on_gpus(gpus)
        evaluated = on_held_out(config, facts.held_out)
        arithmetic = StepArithmetic.of(evaluated, facts.pool, facts.turns)
        ranks = config.trainer.ranks if config.mode == "split" else 1
    else:
        evaluated, ranks = config, gpus
        arithmetic = SFTArithmetic.of(config, facts.examples, facts.tokens)
    lengths = facts.lengths(config)
    memory = usual = worst = None
    if shape is not None:
        memory = needed(evaluated, shape, device, ranks, gpus, lengths)
        if device.flops:
            usual = times(evaluated, shape, device, lengths, gpus, usd_per_hour, facts.examples)
            worst = times(evaluated, shape, device, lengths.worst, gpus, usd_per_hour, facts.examples)
    plan = Plan(
        config, evaluated, device, gpus, ranks, here, arithmetic, facts, lengths, shape, memory, usual, worst, notes
    )
    plan.surprises.extend(surprises(plan))
    if not plan.fits:
        plan.remedies.extend(remedies(plan))
    return plan


def words(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """Yield (heading, lines) of the whole plan."""
    config, shape = plan.config, plan.shape
    if isinstance(config, RLConfig):
        kind, task = "RL", config.orchestrator.env.id
    else:
        kind, task = "SFT", config.data.env.id if config.data.env else config.data.name or config.data.path
    size = f"{count(shape.parameters)} parameters, " if shape else ""
    yield f"{kind} of {config.model.name} ({size}{config.precision}) on {task}", []
    yield "Steps", [*plan.arithmetic.words(), _checkpoint_words(plan)]
    if plan.memory:
        yield f"Memory, {_place(plan)}", list(_memory_words(plan, plan.memory))
    if plan.usual and plan.worst:
        yield "Time and cost, estimated", list(_time_words(plan, plan.usual, plan.worst))
    for heading, lines in (
        ("What would make it fit", plan.remedies),
        ("Surprises", plan.surprises),
        ("Not known", plan.notes),
    ):
        if lines:
            yield heading, lines


def _checkpoint_words(plan: Plan) -> str:
    config, written = plan.config, plan.arithmetic.checkpoints
    if not written:
        return "checkpoints: none (weights are written at the end)"
    kept = checkpoints_kept(config)
    text = f"checkpoints: {written}" + (f", of which {kept} are kept" if kept < written else "")
    if plan.shape:
        each = checkpoint_bytes(plan.shape, config.precision) + weight_bytes(plan.shape, config.precision)
        text += f"; {size(each)} each with its weights, {size(kept * each)} on the disk at the end"
    return text


def _place(plan: Plan) -> str:
    many = f"{plan.gpus} x " if plan.gpus > 1 else ""
    place, config = f"{many}{plan.device.name} ({size(plan.device.memory)})", plan.config
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


def _memory_words(plan: Plan, memory: Memory) -> Iterator[str]:
    what = dict(WHAT)
    if isinstance(plan.evaluated, RLConfig) and plan.shape:
        at_once, rows, _ = sampled_at_once(plan.evaluated, plan.shape, plan.lengths)
        if at_once < rows:
            limit = f"inference.kv_gib = {plan.evaluated.inference.kv_gib or KV_GIB:g}"
            what["kv cache"] = f"keys and values in fp32, {limit}: {at_once:,} of {rows:,} completions at once"
    for name, taken in sorted(memory.parts.items(), key=lambda pair: -pair[1]):
        phases = [phase for phase, names in memory.phases.items() if name in names]
        there = "" if len(phases) == len(memory.phases) else f" ({' and '.join(phases)})"
        yield f"{name:<16}{size(taken):>10}  {what[name]}{there}"
    verdict = f"fits, with {size(plan.room - memory.total)} to spare" if plan.fits else "does NOT fit"
    free = "" if plan.device.free is None else f" of {size(plan.room)} that are free"
    yield f"{'peak':<16}{size(memory.total):>10}  in {memory.peak}, most of it {memory.dominant}: {verdict}{free}"
    if memory.host:
        yield f"{'':<16}{size(memory.host):>10}  of the machine's own memory: what a checkpoint is written from"


def _time_words(plan: Plan, usual: Times, worst: Times) -> Iterator[str]:
    lengths = plan.lengths
    if isinstance(plan.config, RLConfig):
        how = f"as long as {lengths.measured}" if lengths.measured else "half as long as they may be, by guess"
        yield f"completions {how} ({lengths.completion:,.0f} tokens): {times_words(usual)}"
        yield f"completions that all run to their limit ({lengths.longest_completion:,} tokens): {times_words(worst)}"
    else:
        yield times_words(usual)
    if usual.usd is not None:
        own = plan.config.budget.usd_per_hour if plan.config.budget else None
        from_table = not own and usual.usd_per_hour == (plan.device.usd_per_hour or 0) * plan.gpus
        source = f" (a table's, {PRICES_OF})" if from_table else ""
        yield f"price: ${usual.usd_per_hour:.2f} an hour{source}; --usd-per-hour says another"
    yield f"an estimate: {EFFICIENCY[plan.device.kind].source}. --calibrate measures it."


def times_words(times: Times) -> str:
    """Return `0.42 s a step (sampling 70 %, training 28 %, the rest 2 %), 2 h 10 min in all, $5.20`."""
    parts = {"sampling": times.sample, "grading": times.grade, "training": times.train}
    parts["weights from trainer to server"] = times.published
    text = f"{duration(times.step)} a step ({shares(parts, times.step)}), {duration(times.total)} in all"
    if times.evaluations and times.evaluate:
        text += f", of which evaluations {duration(times.evaluations * times.evaluate)}"
    return text + (f", ${times.usd:,.2f}" if times.usd is not None else "")


def shares(parts: Mapping[str, float], whole: float) -> str:
    """Return `sampling 52 %, training 40 %, the rest 8 %`: of what takes a twentieth of the whole or more."""
    named = {name: part for name, part in parts.items() if part >= 0.05 * whole}
    rest = whole - sum(named.values())  # less than nothing, where parts go on at once
    if rest >= 0.005 * whole:
        named["the rest"] = rest
    return ", ".join(f"{name} {100 * part / whole:.0f} %" for name, part in named.items())


def short(plan: Plan) -> list[str]:
    """Return lines for the start of a run: memory, then each surprise."""
    lines = []
    if memory := plan.memory:
        free = "" if plan.device.free is None else " free"
        verdict = "" if plan.fits else ", more than that: `hone plan` says what would make it fit"
        largest = f"{memory.dominant} {size(memory.parts[memory.dominant])}"
        lines.append(f"memory: about {size(memory.total)} at worst ({largest}) of {size(plan.room)}{free}{verdict}")
    return [*lines, *(f"note: {text}" for text in plan.surprises)]


def size(taken: float) -> str:
    """Return bytes in a fitting unit: `512 MiB`, `1.3 GiB`, `138 GiB`."""
    if abs(taken) < 1000 * 2**20:
        return f"{taken / 2**20:.0f} MiB" if abs(taken) >= 10 * 2**20 else f"{taken / 2**20:.1f} MiB"
    gib = taken / GIB
    return f"{gib:,.0f} GiB" if abs(gib) >= 100 else f"{gib:.1f} GiB"


def count(parameters: int) -> str:
    """Return `0.43M`, `135M`, `1.54B`."""
    if parameters < 1e9:
        return f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f}M"
    return f"{parameters / 1e9:.{2 if parameters < 1e10 else 0}f}B"


def duration(seconds: float) -> str:
    """Return `0.42 s`, `5 min`, `5 h 12 min`, `12 days`."""
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
