"""The files of a run card: report.html, card.md, and report.json, which has the numbers and what was read leniently.

A card is of the run as it was when it was written. What takes long to measure, and is still true of a run that has not
changed, is read back from report.json (`stored`): so pages of `hone view` need not grade.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.runs.files import read_json, sha256, write_file
from hone.runs.outputs import CARD, run_info
from hone.runs.rollouts import RESULTS, evals_file, plain
from hone.runs.summary import Summary
from hone.viewer.card.evaluations import Evaluated
from hone.viewer.card.facts import NOT_READ, Card
from hone.viewer.card.leniency import Leniency
from hone.viewer.card.page import markdown, whole_page
from hone.viewer.card.paired import Change, Level

FORMAT = "hone-card-1"
PAGE, MARKDOWN, RECORD = CARD


def write_card(card: Card, folder: Path) -> list[Path]:
    """Write the three files into `folder`, each whole or not at all; report.json last. Returns their paths.

    OSError if the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = {PAGE: whole_page(card), MARKDOWN: markdown(card), RECORD: to_json(card)}
    for name, text in texts.items():
        write_file(folder / name, text.encode("utf-8", "backslashreplace"))
    return [folder / name for name in texts]


def to_json(card: Card) -> str:
    """Return `record` as text."""
    return json.dumps(plain(record(card)), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def refuse_others(folder: Path, path: Path) -> None:
    """Raise UserError if `folder` has files of the names of a card that are not the card of the run in `path`."""
    there = [name for name in CARD if (folder / name).exists()]
    if not there:
        return
    try:
        ours = read_json(folder / RECORD)["run"]["id"] == (run_info(path) or {})["id"]
    except (OSError, UserError, KeyError, TypeError):
        ours = False
    if not ours:
        names = " and ".join(there)
        raise UserError(
            f"{folder} holds {names}, and not as the card of {path}: choose another --output, or remove what is there"
        )


def record(card: Card) -> dict[str, Any]:
    """Return the card's numbers and sentences as JSON."""
    run, comparison = card.run, card.comparison
    about = {name: run.info.get(name) for name in ("id", "kind", "seed", "exact", "inexact", "sources", "git")}
    facts: dict[str, Any] = {"format": FORMAT, "written": card.written, "title": card.title}
    facts |= {"run": about | {"status": run.status, "task": run.task}, "standing": card.status}
    facts |= {"steps": {"done": run.progress.done, "planned": run.progress.max_steps}}
    facts |= {"verdict": card.verdict, "better": card.good, "caveats": card.caveats}
    facts["measures"] = {name: _level(one) for name, one in {**card.measures, **card.readings}.items()}
    facts["changes"] = {name: _change(one) for name, one in {**card.changes, **card.gains}.items()}
    if comparison is not None:
        found = comparison.turned
        facts["versions"] = [comparison.first.step, comparison.last.step]
        facts["turned"] = asdict(found) | {"p": found.p}
    facts["lenient"] = card.leniency.record() | {"evaluations": digests(run.path, card.evaluated)}
    facts["seconds"], facts["usd"], facts["tokens"] = run.seconds, run.spent.usd, run.spent.tokens
    facts["alarms"] = [asdict(alarm) for alarm in card.alarms]
    facts["tables"] = {"about": card.about, "costs": card.costs, "checks": card.checks}
    facts["samples"] = [{"name": one.name, **_sample(one.row)} for one in card.samples]
    facts["again"] = {"commands": card.commands, "hashes": dict(card.hashes)}
    return facts


def digests(path: Path, evaluated: Sequence[Evaluated]) -> dict[str, str]:
    """Return the SHA-256 of the samples of each evaluation, by its key."""
    files = {one.key: path / (RESULTS if one.step is None else evals_file(one.step)) for one in evaluated}
    return {key: sha256(file) for key, file in files.items()}


def stored(run: Summary, evaluated: Sequence[Evaluated]) -> Leniency:
    """Return what a card in the run's folder says of these evaluations, if it is of the very same samples."""
    try:
        facts = read_json(run.path / RECORD)["lenient"]
        if facts["evaluations"] == digests(run.path, evaluated):
            return Leniency.from_record(facts)
    except (OSError, UserError, KeyError, TypeError, ValueError):
        pass
    return NOT_READ


def _level(one: Level) -> dict[str, Any]:
    interval = one.interval
    return {"mean": one.mean, "low": interval and interval.low, "high": interval and interval.high}


def _change(one: Change) -> dict[str, Any]:
    parts = {"before": one.before, "after": one.after, "difference": one.difference}
    return {name: _level(level) for name, level in parts.items()} | {"examples": one.count}


def _sample(row: Any) -> dict[str, Any]:
    names = ("example_id", "prompt", "completion", "answer", "reward", "components", "outcome", "stop_reason")
    return {name: row[name] for name in names}
