"""The files of a run card: report.html, which needs no other file, and report.json with the numbers.

Lenient reading takes long, so `stored` reuses the result in report.json if the samples are the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from jinja2 import FileSystemLoader
from markupsafe import Markup

import hone.extensions.viewer
from hone import __version__
from hone.errors import UserError
from hone.extensions.viewer.card.curve import curve
from hone.extensions.viewer.card.facts import NOT_READ, Card
from hone.extensions.viewer.card.measures import Evaluated, Leniency
from hone.extensions.viewer.card.tables import measure_rows
from hone.extensions.viewer.conversation import turns
from hone.pages import environment
from hone.runs.files import read_json, sha256, write_file
from hone.runs.rollouts import plain
from hone.runs.summary import Summary
from hone.runs.view import CARD, CONFIG, RESULTS, evals_file

PAGE, RECORD = CARD[:2]
LONGEST = 4_000
"""Most characters of a text on the page."""
_VIEWER = Path(hone.extensions.viewer.__file__).parent
_TEMPLATES = environment(FileSystemLoader(_VIEWER / "templates"))


def write_card(card: Card, folder: Path) -> list[Path]:
    """Write both files atomically into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in ((PAGE, whole_page(card)), (RECORD, to_json(card))):
        write_file(folder / name, text.encode("utf-8", "backslashreplace"))
    return [folder / PAGE, folder / RECORD]


def refuse_others(folder: Path, card: Card) -> None:
    """Raise UserError if `folder` has the card of another run, or other files with these names."""
    page, record = folder / PAGE, folder / RECORD
    ours = read_json(record).get("run") if record.is_file() else None
    if (page.exists() or ours) and (not isinstance(ours, dict) or ours.get("id") != card.run.info["id"]):
        raise UserError(f"{page} is not the card of {card.run.path}: choose another --output, or remove this file")


def to_json(card: Card) -> str:
    run, found = card.run, {name: asdict(one) for name, one in {**card.measures, **card.lenient}.items()}
    about = {name: run.info.get(name) for name in ("id", "kind", "seed", "exact", "inexact", "sources", "git")}
    facts = {
        "format": "hone-card-1",
        "written": card.written,
        "title": card.title,
        "run": about | {"status": run.status, "task": run.task},
        "steps": {"done": run.progress.done, "planned": run.progress.max_steps},
        "verdict": card.verdict,
        "better": card.good,
        "caveats": card.caveats,
        "versions": [one.step for one in card.evaluated],
        "turned": card.comparison and {"right": card.comparison.right, "wrong": card.comparison.wrong},
        "measures": {name: one["after"] for name, one in found.items()},
        "changes": found if card.compared else {},
        "lenient": asdict(card.leniency) | {"evaluations": _digests(run.path, card.evaluated)},
        "seconds": run.seconds,
        "usd": run.spent.usd,
        "tokens": run.spent.tokens,
        "tables": card.tables,
    }
    return json.dumps(plain(facts), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def stored(run: Summary, evaluated: Sequence[Evaluated]) -> Leniency:
    """Return the lenient reading stored in report.json; NOT_READ if it has none of these samples."""
    try:
        facts = read_json(run.path / RECORD)["lenient"]
        if facts["evaluations"] == _digests(run.path, evaluated):
            return Leniency.from_record(facts)
    except (OSError, UserError, KeyError, TypeError):
        pass
    return NOT_READ


def _digests(path: Path, evaluated: Sequence[Evaluated]) -> dict[str, str]:
    return {one.key: sha256(path / (RESULTS if one.step is None else evals_file(one.step))) for one in evaluated}


def body(card: Card) -> Markup:
    measured, lenient = (measure_rows(some, card.compared) for some in (card.measures, card.lenient))
    file = card.run.path / CONFIG
    config = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    weights = card.run.info.get("reward_weights") or {}
    drawn = curve(card.run.kind, card.lines, card.env)
    template = _TEMPLATES.get_template("run_card.html")
    values = {"weights": weights, "config": config, "turns": turns, "longest": LONGEST}
    return Markup(template.render(card=card, curve=drawn, measured=measured, lenient=lenient, **values))


def whole_page(card: Card) -> str:
    """Return report.html. Its content policy forbids scripts and requests."""
    css = (_VIEWER / "assets" / "hone.css").read_text(encoding="utf-8")
    template = _TEMPLATES.get_template("report.html")
    return template.render(title=card.title, body=body(card), style=Markup(css), version=__version__)
