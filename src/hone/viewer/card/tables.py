"""The tables of a run card: what was trained, what it took, what was checked. Each row is (label, text)."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.runs import Run, predictions, settings
from hone.runs.checked import LARGEST_DOCUMENT, open_file, parse_json
from hone.runs.files import read_json
from hone.runs.progress import thousands
from hone.runs.summary import local_time
from hone.runs.verdicts import (
    audit_in_words,
    certificate_in_words,
    code_in_words,
    exactness,
    machine_in_words,
    settings_in_words,
)
from hone.viewer.card.paired import Change, Level
from hone.viewer.card.sentences import counted, difference_words

if TYPE_CHECKING:
    from hone.viewer.card.facts import Card

Rows = Iterator[tuple[str, str]]
_MATTER = {
    "rl": (
        ("{} steps", "max_steps"),
        ("{} completions a step", "orchestrator.batch_size"),
        ("{} a prompt", "orchestrator.rollouts_per_example"),
        ("learning rate {}", "trainer.optim.lr"),
        ("sequences of at most {} tokens", "seq_len"),
        ("sampled at temperature {}", "orchestrator.sampling.temperature"),
        ("precision {}", "precision"),
        ("mode {}", "mode"),
    ),
    "sft": (
        ("{} steps", "max_steps"),
        ("batches of {}", "data.batch_size"),
        ("sequences of at most {} tokens", "data.seq_len"),
        ("learning rate {}", "optim.lr"),
        ("{} schedule", "scheduler.type"),
        ("precision {}", "precision"),
    ),
    "eval": (
        ("{} examples", "num_examples"),
        ("{} completions each", "rollouts_per_example"),
        ("sampled at temperature {}", "temperature"),
        ("precision {}", "precision"),
    ),
}
"""Settings that a reader looks for, whether they are the defaults or not."""


def fill(card: Card) -> None:
    """The three tables. Of one whose files are damaged the rows up to there are kept, and the card says so."""
    for rows, table in ((_about(card), card.about), (_costs(card), card.costs), (_checks(card), card.checks)):
        card.attempt(partial(table.extend, rows), None)


def _about(card: Card) -> Rows:
    run, info = card.run, card.run.info
    yield (
        "method",
        {"rl": "reinforcement learning with verifiable rewards", "sft": "supervised fine-tuning"}.get(
            run.kind, "evaluation"
        ),
    )
    model = run.config.get("model", "")
    yield "model", str(model.get("name", "") if isinstance(model, Mapping) else model)
    if count := parameters(run.path):
        yield "parameters", f"{count:,} ({thousands(count)})"
    if run.task:
        yield "task", run.task
        if arguments := _arguments(card):
            yield "task arguments", arguments
    elif name := run.config.get("data", {}).get("name") or run.config.get("data", {}).get("path"):
        yield "data", str(name)
    sources = info.get("sources", {})
    digests = [f"{name} {str(sources[name])[:16]}" for name in ("data", "environment", "model") if sources.get(name)]
    if digests:
        yield "digests", ", ".join(digests)
    flat = settings.flat(run.config)
    told = [words.format(flat[key]) for words, key in _MATTER.get(run.kind, ()) if key in flat]
    if told:
        yield "settings", ", ".join(told)
    if others := settings_in_words(run):
        yield "not the defaults", ", ".join(others)
    yield "seed", str(info["seed"])
    if parent := info.get("parent"):
        yield "parent", f"step {parent['step']} of run {parent['id']}"
    yield "machine", machine_in_words(info)
    yield "code", code_in_words(info)


def _arguments(card: Card) -> str:
    run = card.run
    if run.kind == "eval":
        args = run.config.get("env_args")
    else:
        args = run.config.get({"rl": "orchestrator"}.get(run.kind, "data"), {}).get("env", {}).get("args")
    return json.dumps(args, ensure_ascii=False) if args else ""


def parameters(path: Path) -> int | None:
    """Parameters of the newest weights that the run wrote, from the headers of their files; None without any."""
    weights = Run(path).weights()
    if not weights:
        return None
    files = sorted(weights[max(weights)].glob("*.safetensors"))
    return sum(map(_numbers_in, files)) or None


def _numbers_in(file: Path) -> int:
    """How many numbers a safetensors file holds: its header, 8 bytes of length and JSON, has each tensor's shape."""
    with open_file(file) as opened:
        header = parse_json(opened.read(min(LARGEST_DOCUMENT, int.from_bytes(opened.read(8), "little"))))
    return sum(math.prod(facts["shape"]) for name, facts in header.items() if name != "__metadata__")


def _costs(card: Card) -> Rows:
    run = card.run
    if run.kind == "eval":
        facts = _metadata(card)
        counts = [facts.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if None not in counts:
            yield "tokens", f"{counts[0]:,} of prompts, {counts[1]:,} sampled"
        yield "time", _hours(run.seconds)
        return
    tokens = run.spent.tokens
    if run.kind == "rl":
        sampled = _sampled(card.lines, run.config)
        if sampled is not None:
            yield "tokens sampled in training", f"{sampled:,}"
        yield "tokens of training, prompts included", f"{tokens:,}"
        evaluated = [one.tokens for one in card.evaluated]
        if card.evaluated and None not in evaluated:
            count = sum(any(name.startswith("eval/") for name in line) for line in card.lines)
            yield (
                "tokens of the last evaluation",
                f"{evaluated[-1]:,}, prompts included; {counted(count, 'evaluation')}",
            )
    elif tokens:
        yield "tokens trained on", f"{tokens:,}"
    yield "time", _hours(run.seconds)
    if run.spent.usd is not None:
        yield "cost", f"{run.spent.usd:.2f} USD"
    else:
        yield "cost", "not known: --budget.usd-per-hour gives the machine a price"


def _sampled(lines: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> int | None:
    """Tokens that the policy sampled in training steps: mean length times completions."""
    size = config.get("orchestrator", {}).get("batch_size")
    lengths = [line["completion/length/mean"] for line in lines if line.get("completion/length/mean") is not None]
    return round(sum(lengths) * size) if size and lengths else None


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} s"
    return f"{seconds / 3600:.2f} hours"


def _metadata(card: Card) -> dict[str, Any]:
    file = card.run.path / "metadata.json"
    return read_json(file) if file.is_file() else {}


def _checks(card: Card) -> Rows:
    run, info = card.run, card.run.info
    if run.kind == "eval":
        return
    certificate = certificate_in_words(run.path)
    again = "" if certificate or not info["exact"] else "; not executed again yet"
    yield "exact", exactness(info) + again
    for name, text in info.get("exactness", {}).items():
        yield f"exact: {name}", str(text)
    if audit := audit_in_words(run.path):
        yield "audit of the task", audit
    if not card.alarms:
        yield "alarms", "none"
    for alarm in card.alarms:
        yield "alarm, standing" if alarm.over is None else "alarm, over", str(alarm)
    if damage := predictions.problem(info, run.path):
        yield "predictions", damage
    else:
        lines = list(predictions.in_words(info, run.path))
        yield from (("predictions" if i == 0 else "", " ".join(line.split())) for i, line in enumerate(lines))
    verify = f"none: hone verify {shlex.quote(str(run.path))} --steps 3 executes random steps again"
    yield "certificate", certificate or verify
    for resume in info.get("resumes", []):
        yield "resumed", f"at step {resume['step']}, {local_time(resume['time'])}"


def heads(card: Card) -> tuple[str, ...]:
    """Of the columns of the tables below."""
    if card.comparison is None:
        return "", "95 % interval in brackets"
    return "", f"version {card.comparison.first.step}", f"version {card.comparison.last.step}", "change"


def intervals_in_words(card: Card) -> str:
    """Of which kind the intervals of the tables are."""
    paired = " The same examples before and after, changes of shares in percentage points." if card.comparison else ""
    return (
        "In brackets 95 % intervals over examples, by the bootstrap; of a share that is the same for all examples, "
        f"such as 0 %, Wilson's.{paired}"
    )


def measure_rows(card: Card) -> list[tuple[str, ...]]:
    """Rows of the table of measures: name, before, after, change; of a single evaluation name and value."""
    if card.comparison is None:
        return [(_NAMES.get(name, name), level_words(one, name)) for name, one in card.measures.items()]
    return [_change_row(_NAMES.get(name, name), one, name) for name, one in card.changes.items()]


def lenient_rows(card: Card) -> list[tuple[str, ...]]:
    """The same of what was read leniently: the format's part is what the gap lost."""
    if not card.readings:
        return []
    if card.comparison is None:
        return [(_LEVELS[name], level_words(card.readings[name], name)) for name in _LEVELS if name in card.readings]
    return [_change_row(label, card.gains[name], name) for name, label in _READ.items() if name in card.gains]


def _change_row(label: str, change: Change, name: str) -> tuple[str, ...]:
    difference = difference_words(change.difference, share="reward" not in name)
    return label, level_words(change.before, name), level_words(change.after, name), difference


_NAMES = {"reward": "mean reward", "exact": "correct (pass@1)"}
_READ = {
    "strict reward": "reward, strict",
    "lenient reward": "reward, lenient: skill",
    "reward gap": "lenient minus strict: format",
    "strict": "correct, strict",
    "lenient": "correct, lenient: skill",
    "gap": "lenient minus strict: format",
}
_LEVELS = {
    "strict reward": "reward, strict",
    "lenient reward": "reward, lenient",
    "reward gap": "lenient minus strict",
    "strict": "correct, strict",
    "lenient": "correct, lenient",
    "gap": "lenient minus strict",
}
"""Measures of `hone.viewer.card.leniency` in words: of a change, and of one evaluation."""


def level_words(one: Level, name: str) -> str:
    """`0.947 (0.935 to 0.959)` of a reward, `52.3 % (46.1 to 58.4)` of a share."""
    interval = one.interval
    if "reward" in name:
        return f"{one.mean:.3f}" + (f" ({interval.low:.3f} to {interval.high:.3f})" if interval else "")
    return f"{100 * one.mean:.1f} %" + (f" ({100 * interval.low:.1f} to {100 * interval.high:.1f})" if interval else "")


def loss_rows(card: Card) -> Iterator[tuple[str, str, str, str]]:
    """Of SFT: each loss at the beginning and at the end, and its change (nats per token)."""
    for name, label, many in (("loss", "training loss", 10), ("val/loss", "validation loss", 1)):
        values = [line[name] for line in card.lines if isinstance(line.get(name), int | float)]
        if len(values) >= 2:
            size = min(many, len(values) // 2)
            first, last = sum(values[:size]) / size, sum(values[-size:]) / size
            of = f", mean of {size} steps" if size > 1 else ""
            yield label + of, f"{first:.4f}", f"{last:.4f}", f"{last - first:+.4f}"
