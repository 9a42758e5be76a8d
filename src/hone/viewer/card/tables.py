"""The tables of a run card: what was trained, what it took, what was checked, how to have it again, its measures."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.runs import Run, predictions, settings
from hone.runs.files import LARGEST, open_file, parse_json, read_json, sha256
from hone.runs.progress import thousands
from hone.runs.summary import (
    Summary,
    audit_in_words,
    certificate_in_words,
    code_in_words,
    exactness,
    local_time,
    machine_in_words,
    settings_in_words,
    typed,
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


def about(card: Card) -> Rows:
    """Give what was trained, with what settings, where."""
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
        section = run.config.get({"rl": "orchestrator"}.get(run.kind, "data"), {}).get("env", {})
        if args := run.config.get("env_args") if run.kind == "eval" else section.get("args"):
            yield "task arguments", json.dumps(args, ensure_ascii=False)
    elif name := run.config.get("data", {}).get("name") or run.config.get("data", {}).get("path"):
        yield "data", str(name)
    sources = info.get("sources", {})
    digests = [f"{name} {str(sources[name])[:16]}" for name in ("data", "environment", "model") if sources.get(name)]
    if digests:
        yield "digests", ", ".join(digests)
    flat = settings.flat(run.config)
    chosen = [words.format(flat[key]) for words, key in _MATTER.get(run.kind, ()) if key in flat]
    if chosen:
        yield "settings", ", ".join(chosen)
    if others := settings_in_words(run):
        yield "not the defaults", ", ".join(others)
    yield "seed", str(info["seed"])
    if parent := info.get("parent"):
        yield "parent", f"step {parent['step']} of run {parent['id']}"
    yield "machine", machine_in_words(info)
    yield "code", code_in_words(info)


def parameters(path: Path) -> int | None:
    """Count the parameters of the newest weights of the run, from the headers of their files; None without any."""
    weights = Run(path).weights()
    if not weights:
        return None
    files = sorted(weights[max(weights)].glob("*.safetensors"))
    return sum(map(_numbers_in, files)) or None


def _numbers_in(file: Path) -> int:
    """Count the numbers in a safetensors file: its header, 8 bytes of length and JSON, has each tensor's shape."""
    with open_file(file) as opened:
        header = parse_json(opened.read(min(LARGEST, int.from_bytes(opened.read(8), "little"))))
    return sum(math.prod(facts["shape"]) for name, facts in header.items() if name != "__metadata__")


def costs(card: Card) -> Rows:
    """Give what it took."""
    run = card.run
    if run.kind == "eval":
        file = run.path / "metadata.json"
        facts = read_json(file) if file.is_file() else {}
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
    """Return the tokens that the policy sampled in training steps: mean length times completions."""
    size = config.get("orchestrator", {}).get("batch_size")
    lengths = [line["completion/length/mean"] for line in lines if line.get("completion/length/mean") is not None]
    return round(sum(lengths) * size) if size and lengths else None


def _hours(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.1f} s"
    return f"{seconds / 3600:.2f} hours"


def checks(card: Card) -> Rows:
    """Give what was checked."""
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


def commands(run: Summary) -> Iterator[str]:
    """Give the commands by which to have it again."""
    git, versions = run.info.get("git"), run.info["versions"]
    if git:
        yield f"git checkout {git['revision']}" + ("  # and what was changed in it" if git["dirty"] else "")
    if packages := [f"{name}=={versions[name]}" for name in ("torch", "numpy", "transformers") if versions.get(name)]:
        yield f"# python {versions.get('python')}, " + ", ".join(packages)
    yield typed(run.info["command"])
    if run.kind != "eval":
        yield f"# or, from the resolved config: hone {run.kind} @ {shlex.quote(str(run.path / 'config.toml'))}"
        yield f"hone verify {shlex.quote(str(run.path))} --steps 3"


def config_text(path: Path) -> str:
    """Return the resolved config as TOML; empty if there is none."""
    file = path / "config.toml"
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def hashes(card: Card) -> Rows:
    """Give the hashes by which to tell that another run is the same."""
    run = card.run
    if run.kind != "eval":
        yield "run", run.info["id"]
        for line in Run(run.path).hashes()[-1:]:
            yield f"weights of version {line['step']}, fingerprint", str(line["weights"])
        if task := run.info.get("sources", {}).get("environment"):
            yield "the task's file, SHA-256", str(task)
        if run.config:
            yield "settings that decide the numbers, SHA-256", settings.digest(run.config)
    for name in ("results.jsonl",) if run.kind == "eval" else ("metrics.jsonl", "hashes.jsonl"):
        if (run.path / name).is_file():
            yield f"{name}, SHA-256", sha256(run.path / name)


_NAMES = {"reward": "mean reward", "exact": "correct (pass@1)"}
_READ = {
    "strict reward": "reward, strict",
    "lenient reward": "reward, lenient: skill",
    "reward gap": "lenient minus strict: format",
    "strict": "correct, strict",
    "lenient": "correct, lenient: skill",
    "gap": "lenient minus strict: format",
}
"""Measures of `hone.viewer.card.leniency` in words: of a change; of one evaluation without what follows the colon."""


def heads(card: Card) -> tuple[str, ...]:
    """Return the heads of the columns of the tables below."""
    if card.comparison is None:
        return "", "95 % interval in brackets"
    return "", f"version {card.comparison.first.step}", f"version {card.comparison.last.step}", "change"


def intervals_in_words(card: Card) -> str:
    """Return of which kind the intervals of the tables are."""
    paired = " The same examples before and after, changes of shares in percentage points." if card.comparison else ""
    return (
        "In brackets 95 % intervals over examples, by the bootstrap; of a share that is the same for all examples, "
        f"such as 0 %, Wilson's.{paired} pass@k: at least one of k completions of an example is correct."
    )


def measure_rows(card: Card) -> list[tuple[str, ...]]:
    """Return rows of the table of measures: name, before, after, change; of a single evaluation name and value."""
    if card.comparison is None:
        return [(_NAMES.get(name, name), level_words(one, name)) for name, one in card.measures.items()]
    return [_change_row(_NAMES.get(name, name), one, name) for name, one in card.changes.items()]


def lenient_rows(card: Card) -> list[tuple[str, ...]]:
    """Return the same of what was read leniently: the format's part is what the gap lost."""
    if card.comparison is None:
        labels = {name: label.partition(":")[0] for name, label in _READ.items()}
        return [(labels[name], level_words(one, name)) for name in _READ if (one := card.readings.get(name))]
    return [_change_row(label, card.gains[name], name) for name, label in _READ.items() if name in card.gains]


def _change_row(label: str, change: Change, name: str) -> tuple[str, ...]:
    difference = difference_words(change.difference, share="reward" not in name)
    return label, level_words(change.before, name), level_words(change.after, name), difference


def level_words(one: Level, name: str) -> str:
    """Return `0.947 (0.935 to 0.959)` of a reward, `52.3 % (46.1 to 58.4)` of a share."""
    factor, digits, unit = (1, 3, "") if "reward" in name else (100, 1, " %")
    interval = one.interval
    span = f" ({factor * interval.low:.{digits}f} to {factor * interval.high:.{digits}f})" if interval else ""
    return f"{factor * one.mean:.{digits}f}{unit}{span}"


def loss_rows(card: Card) -> Iterator[tuple[str, str, str, str]]:
    """Give of SFT each loss at the beginning and at the end, and its change (nats per token)."""
    for name, label, many in (("loss", "training loss", 10), ("val/loss", "validation loss", 1)):
        values = [line[name] for line in card.lines if isinstance(line.get(name), int | float)]
        if len(values) >= 2:
            size = min(many, len(values) // 2)
            first, last = sum(values[:size]) / size, sum(values[-size:]) / size
            steps = f", mean of {size} steps" if size > 1 else ""
            yield label + steps, f"{first:.4f}", f"{last:.4f}", f"{last - first:+.4f}"
