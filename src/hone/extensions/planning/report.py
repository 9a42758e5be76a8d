"""A plan, shown in words, as JSON, or in short at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.base import changed
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.extensions.planning.advice import remedies, resolved, surprises
from hone.extensions.planning.arithmetic import Lengths, Steps, retained_checkpoints
from hone.extensions.planning.data import Facts
from hone.extensions.planning.devices import PRICES_OF, Device, size
from hone.hardware import MARGIN
from hone.inference.memory import KV_GIB, rows_asked_for, wave
from hone.loops.memory import PHASES, Memory, with_precision
from hone.model.config import DecoderConfig
from hone.model.shape import shape_of
from hone.runs.progress import duration, short_seconds
from hone.trainer.memory import checkpoint_bytes, host_bytes, trainer_of, weight_bytes

if TYPE_CHECKING:
    from hone.extensions.planning.time import Times


@dataclass(frozen=True)
class Plan:
    """Prediction of a run before it starts, as one process on one device.

    `memory` and the times are None if the model's shape is unknown. `evaluated` is the config resolved for the device's
    memory and for the number of held-out examples. `saving` names settings chosen to save memory. `here` is true if the
    run is on this machine. `usual` are the times if completions are as long as in `lengths`, `worst` are the times if
    all completions reach their limit.
    """

    config: RLConfig | SFTConfig
    evaluated: RLConfig | SFTConfig
    device: Device
    here: bool
    steps: Steps
    facts: Facts
    lengths: Lengths
    shape: DecoderConfig | None
    memory: Memory | None
    usual: Times | None
    worst: Times | None
    notes: list[str]
    saving: str = ""
    surprises: list[str] = field(default_factory=list)
    remedies: list[str] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.device.room

    @property
    def fits(self) -> bool:
        return self.memory is None or self.memory.total <= self.room

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON: bytes, seconds, US dollars."""
        record: dict[str, Any] = {
            "kind": "rl" if isinstance(self.config, RLConfig) else "sft",
            "model": self.config.model.name,
            "parameters": self.shape.parameters if self.shape else None,
            "device": {"name": self.device.name, "kind": self.device.kind, "memory": self.device.memory},
            "steps": vars(self.steps) | {"total": self.steps.total, "draws": self.steps.draws},
            "fits": self.fits if self.memory else None,
            "surprises": self.surprises,
            "remedies": self.remedies,
            "notes": self.notes,
        }
        if needs := self.memory:
            record["memory"] = {"parts": needs.parts, "total": needs.total, "peak": needs.peak, "room": self.room}
            record["memory"]["saving"] = self.saving
        if self.usual and self.worst:
            record["seconds"] = {"usual": self.usual.record(), "worst": self.worst.record()}
        return record


def plan_of(
    config: RLConfig | SFTConfig,
    device: Device,
    facts: Facts,
    usd_per_hour: float | None = None,
    here: bool = True,
    shape: DecoderConfig | None = None,
) -> Plan:
    """Return the plan of a run on `device`, which is a device of this machine if `here`.

    `facts` are about the run's data. `shape` is its model's shape, if known. If the speed is unknown, so are the times.
    """
    config = with_precision(config, device.kind)
    notes, evaluated = list(facts.notes), config
    if shape is None:
        try:
            shape = shape_of(config.model.name, config.model.init, config.model.implementation)
        except UserError as error:
            if Path(config.model.name).exists():
                raise
            notes.insert(0, f"no memory, time and cost without the model's shape: {error}")
    if isinstance(config, RLConfig):
        evals = config.orchestrator.eval
        if evals and facts.held_out and evals.num_examples > facts.held_out:
            evaluated = changed(config, {"orchestrator.eval.num_examples": facts.held_out})
        if config.mode == "split":
            notes.append("mode split: memory is the trainer's only; time is for one device that samples and trains")
    steps = Steps.of(evaluated, facts.pool, facts.turns, facts.tokens)
    lengths = facts.lengths(config)
    needs = usual = worst = None
    saving = ""
    if shape is not None:
        evaluated, saving, needs = resolved(evaluated, shape, device, lengths, here)
        if device.flops:
            from hone.extensions.planning.time import times

            usual = times(evaluated, shape, device, lengths, usd_per_hour, facts.pool)
            worst = times(evaluated, shape, device, lengths.worst, usd_per_hour, facts.pool)
    plan = Plan(config, evaluated, device, here, steps, facts, lengths, shape, needs, usual, worst, notes, saving)
    plan.surprises.extend(surprises(plan))
    if not plan.fits:
        plan.remedies.extend(remedies(plan))
    return plan


def words(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    config, shape = plan.config, plan.shape
    if isinstance(config, RLConfig):
        kind, task = "RL", config.task_name
    else:
        data = config.data
        kind, task = "SFT", data.env.id if data.env else data.name or data.path or data.run
    parameters = f"{count(shape.parameters)} parameters, " if shape else ""
    yield f"{kind} of {config.model.name} ({parameters}{config.precision}) on {task}", []
    yield "Steps", [*plan.steps.words(config), _checkpoint_words(plan)]
    if plan.memory:
        free = f", of which {100 * MARGIN:.0f} % stay free" * (plan.device.kind == "cuda")
        yield f"Memory, {plan.device.name} ({size(plan.device.memory)}{free})", list(_memory_words(plan, plan.memory))
    if plan.usual and plan.worst and plan.fits:
        yield "Time and cost, estimated", list(_time_words(plan, plan.usual, plan.worst))
    rest = {"What would make it fit": plan.remedies, "Surprises": plan.surprises, "Not known": plan.notes}
    yield from ((heading, lines) for heading, lines in rest.items() if lines)


def _checkpoint_words(plan: Plan) -> str:
    config, written = plan.config, plan.steps.checkpoints
    if not written:
        return "checkpoints: none (weights are written at the end)"
    retained = retained_checkpoints(config)
    text = f"checkpoints: {written}" + (f", of which {retained} are kept" if retained < written else "")
    if plan.shape:
        each = checkpoint_bytes(config, plan.shape)
        each += weight_bytes(plan.shape, config.precision)
        text += f"; {size(each)} each with its weights, {size(retained * each)} on the disk at the end"
    return text


def _memory_words(plan: Plan, needs: Memory) -> Iterator[str]:
    notes = {name: f"only while {phase}" for phase, names in PHASES.items() for name in names}
    notes["kv slots"] = "also while training, as CUDA graphs read them"
    notes["activations"] += f", checkpointing = {trainer_of(plan.evaluated).checkpointing}"
    if isinstance(plan.evaluated, RLConfig) and plan.shape:
        rows, _ = rows_asked_for(plan.evaluated)
        if (at_once := wave(plan.evaluated, plan.shape, plan.device.kind, rows, plan.lengths.longest)) < rows:
            limit = f"inference.kv_gib = {plan.evaluated.inference.kv_gib or KV_GIB:g}"
            notes["kv cache"] += (words := f", {at_once:,} of {rows:,} completions at once: {limit}")
            notes["kv slots"] += words
    for name, taken in sorted(needs.parts.items(), key=lambda pair: -pair[1]):
        yield f"{name:<17}{size(taken):>10}  {notes.get(name, '')}".rstrip()
    if plan.shape:
        stays = sum(needs.parts.get(name, 0) for name in ("weights", "bf16 casts", "gradients", "optimiser"))
        yield f"{'(a parameter)':<17}{stays / plan.shape.parameters:>6.1f} bytes  weights, gradients and optimiser"
    verdict = f"fits, with {size(plan.room - needs.total)} to spare of" if plan.fits else "does NOT fit into"
    room = size(plan.room) + ("" if plan.device.free is None else " that are free")
    yield f"{'peak':<17}{size(needs.total):>10}  in {needs.peak}, most of it {needs.dominant}: {verdict} {room}"
    if plan.saving:
        yield f"chosen: {plan.saving}"
    if plan.shape and (host := host_bytes(plan.shape, trainer_of(plan.evaluated).optim, plan.evaluated.model.lora)):
        yield f"{size(host)} of the host's memory for optim.offload"


def _time_words(plan: Plan, usual: Times, worst: Times) -> Iterator[str]:
    from hone.extensions.planning.time import SOURCE

    lengths = plan.lengths
    if isinstance(plan.config, RLConfig):
        how = f"as long as {lengths.measured}" if lengths.measured else "half as long as their limit, a guess"
        yield f"completions {how} ({lengths.completion:,.0f} tokens): {times_words(usual)}"
        yield f"completions that all run to their limit ({lengths.longest_completion:,} tokens): {times_words(worst)}"
    else:
        yield times_words(usual)
    if usual.usd is not None:
        stated_price = plan.config.budget.usd_per_hour if plan.config.budget else None
        from_table = not stated_price and usual.usd_per_hour == plan.device.usd_per_hour
        source = f" (from a table, {PRICES_OF})" if from_table else ""
        yield f"price: ${usual.usd_per_hour:.2f} an hour{source}; set another with --usd-per-hour"
    yield f"an estimate from {SOURCE[plan.device.kind]}" + "; --calibrate measures it" * plan.here


def measured_words(plan: Plan, measured: Plan) -> Iterator[tuple[str, list[str]]]:
    if plan.memory and measured.memory and measured.usual and measured.worst:
        compared = f"{size(measured.memory.total)} at worst (the plan above says {size(plan.memory.total)})"
        times = list(_time_words(measured, measured.usual, measured.worst))[:-1]
        yield "Measured here", [f"memory: {compared}", *times, *measured.notes]


def times_words(times: Times) -> str:
    """Return text such as `0.42 s a step (sampling 70 %, training 28 %, the rest 2 %), 2:10:05 in all, $5.20`.

    Parts below 5 % of the step are added to the rest.
    """
    parts = {"sampling": times.sample, "grading": times.grade, "training": times.train}
    parts = {name: part / times.step for name, part in parts.items() if part >= 0.05 * times.step}
    parts["the rest"] = 1 - sum(parts.values())
    named = ", ".join(f"{name} {100 * part:.0f} %" for name, part in parts.items() if part >= 0.005)
    text = f"{short_seconds(times.step)} a step ({named}), {duration(times.total)} in all"
    if times.evaluations and times.evaluate:
        text += f", of which evaluations {duration(times.evaluations * times.evaluate)}"
    return text + (f", ${times.usd:,.2f}" if times.usd is not None else "")


def short(plan: Plan) -> list[str]:
    """Return lines for the start of a run: memory, then surprising settings.

    If training does not fit into memory, these lines don't say so, because `resolved` warns of it.
    """
    lines = []
    if needs := plan.memory:
        free = "" if plan.device.free is None else " free"
        fits = plan.fits or sum(needs.of("training").values()) > plan.room
        verdict = "" if fits else ", which is too little: `hone plan` lists what would make it fit"
        largest = f"{needs.dominant} {size(needs.parts[needs.dominant])}"
        lines.append(f"memory: about {size(needs.total)} at worst ({largest}) of {size(plan.room)}{free}{verdict}")
    return [*lines, *(f"note: {text}" for text in plan.surprises)]


def count(parameters: int) -> str:
    """Return text such as `0.43M`, `135M` or `1.54B`."""
    if parameters < 1e9:
        return f"{parameters / 1e6:.{2 if parameters < 1e7 else 0}f}M"
    return f"{parameters / 1e9:.{2 if parameters < 1e10 else 0}f}B"
