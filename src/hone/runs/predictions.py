"""Predictions: what a user expects of a run, fixed before step 0 and scored at its end.

`--predict "reward/mean@40 > 0.6 p=0.8"` says that a metric of a step will hold a bound, with a probability p. The Brier
score of a prediction is (p - o)², o being 1 if it came true and 0 if not (Brier, 1950): 0 is perfect, always saying 0.5
gets 0.25, and in the long run nothing beats saying what one believes. run.json has the predictions with a hash over
them, the run's id and its settings; the event `predicted` has the hash as well, so that a later edit shows.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs import provenance, settings
from hone.runs.files import read_lines
from hone.runs.prediction import Prediction, fields_of, prediction, quoted, read

Config = TypeVar("Config", bound=RunConfig)

KEY = "predictions"
"""Of run.json."""
MADE = "predicted"
"""Kind of the event that has the hash."""
SCORED = ("done", "budget", "stopped")
"""Statuses at which a run scores what can be decided."""


@dataclass(frozen=True)
class Scored:
    """What became of a prediction: `outcome` None if that is not decided, and `why` not."""

    prediction: Prediction
    outcome: bool | None
    value: float | None = None
    why: str = ""

    @property
    def brier(self) -> float | None:
        """(p - o)²"""
        return None if self.outcome is None else (self.prediction.p - self.outcome) ** 2


def record(config: RunConfig, kind: str, run_id: str) -> dict[str, Any]:
    """What run.json says of the predictions of a run that begins now; empty without any. UserError as `read`."""
    found = read(config)
    if not found:
        return {}
    facts = {"entries": [asdict(one) for one in found], "made": provenance.now()}
    facts["settings"] = settings.digest(tomllib.loads(settings.run_toml(config, kind)))
    return {KEY: facts | {"sha256": _sha256(facts, run_id)}}


def _sha256(facts: Mapping[str, Any], run_id: str) -> str:
    """Over the entries, when they were made, the settings they were made for, and the run."""
    content = {"id": run_id, **{name: facts[name] for name in ("entries", "made", "settings")}}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def entries(info: Mapping[str, Any]) -> list[Prediction]:
    """The predictions in a run.json."""
    return [Prediction(**entry) for entry in info.get(KEY, {}).get("entries", [])]


def problem(info: Mapping[str, Any], folder: Path) -> str:
    """How it shows that the predictions of a run were edited after they were made; "" if it doesn't."""
    told = _told(folder)
    if KEY not in info:
        return "its predictions are gone" if told else ""
    try:
        fits = _sha256(info[KEY], info["id"]) == info[KEY]["sha256"]
        entries(info)
    except (KeyError, TypeError, ValueError):
        return "its predictions can't be read"
    if fits and told is None and _has_begun(folder, info.get("parent", {}).get("step", 0)):
        return "its predictions were not made before step 0 (no event tells of them)"
    if fits and told in (None, info[KEY]["sha256"]):
        return ""
    return "its predictions are not those that were made before step 0 (SHA-256 differs)"


def _told(folder: Path) -> str | None:
    """The hash that the run's events have."""
    hashes = [line.get("sha256") for line in read_lines(folder / "events.jsonl") if line.get("kind") == MADE]
    return hashes[-1] if hashes else None


def _has_begun(folder: Path, first: int = 0) -> bool:
    """Whether the run has taken a step from `first` on, be it one that was rolled back."""
    return any(line["step"] >= first for place in _takes(folder) for line in read_lines(place / "metrics.jsonl"))


def _takes(folder: Path) -> list[Path]:
    """Where lines of the run's logs are, in the order in which they were written: rolled back ones, then its own."""
    places = [path for path in (folder / "superseded").glob("*") if path.name.isdigit()]
    return [*sorted(places, key=lambda path: int(path.name)), folder]


def untold(info: Mapping[str, Any], folder: Path) -> str | None:
    """The hash of predictions that no event has yet."""
    digest = info.get(KEY, {}).get("sha256")
    return None if digest == _told(folder) else digest


def resumed(info: dict[str, Any], folder: Path, config: RunConfig) -> None:
    """UserError if a resume comes with other predictions than the run in `folder` was begun with.

    None, or the same, are fine. A run that has no step yet takes those that it is given now.
    """
    if damage := problem(info, folder):
        raise UserError(f"{folder / 'run.json'}: {damage}: restore it, or begin a new run in another --output-dir")
    if not config.predict:
        return
    own = entries(info)
    if not _has_begun(folder):
        if not _same(config.predict, own):
            info.pop(KEY, None)
            info |= record(config, info["kind"], info["id"])
    elif not _same(config.predict, own):
        begun = "with " + ", ".join(f'"{one}"' for one in own) if own else "without any"
        raise UserError(
            f"{folder} was begun {begun}, and predictions are made before step 0: leave out --predict, or give the same"
        )


def of_branch(config: Config, parent: Mapping[str, Any], step: int) -> Config:
    """The config of a run that goes on from `step` of another one, whose predictions stay with it.

    UserError for one of a step up to that one.
    """
    inherited = {_said(one) for one in entries(parent)}
    own = [text for text in config.predict if _said(prediction(fields_of(text), -1)) not in inherited]
    for text in own:
        fields = fields_of(text)
        if fields["step"] != "end" and int(fields["step"]) <= step:
            raise UserError(f"{quoted(text)}: the branch begins at step {step}: predict a later one")
    return config.model_copy(update={"predict": own})


def kept(config: Config, info: Mapping[str, Any]) -> Config:
    """The config with the run's predictions: a resume need not repeat them."""
    return config.model_copy(update={"predict": [str(one) for one in entries(info)]})


def _same(texts: Sequence[str], own: Sequence[Prediction]) -> bool:
    return {_said(prediction(fields_of(text), -1)) for text in texts} == {_said(one) for one in own}


def _said(one: Prediction) -> tuple:
    """What was said, whatever the last step was then."""
    return (one.metric, None if one.end else one.step, one.op, one.number, one.p)


def score(info: Mapping[str, Any], folder: Path) -> list[Scored]:
    """What became of a run's predictions so far, by its metrics. A step taken twice, maybe with other settings,
    counts as it was first: lines that were rolled back come before metrics.jsonl.

    A metric that is null was not finite: its events say what it was.
    """
    found = entries(info)
    logs = [(place, read_lines(place / "metrics.jsonl")) for place in (_takes(folder) if found else ())]
    lines = [(place, line) for place, log in logs for line in log]
    return [_scored(one, lines) for one in found]


def _scored(one: Prediction, lines: Sequence[tuple[Path, Mapping[str, Any]]]) -> Scored:
    for place, line in lines:
        if line["step"] == one.step and one.metric in line:
            value = line[one.metric]
            value = _not_finite(place, one) if value is None else float(value)
            return Scored(one, one.holds(value), value)
    if max((line["step"] for _, line in lines), default=-1) < one.step:
        return Scored(one, None, why=f"step {one.step} was not reached")
    return Scored(one, None, why=f"not written at step {one.step}")


def _not_finite(folder: Path, one: Prediction) -> float:
    for line in read_lines(folder / "events.jsonl"):
        if (line.get("kind"), line.get("step"), line.get("metric")) == ("not_finite", one.step, one.metric):
            return float(line["value"])
    return float("nan")


def settle(info: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Enters what became of the predictions in run.json's facts; returns those of the event, empty without any."""
    if KEY not in info:
        return {}
    scored = score(info, folder)
    info[KEY] |= {
        "outcomes": [{"outcome": s.outcome, "value": _finite(s.value), "brier": _rounded(s.brier)} for s in scored],
        "brier": _rounded(mean_brier(scored)),
    }
    decided = [s for s in scored if s.outcome is not None]
    true = sum(bool(s.outcome) for s in decided)
    return {"true": true, "false": len(decided) - true, "undecided": len(scored) - len(decided)} | {
        "brier": info[KEY]["brier"]
    }


def mean_brier(scored: Sequence[Scored]) -> float | None:
    """The mean Brier score of those that are decided; None without any."""
    scores = [s.brier for s in scored if s.brier is not None]
    return sum(scores) / len(scores) if scores else None


def in_words(info: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """What became of a run's predictions: a headline with the score, then a line for each; nothing without any."""
    scored = score(info, folder)
    if not scored:
        return
    brier, decided = mean_brier(scored), sum(s.outcome is not None for s in scored)
    mean = "" if brier is None else f", Brier score {brier:.3f} (0 is perfect; always saying 0.5 gets 0.25)"
    yield f"{decided} of {len(scored)} decided{mean}"
    width = max(len(str(s.prediction)) for s in scored)
    for s in scored:
        yield f"{word(s.outcome):<9}  {s.prediction!s:<{width}}  {s.why or f'was {_value(s)}'}"


def word(outcome: bool | None) -> str:
    """`true`, `false` or `undecided`"""
    return "undecided" if outcome is None else "true" if outcome else "false"


def _value(s: Scored) -> str:
    return "not a number" if s.value is None else f"{s.value:.6g}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and abs(value) < float("inf") else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
