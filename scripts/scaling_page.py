"""Writes the tables of docs/scaling.md anew, from plan's own code and from the recorded measurement.

    .venv/bin/python scripts/scaling_page.py

What stands between `<!-- table: NAME -->` and `<!-- end -->` is replaced; the rest of the page is left as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hone.config.rl import RLConfig
from hone.planning.devices import device_named
from hone.planning.lengths import Lengths
from hone.planning.links import Link, links_of
from hone.planning.scaling import Scaling, best
from hone.planning.scaling_words import flops, seconds, size
from hone.planning.shape import known

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "scaling.md"
RESULT = ROOT / "benchmarks" / "results" / "scaling.json"
MODELS = {"0.6B": "qwen3-0.6b", "8B": "qwen3-8b", "70B": "llama-3.1-70b"}
GPUS = (1, 8, 64, 512)
LENGTHS = Lengths(128, 1024, 128, 1024)
GROUP, COMPLETIONS, EACH = 16, 512, 64
DEVICE = "h100"


def config_of(completions: int) -> RLConfig:
    """The workload of the page."""
    sampling = {"max_tokens": int(LENGTHS.completion)}
    orchestrator = {"batch_size": completions, "rollouts_per_example": GROUP, "sampling": sampling}
    sections = {"precision": "bf16", "mode": "split", "seq_len": int(LENGTHS.longest), "orchestrator": orchestrator}
    return RLConfig.model_validate({"model": {"name": "hone/tiny"}, **sections})


def planned(model: str, gpus: int, today: bool, completions: int = COMPLETIONS) -> Scaling:
    shape = known(MODELS[model])
    assert shape is not None
    return best(config_of(completions), shape, device_named(DEVICE), gpus, LENGTHS, today)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *together(rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def together(rows: list[list[str]]) -> list[list[str]]:
    """Neighbours that differ in the number of GPUs alone, in one row."""
    merged: list[list[str]] = []
    for model, gpus, *rest in rows:
        if merged and (merged[-1][0], merged[-1][2:]) == (model, rest):
            merged[-1][1] += f", {gpus}"
        else:
            merged.append([model, gpus, *rest])
    return merged


def limit(one: Scaling) -> str:
    """What a step waits for, and through what its bytes pass."""
    link = one.link_of(one.limit)
    return one.limit if link is None else f"**{one.limit}** ({link.name})"


def fits(one: Scaling) -> str:
    return ", ".join(f"{role} {amount / 1e9:.0f} GB" for role, amount in one.too_large.items())


def today() -> str:
    rows = []
    for model in MODELS:
        for gpus in GPUS:
            one = planned(model, gpus, True)
            if one.too_large:
                rows.append(
                    [model, str(gpus), "does not fit", "", "", f"{fits(one)} of {one.device.memory / 1e9:.0f} GB"]
                )
                continue
            used = one.layout.words
            rows.append([model, str(gpus), used, seconds(one.step(0)), seconds(one.step()), limit(one)])
    return table(["model", "GPUs", "servers + ranks", "a step, lock-step", "a step, async", "it waits for"], rows)


def bytes_of_a_step() -> str:
    rows = []
    for model in MODELS:
        for gpus in GPUS:
            one = planned(model, gpus, False)
            sent, split = one.traffic, one.layout.servers
            if one.too_large:
                rows.append([model, str(gpus), f"does not fit: {fits(one)}", *[""] * 5])
                continue
            rows.append(
                [
                    model,
                    str(gpus),
                    one.layout.words,
                    f"{flops(one.flops['sampling'])} + {flops(one.flops['training'])}",
                    f"{one.share.micro_batches} x {one.config.trainer.micro_batch_tokens:,}",
                    size(sent.gathered) + " + " + size(sent.reduced) if sent.gathered else "none",
                    f"{size(sent.weights)} x {split}" if split else "none",
                    size(sent.http) if split else "none",
                ]
            )
    head = ["model", "GPUs", "servers + ranks", "FLOPs: sampling + training", "micro-batches x tokens a rank"]
    return table([*head, "weights + gradients a rank receives", "weights, by servers that read", "answers"], rows)


def seconds_of_a_step() -> str:
    rows = []
    for model in MODELS:
        for gpus in GPUS:
            one = planned(model, gpus, False)
            if one.too_large:
                continue
            of = one.seconds
            weights = (
                f"{seconds(of['writing weights'])} + {seconds(of['reading weights'])}" if one.layout.servers else "none"
            )
            wire = seconds(of["collectives"]) if of["collectives"] else "none"
            parts = [seconds(of["sampling"]), seconds(of["training"]), wire, weights]
            rows.append([model, str(gpus), *parts, seconds(one.step()), str(one.hiding_lag), limit(one)])
    head = ["model", "GPUs", "sampling", "training", "collectives", "weights: write + read", "a step"]
    return table([*head, "k that hides all", "it waits for"], rows)


def larger_batches() -> str:
    rows = []
    for model in MODELS:
        for gpus in GPUS[1:]:
            one = planned(model, gpus, False, EACH * gpus)
            if one.too_large:
                continue
            rate = f"{EACH * gpus / one.step():,.0f}"
            rows.append([model, str(gpus), f"{EACH * gpus:,}", one.layout.words, seconds(one.step()), rate, limit(one)])
    head = ["model", "GPUs", "completions", "servers + ranks", "a step", "completions/s", "it waits for"]
    return table(head, rows)


def links() -> str:
    device = device_named(DEVICE)
    found = links_of(device)

    def row(link: Link) -> list[str]:
        return [link.name, f"{size(link.peak)}/s x {link.efficiency:.0%}", link.shared_by, link.source]

    card = [
        device.name,
        f"{size(device.bandwidth)}/s, {flops(device.flops['bf16'])}/s in bf16",
        "each GPU",
        "NVIDIA's data sheet; the shares that are reached are those of `hone plan`",
    ]
    all_links = (found.inside, found.between, found.spool, found.shared_spool, found.http)
    return table(["link", "speed", "of", "where the number is from"], [card, *map(row, all_links)])


def measured() -> str:
    """The record of benchmarks/scaling.py."""
    record: dict[str, Any] = json.loads(RESULT.read_text())
    rows = [row for precision, of in record["ranks"].items() for row in _ranks(precision, of)]
    split = record["split"]
    names = {
        "batch_bytes": "batch file",
        "weights_bytes": "weights file",
        "http_bytes": "HTTP, a step",
        "rollouts_bytes": "rollouts, a step",
    }
    rows += [
        [
            "three processes",
            text,
            size(split["predicted"][key]),
            size(split["measured"][key]),
            _ratio(split["ratio"][key]),
        ]
        for key, text in names.items()
    ]
    return table(["what", "quantity", "predicted", "measured", "predicted / measured"], rows)


def _ranks(precision: str, of: dict[str, Any]) -> Iterator[list[str]]:
    for world, one in of.items():
        what = f"{precision}, {world} process{'es' if world != '1' else ''}"
        for key, name in (("step", "a train step"), ("publish", "gather, write, score")):
            for unit, show in (("bytes", size), ("seconds", seconds)):
                guess, seen = one["predicted"][key][unit], one["measured"][key][unit]
                if guess and seen:
                    sent = ", sent" if unit == "bytes" else ""
                    yield [what, name + sent, show(guess), show(seen), _ratio(one["ratio"][key][unit])]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if abs(value - 1) < 0.02 else f"{value:.2f}"


TABLES = {
    "today": today,
    "bytes": bytes_of_a_step,
    "seconds": seconds_of_a_step,
    "larger": larger_batches,
    "links": links,
    "measured": measured,
}


def filled(page: str) -> str:
    """The page with its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end -->", fill, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
