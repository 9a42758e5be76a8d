"""What to change where a run does not fit into memory: each setting alone, and by how much it helps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.planning.devices import DEVICES, Device
from hone.planning.lengths import Lengths
from hone.planning.memory import GIB, KV_GIB, MICRO_BATCH_TOKENS, needed, sampled_at_once
from hone.planning.shape import Shape
from hone.planning.time import Times, times

Config = RLConfig | SFTConfig


def remedies(
    config: Config, shape: Shape, device: Device, ranks: int, lengths: Lengths, room: int, gpus: int = 1
) -> list[str]:
    """One line for each setting that helps, those that make it fit first; then the smallest card that would do."""

    def total(changed: Config, ranks: int = ranks, lengths: Lengths = lengths, gpus: int = gpus) -> int:
        return needed(changed, shape, device, ranks, gpus, lengths).total

    now = total(config)
    tried: list[tuple[str, int]] = []
    for name, changed, longer in _changes(config, device, lengths, lambda c, n: total(c, lengths=n) <= room):
        tried.append((name, total(changed, lengths=longer)))
    if device.kind == "cuda":
        rl = isinstance(config, RLConfig)
        shared = config.model_copy(update={"mode": "split"}) if rl else config
        sizes = {n: total(shared, ranks=n, gpus=n + 1) for n in (2, 4, 8, 16, 32, 64) if n > ranks}
        if (enough := next((n for n, taken in sizes.items() if taken <= room), None)) is not None:
            how = f"--mode split --trainer.ranks {enough}, a GPU each and one for the server"
            how = how if rl else f"torchrun --nproc-per-node {enough}, a GPU each"
            tried.append((how, sizes[enough]))
    helped = sorted((new, name) for name, new in tried if new < 0.98 * now)
    fitting = [_line(name, new, "fits") for new, name in helped if new <= room]
    helping = [_line(name, new, f"still {(new - room) / GIB:.1f} GiB too much") for new, name in helped if new > room]
    larger = [d for d in DEVICES.values() if needed(config, shape, d, ranks, gpus, lengths).total <= d.memory]
    cards = []
    if larger:
        card = min(larger, key=lambda d: (d.memory, d.usd_per_hour or 0))
        cards = [f"a card of {card.memory / GIB:.0f} GiB, such as the {card.name}: fits as it is"]
    together = _together(config, device, lengths, total, room) if not fitting else []
    return [*fitting, *together, *helping[:4], *cards]


def _line(name: str, new: int, verdict: str) -> str:
    return f"{name}: {new / GIB:.1f} GiB, {verdict}"


def _changes(
    config: Config, device: Device, lengths: Lengths, fits: Callable[[Config, Lengths], bool]
) -> Iterator[tuple[str, Config, Lengths]]:
    """(flag, the config with it, its lengths), each alone, as far as it helps or as it may go."""
    rl = config if isinstance(config, RLConfig) else None
    if config.precision != "bf16":
        yield "--precision bf16", _with(config, precision="bf16"), lengths
    section = "trainer" if rl else "data"
    longest = max(1, lengths.longest)
    most = (rl.trainer.micro_batch_tokens if rl else None) or (
        config.data.micro_batch_tokens if isinstance(config, SFTConfig) else None
    )
    most = most or MICRO_BATCH_TOKENS[device.kind]
    for tokens in _halves(most, max(256, longest)):
        changed = _with(config, **{section: {"micro_batch_tokens": tokens}})
        if fits(changed, lengths) or tokens <= max(256, longest):
            yield f"--{section}.micro-batch-tokens {tokens}", changed, lengths
            break
    if config.ckpt is not None and config.ckpt.background and device.kind == "cpu":
        yield "--no-ckpt.background", _with(config, ckpt={"background": False}), lengths
    if rl is None:
        return
    if rl.trainer.loss.kl_coef > 0:
        yield "--trainer.loss.kl-coef 0 (no reference model)", _with(rl, trainer={"loss": {"kl_coef": 0.0}}), lengths
    kv = rl.inference.kv_gib or KV_GIB
    for gib in _halves(int(kv * 4), 1):
        changed = _with(rl, inference={"kv_gib": gib / 4})
        if fits(changed, lengths) or gib == 1:
            yield f"--inference.kv-gib {gib / 4:g} (sampling in more waves)", changed, lengths
            break
    for part in (2, 4):
        shorter = Lengths(
            lengths.prompt / part,
            lengths.completion / part,
            max(1, lengths.longest_prompt // part),
            max(1, lengths.longest_completion // part),
        )
        if fits(rl, shorter) or part == 4:
            yield f"--seq-len {rl.seq_len // part} with max_tokens in proportion", rl, shorter
            break


WORTH = 0.9
"""Share of the seconds of a run that a setting must leave at most to be worth a word."""


def more_at_once(
    config: RLConfig, shape: Shape, device: Device, ranks: int, lengths: Lengths, room: int, gpus: int, now: Times
) -> Iterator[str]:
    """Where sampling goes in waves and takes most of the time, and memory is left: the room for keys and values that
    would make it faster, with what it would save.
    """
    at_once, rows, _ = sampled_at_once(config, shape, lengths)
    if at_once == rows or now.steps * now.sample + now.evaluations * now.evaluate < 0.5 * now.total:
        return
    kv = config.inference.kv_gib or KV_GIB
    allowed = max(0.9 * room, needed(config, shape, device, ranks, gpus, lengths).total)
    whole = math.ceil(rows * lengths.longest * shape.kv_bytes_per_token() / GIB)
    for gib in (whole, *_halves(whole, math.ceil(kv))):
        changed = _with(config, inference={"kv_gib": float(gib)})
        if gib <= kv or needed(changed, shape, device, ranks, gpus, lengths).total > allowed:
            continue
        then = times(changed, shape, device, lengths, None, gpus)
        if then.total <= WORTH * now.total:
            many = sampled_at_once(changed, shape, lengths)[0]
            yield (
                f"memory is left, and sampling waits for it: --inference.kv-gib {gib} ({many:,} completions at once, "
                f"not {at_once:,}) saves {100 * (1 - then.total / now.total):.0f} % of the time"
            )
        return


def _halves(value: int, least: int) -> Iterator[int]:
    """value / 2, / 4, … down to `least`."""
    while value > least:
        value = max(least, value // 2)
        yield value


def _together(config: Config, device: Device, lengths: Lengths, total: Callable[..., int], room: int) -> list[str]:
    """Where none helps enough alone: the settings that cost nothing in quality, one after the other until it fits."""
    names: list[str] = []
    changed = config
    for name, one, _ in _changes(config, device, lengths, lambda c, n: total(c, lengths=n) <= room):
        if "seq-len" in name or "kl-coef" in name:
            continue
        names.append(name.partition(" (")[0])
        changed = _merged(changed, config, one)
        if (new := total(changed)) <= room and len(names) > 1:
            return [_line(" ".join(names), new, "fits")]
    return []


def _with(config: Any, **changes: Any) -> Any:
    """The config with these keys changed; a dict changes keys of a section."""
    update = {
        name: _with(getattr(config, name), **value) if isinstance(value, dict) else value
        for name, value in changes.items()
    }
    return config.model_copy(update=update)


def _merged(base: Any, before: Any, after: Any) -> Any:
    """`base` with what differs between `before` and `after`."""
    update = {}
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            nested = hasattr(old, "model_copy") and hasattr(new, "model_copy")
            update[name] = _merged(getattr(base, name), old, new) if nested else new
    return base.model_copy(update=update)
