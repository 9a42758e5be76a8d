"""A run on many GPUs in words: what `hone plan --gpus N` says of it, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hone.config.rl import RLConfig
from hone.planning.devices import Device
from hone.planning.lengths import Lengths
from hone.planning.memory import weight_bytes
from hone.planning.report import Plan, plan_of, times_words, words
from hone.planning.scaling import MAX_LAG, NEARLY, Layout, Scaling, best
from hone.planning.shape import Shape

NOT_YET = "not in hone yet"


def report(
    config: RLConfig, shape: Shape, device: Device, gpus: int, lengths: Lengths | None = None
) -> dict[str, Scaling]:
    """`today`: what hone does with so many GPUs; `next`: with several servers, tensor-parallel ones where a card is too
    small for the model, and ranks that load no more than their rows.
    """
    return {
        "today": best(config, shape, device, gpus, lengths),
        "next": best(config, shape, device, gpus, lengths, False),
    }


def pages(plan: Plan) -> Iterator[tuple[str, list[str]]]:
    """The plan as headings, each with its lines, and how its GPUs are best shared out: first of all, that fewer
    would do as well; nothing of that for a plan of one GPU, of SFT, or of a model not known.
    """
    found = _found(plan)
    head, *rest = words(plan)
    yield head
    if found:
        yield from _fewer(plan, found["today"].layout)
    yield from rest
    if found:
        yield from _section(plan, found)


def _fewer(plan: Plan, layout: Layout) -> Iterator[tuple[str, list[str]]]:
    """That this layout of fewer GPUs is as fast or faster, or cheaper, by the plan's own estimate of both."""
    config, gpus, now = plan.config, plan.gpus, plan.usual
    assert isinstance(config, RLConfig)
    if now is None or layout.gpus >= gpus:
        return
    flags = f"--mode split --trainer.ranks {layout.ranks}" if layout.servers else "--mode colocated"
    if not layout.servers and config.orchestrator.max_async_level:
        flags += " --orchestrator.max-async-level 0"
    trainer = config.trainer.model_copy(update={"ranks": layout.ranks})
    mode = "split" if layout.servers else "colocated"
    other = config.model_copy(update={"mode": mode, "trainer": trainer})
    price = None if now.usd_per_hour == (plan.device.usd_per_hour or 0) * gpus else now.usd_per_hour
    fewer = plan_of(other, plan.device, plan.facts, layout.gpus, price, here=False, shape=plan.shape)
    then = fewer.usual
    if then is None or not fewer.fits or then.total > NEARLY * now.total:
        return
    slower = now.total > NEARLY * then.total
    dearer = now.usd is not None and then.usd is not None and now.usd > NEARLY * then.usd
    if slower or dearer:
        how = f"{'slower' if slower else 'no faster'}{' and dearer' if dearer else ''}"
        yield (
            f"{gpus} GPUs are {how} than {layout.gpus}",
            [f"{flags}, on {_count(layout.gpus, 'GPU')}: {times_words(then)}", f"on {gpus}: {times_words(now)}"],
        )


def _section(plan: Plan, found: dict[str, Scaling]) -> list[tuple[str, list[str]]]:
    """What is said of the layouts."""
    device, gpus = plan.device, plan.gpus
    now, then, links = found["today"], found["next"], found["today"].links
    joined = f"{links.gpus_per_node} a machine by {links.inside.name}, machines by {links.between.name}"
    parts = [(f"Shared out over {gpus} x {device.name} ({joined})", _facts(now, gpus))]
    if then.layout.counts != now.layout.counts and not then.too_large:
        parts.append((f"With several servers, and ranks that load only their rows ({NOT_YET})", _facts(then, gpus)))
    return [*parts, ("What would change it", advice(found, gpus))]


def _found(plan: Plan) -> dict[str, Scaling]:
    if plan.gpus == 1 or plan.shape is None or not isinstance(plan.config, RLConfig):
        return {}
    return report(plan.config, plan.shape, plan.device, plan.gpus, plan.lengths)


def record(plan: Plan) -> dict[str, Any]:
    """The report as JSON, bytes and seconds of a step, under `scaling`; nothing where there is none."""
    told = {
        name: {
            "servers": one.layout.servers,
            "gpus_per_server": one.layout.tensor,
            "ranks": one.layout.ranks,
            "fits": not one.too_large,
            "memory": one.memory,
            "flops": one.flops,
            "bytes": asdict(one.traffic),
            "seconds": one.seconds | {"step": one.step(), "lock_step": one.step(0)},
            "max_async_level": one.lag,
            "waits_for": one.limit,
        }
        for name, one in _found(plan).items()
    }
    return {"scaling": told} if told else {}


def _facts(one: Scaling, gpus: int) -> list[str]:
    layout, idle = one.layout, gpus - one.layout.gpus
    tokens = one.config.trainer.micro_batch_tokens
    shared = (
        "1 GPU samples and trains"
        if not layout.servers
        else f"{_count(layout.servers, 'server')} and {_count(layout.ranks, 'rank')}"
    )
    if layout.tensor > 1:
        shared += f", {layout.tensor} GPUs a server"
    lines = [
        f"GPUs: {shared}" + (f"; {_count(idle, 'GPU')} would bring (nearly) nothing" if idle else ""),
        f"a step computes: {flops(one.flops['sampling'])} in sampling, {flops(one.flops['training'])} in training, in "
        f"{_count(one.share.micro_batches, 'micro-batch', 'es')} a rank"
        + (f" of at most {tokens:,} tokens" if tokens else ""),
    ]
    if one.too_large:
        needed = ", ".join(f"{role} {size / 1e9:.0f} GB" for role, size in one.too_large.items())
        return [*lines, f"it does NOT fit: {needed} of {one.device.memory / 1e9:.0f} GB a GPU"]
    lines += [f"{part}: {seconds(value)}{_through(one, part)}" for part, value in one.seconds.items() if value]
    on = f" on {layout.gpus} of the {gpus} GPUs" if idle else ""
    if not layout.servers:
        return [*lines, f"a step{on}: {seconds(one.step())}; what it waits for: {one.limit}"]
    lag = f"{seconds(one.step())} with max_async_level {one.lag}, {seconds(one.step(0))} in lock-step"
    busy = one.busiest
    assert busy is not None
    link = one.link_of(busy[0])
    assert link is not None
    return [*lines, f"a step{on}: {lag}; what it waits for: {one.limit}; busiest link: {link.name} ({busy[0]})"]


def _through(one: Scaling, part: str) -> str:
    link, sent = one.link_of(part), one.traffic
    if link is None:
        return ""
    amount = {
        "answers": sent.http,
        "collectives": sent.gathered + sent.reduced,
        "writing weights": sent.weights,
        "reading weights": sent.weights * one.layout.servers,
    }[part]
    return f" ({size(amount)}{' a rank' if part == 'collectives' else ''}, {link.name})"


def advice(found: dict[str, Scaling], gpus: int) -> list[str]:
    """What would make a step shorter, by what it waits for, with what that would bring."""
    now = found["today"]
    if now.too_large:
        return list(_on_memory(now))
    lines = list(_on_layout(now))
    lines += list(_on_sampling(now, found["next"], gpus)) if now.limit in ("sampling", "answers") else []
    later = now if now.limit not in ("sampling", "answers") else found["next"]
    if later.limit in ("collectives", "training"):
        lines += _on_training(later)
    if later.layout.servers and (later.limit.endswith("weights") or later.hiding_lag > MAX_LAG):
        lines += _on_weights(later)
    if now.layout.servers and not now.config.orchestrator.max_async_level:
        lines.append(
            f"--orchestrator.max-async-level {now.lag}: {seconds(now.step())} a step, not {seconds(now.step(0))}"
        )
    return lines


def _on_layout(one: Scaling) -> Iterator[str]:
    """The flags for this layout, where the config has another."""
    config, layout = one.config, one.layout
    if not layout.servers and config.mode == "split":
        yield f"--mode colocated, on one GPU: {seconds(one.step())} a step, without weights from process to process"
    elif layout.servers and (config.mode != "split" or config.trainer.ranks != layout.ranks):
        yield f"--mode split --trainer.ranks {layout.ranks}: shared out as said above"


def _on_sampling(now: Scaling, then: Scaling, gpus: int) -> Iterator[str]:
    if gpus > 1 and then.layout.servers > now.layout.servers and not then.too_large:
        yield (
            f"hone samples on one server: {then.layout.servers} would bring a step to {seconds(then.step())} "
            f"({NOT_YET}); until then {_count(now.layout.gpus, 'GPU')} can do nearly what {gpus} do"
        )
    yield "sample faster: --inference.backend vllm, or on hone's own engine --inference.cuda-graphs"
    groups = now.config.orchestrator.batch_size // now.config.orchestrator.rollouts_per_example
    if gpus > groups:
        yield f"a batch of {groups} prompts keeps {groups} servers at work at most: raise orchestrator.batch_size"


def _on_training(one: Scaling) -> Iterator[str]:
    sent, passes = one.traffic, one.share.micro_batches
    if one.limit == "training":
        yield "the trainer computes: more ranks, if there are GPUs"
        return
    if passes > 1:
        saved = sent.reduced * (1 - 1 / passes)
        yield (
            f"{passes} micro-batches a step gather the weights twice each: raise trainer.micro_batch_tokens; to sum "
            f"the gradients once a step would save {size(saved)} of {size(sent.gathered + sent.reduced)} ({NOT_YET})"
        )
    if one.config.precision != "bf16":
        yield "precision = bf16 halves the weights that are gathered and published: bf16_linear gathers them in fp32"
    yield f"fewer ranks with larger shares: of {one.layout.ranks}, each waits for all others' rows"


def _on_weights(one: Scaling) -> Iterator[str]:
    copies, sent = one.layout.servers, one.traffic.weights
    push = one.links.collectives(one.layout.gpus).seconds(sent)
    yield (
        f"the weights go through files ({size(sent)}, read by {_count(copies, 'server')}): from GPU to GPU they "
        f"would take {seconds(push)} ({NOT_YET})"
    )
    nodes = one.links.nodes(copies * one.layout.tensor)
    if nodes < copies and one.links.nodes(one.layout.gpus) > 1:
        once = nodes * one.links.shared_spool.seconds(sent) + one.links.spool.seconds(sent)
        now = seconds(one.seconds["reading weights"])
        yield f"one copy for each machine, read there by its servers: {seconds(once)}, not {now} ({NOT_YET})"
    if one.config.precision != "bf16":
        yield "precision = bf16 halves them"
    yield f"fewer publications: steps of more completions; adapters (LoRA) are a hundredth of it ({NOT_YET})"


def _on_memory(one: Scaling) -> Iterator[str]:
    whole = weight_bytes(one.shape, one.config.precision)
    card = one.device.memory
    if "both" in one.too_large:
        yield f"one GPU is too small to train it: use several ({one.memory['both'] / 1e9:.0f} GB are needed)"
    if "server" in one.too_large:
        yield (
            f"a server keeps two versions of the weights ({size(2 * whole)}) on one GPU of {size(card)}: take a larger "
            f"card; a server over several GPUs is {NOT_YET}"
        )
    if whole > card:
        yield f"each rank loads the whole model ({size(whole)}) before it keeps its rows; to load only these: {NOT_YET}"
    elif "trainer" in one.too_large:
        yield "more ranks, or a smaller trainer.micro_batch_tokens: hone keeps all activations of a micro-batch"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"


def seconds(value: float) -> str:
    """`0.04 s`, `3.1 s`, `54 s`, `5.2 min`, `3.1 h`"""
    if value >= 7200:
        return f"{value / 3600:.1f} h"
    if value >= 300:
        return f"{value / 60:.1f} min"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s" if value >= 0.1 else f"{value:.2g} s"


def size(amount: float) -> str:
    """Bytes, as `12 MB` or `1.2 TB`."""
    return _scaled(amount, "B", ("", "k", "M", "G", "T", "P"))


def flops(amount: float) -> str:
    """FLOPs, as `34 PFLOP`."""
    return _scaled(amount, "FLOP", ("", "k", "M", "G", "T", "P", "E"))


def _scaled(amount: float, unit: str, prefixes: tuple[str, ...]) -> str:
    index = 0
    while amount >= 999.5 and index < len(prefixes) - 1:
        amount, index = amount / 1000, index + 1
    return f"{amount:.2g} {prefixes[index]}{unit}" if amount < 99.5 else f"{amount:.0f} {prefixes[index]}{unit}"
