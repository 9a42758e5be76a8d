"""Predictions: what a user expects of a run, fixed before step 0 and scored at its end.

`--predict "reward/mean@40 > 0.6 p=0.8"` says that a metric at a step will satisfy a bound with probability p. The Brier
score of a prediction is (p - o)², where o is 1 if the bound held, else 0 (Brier, 1950): 0 is perfect, always saying
0.5 gets 0.25, and honest probabilities score best in the long run. run.json has the predictions, and a hash of them
with the run's id and settings. The event `predicted` repeats the hash, so a later edit shows.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hone.config.base import changed
from hone.errors import UserError
from hone.runs import provenance, settings, view
from hone.runs.checkpoint import Checkpoints
from hone.runs.files import write_file
from hone.runs.observer import Observer
from hone.runs.opening import parent_of
from hone.runs.writer import RunWriter

KEY = "predictions"
MADE = "predicted"
"""Kind of the event that has the hash of the predictions."""
SCORED = ("done", "budget", "stopped")
"""A run that ends with one of these statuses scores its predictions."""
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = re.compile(
    rf"\s*(?P<metric>\S.*?)\s*@\s*(?P<step>\d+|end)\s*(?P<op>>=|<=|>|<)\s*(?P<number>{_NUMBER})"
    rf"\s*p\s*=\s*(?P<p>{_NUMBER})\s*"
)
_EXAMPLE = 'METRIC@STEP OP NUMBER p=PROB, as in "reward/mean@40 > 0.6 p=0.8"'
_OPS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Prediction:
    """The claim `metric`@`step` `op` `number`, with probability `p`. `end` is true if the step was given as `end`."""

    metric: str
    step: int
    op: str
    number: float
    p: float
    end: bool = False

    def __str__(self) -> str:
        return f"{self.statement} p={_number(self.p)}"

    @property
    def statement(self) -> str:
        return f"{self.metric}@{'end' if self.end else self.step} {self.op} {_number(self.number)}"

    @property
    def key(self) -> tuple:
        """The prediction's content, independent of the run's last step."""
        return (self.metric, None if self.end else self.step, self.op, self.number, self.p)

    def holds(self, value: float) -> bool:
        """Return True if `value` makes the prediction true. NaN makes it false."""
        return _OPS[self.op](value, self.number)


@dataclass(frozen=True)
class Scored:
    """The result of a prediction. If it is undecided, `outcome` is None and `why` the reason."""

    prediction: Prediction
    outcome: bool | None
    value: float | None = None
    why: str = ""

    @property
    def brier(self) -> float | None:
        """The Brier score (p - o)²; None if undecided."""
        return None if self.outcome is None else (self.prediction.p - self.outcome) ** 2


def observer(config: Any, by_program: bool) -> Observer:
    return Predictions()


class Predictions(Observer):
    """Records a run's predictions in run.json before step 0, and scores them at the end."""

    def check_config(self, config: Any, env: Any = None) -> None:
        self._predict = checked(config, env and env.id)

    def before_start(self, run: RunWriter) -> None:
        self._run = run
        config: Any = run.config
        folder, kind = run.folder, run.info["kind"]
        if KEY not in run.info:
            run.note(**record(changed(config, {"predict": self._predict}), kind, run.info["id"]))
        if digest := unwritten(run.info, folder):
            run.event(MADE, run.start_step, sha256=digest)
        predict = [*map(str, entries(run.info))]
        if predict != config.predict:  # a resume need not repeat them
            write_file(folder / view.CONFIG, settings.run_toml(changed(config, {"predict": predict}), kind))
        if predict and run.start_step == 0:
            digest = run.info[KEY]["sha256"]
            run.display.message(f"Predicted: {'; '.join(predict)} (fixed by SHA-256 {digest[:12]}…)")

    def at_end(self, status: str) -> None:
        run = self._run
        if status in SCORED and KEY in run.info:
            facts, counts = settle(run.info, run.folder)
            run.event(KEY, None, **counts)
            run.note(**{KEY: facts})

    def report(self) -> str:
        text = "\n    ".join(in_words(self._run.info, self._run.folder))
        return f"Predictions: {text}\n" if text else ""


def checked(config: Any, env_id: str | None = None) -> list[str]:
    """Return the predictions of `config` that its parent run lacks. `env_id` is the task's id, if known.

    Raises UserError if a prediction is impossible, changed in a resume, or too early for a branch.
    """
    folder, resume = config.output_dir, config.resume
    info = view.run_info(folder) if resume else None
    if resume and resume.dir and (source := view.run_info(resume.dir)):
        parent = parent_of(info, source, resume.step)
        info = info if parent else None
        config = changed(config, {"predict": of_branch(config, source, parent.get("step", resume.step))})
    if info and (KEY in info or problem(info, folder) or _has_begun(info, folder)):
        resumed(info, folder, config)
    else:
        read(config, env_id)
    return config.predict


def read(config: Any, env_id: str | None = None) -> list[Prediction]:
    """Return the predictions of a run of `config`. Raises UserError for an impossible one, with an alternative."""
    if not config.predict:
        return []
    from hone.runs.metrics import written

    found: dict[tuple, Prediction] = {}
    for text in config.predict:
        one = parse(text)
        steps = written(one.metric, config, env_id)
        if isinstance(steps, str):
            raise UserError(f"{_quoted(text)}: {one.metric} {steps}")
        one = parse(text, steps[-1])
        if one.step not in steps:
            nearest = min(steps, key=lambda step: abs(step - one.step))
            beyond = f"the run has max_steps = {config.max_steps}, and " if one.step > steps[-1] else ""
            raise UserError(
                f"{_quoted(text)}: {beyond}{one.metric} is not written at {one.step}: predict it at {nearest}"
            )
        key = (one.metric, one.step, one.op, one.number)
        if key in found:
            raise UserError(f"{_quoted(text)}: {one.statement} is predicted twice: leave one out")
        found[key] = one
    return list(found.values())


def parse(text: str, last: int = -1) -> Prediction:
    """Parse a prediction for a run that ends with step `last`. Raises UserError if the text is no prediction."""
    match = _FORM.fullmatch(text)
    if match is None or not math.isfinite(float(match["number"])):
        raise UserError(f"{_quoted(text)} can't be read: write {_EXAMPLE}")
    if not 0 < float(match["p"]) < 1:
        raise UserError(f"{_quoted(text)}: p must be above 0 and below 1: write p=0.99 or p=0.01")
    end = match["step"] == "end"
    step = last if end else int(match["step"])
    return Prediction(match["metric"], step, match["op"], float(match["number"]), float(match["p"]), end)


def _quoted(text: str) -> str:
    return f"--predict {json.dumps(text, ensure_ascii=False)}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def record(config: Any, kind: str, run_id: str) -> dict[str, Any]:
    """Return a new run's predictions for run.json; {} if there are none. Raises as `read` does."""
    found = read(config)
    if not found:
        return {}
    facts = {"entries": [asdict(one) for one in found], "made": provenance.now()}
    facts["settings"] = settings.digest(tomllib.loads(settings.run_toml(config, kind)))
    return {KEY: facts | {"sha256": _sha256(facts, run_id)}}


def _sha256(facts: Mapping[str, Any], run_id: str) -> str:
    content = {"id": run_id, **{name: facts[name] for name in ("entries", "made", "settings")}}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def entries(info: Mapping[str, Any]) -> list[Prediction]:
    return [Prediction(**entry) for entry in info.get(KEY, {}).get("entries", [])]


def problem(info: Mapping[str, Any], folder: Path) -> str:
    """Return a text if a run's predictions were edited or can't be read, else ""."""
    digest = _digest_in_events(folder)
    if KEY not in info:
        return "its predictions are gone" if digest else ""
    try:
        fits = _sha256(info[KEY], info["id"]) == info[KEY]["sha256"]
        entries(info)
    except (KeyError, TypeError, ValueError):
        return "its predictions can't be read"
    killed_at_once = digest is None and not _has_begun(info, folder)
    if fits and (digest == info[KEY]["sha256"] or killed_at_once):
        return ""
    return "its predictions were changed after step 0 (SHA-256 differs)"


def _has_begun(info: Mapping[str, Any], folder: Path) -> bool:
    first = info.get("parent", {}).get("step", 0)
    return any(line["step"] >= first for line in view.RunView(folder).metric_lines())


def _digest_in_events(folder: Path) -> str | None:
    hashes = [line.get("sha256") for line in view.RunView(folder).events() if line.get("kind") == MADE]
    return hashes[-1] if hashes else None


def unwritten(info: Mapping[str, Any], folder: Path) -> str | None:
    """Return the hash of the predictions, or None if an event has it already."""
    digest = info.get(KEY, {}).get("sha256")
    return None if digest == _digest_in_events(folder) else digest


def resumed(info: Mapping[str, Any], folder: Path, config: Any) -> None:
    """Raise UserError if a resume gives other predictions than the run has. It may give the same, or none."""
    if damage := problem(info, folder):
        raise UserError(f"{folder / view.INFO}: {damage}: restore it, or begin a new run in another --output-dir")
    recorded = entries(info)
    if config.predict and {parse(text).key for text in config.predict} != {one.key for one in recorded}:
        begun = "with " + ", ".join(f'"{one}"' for one in recorded) if recorded else "without any"
        raise UserError(
            f"{folder} started {begun}, and predictions are made before step 0: leave out --predict, or give the same"
        )


def of_branch(config: Any, parent: Mapping[str, Any], step: int | None) -> list[str]:
    """Return the predictions that a branch at `step` (None: at the newest checkpoint) adds.

    Raises UserError if one of them is about a step before the branch.
    """
    inherited = {one.key for one in entries(parent)}
    added = [text for text in config.predict if parse(text).key not in inherited]
    if added and step is None:
        step = Checkpoints(config.resume.dir / view.CHECKPOINTS).newest()[0]
    for text in added:
        if step is not None and not (one := parse(text)).end and one.step <= step:
            raise UserError(f"{_quoted(text)}: the branch begins at step {step}: predict a later step")
    return added


def score(info: Mapping[str, Any], folder: Path) -> list[Scored]:
    """Score a run's predictions by its metrics. If a metric was not finite, its predictions are false."""
    predicted = entries(info)
    lines = {line["step"]: line for line in view.RunView(folder).metric_lines()} if predicted else {}
    scored = []
    for one in predicted:
        line = lines.get(one.step, {})
        metric = view.current_name(one.metric)
        if metric in line:
            value = math.nan if line[metric] is None else float(line[metric])
            scored.append(Scored(one, one.holds(value), value))
        else:
            reached = max(lines, default=-1) >= one.step
            why = f"not written at step {one.step}" if reached else f"step {one.step} was not reached"
            scored.append(Scored(one, None, why=why))
    return scored


def settle(info: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the predictions with their results, for run.json at the end, and the fields of the event."""
    scored = score(info, folder)
    rounded = lambda value: None if value is None else round(value, 6)  # noqa: E731
    finite = lambda value: value if value is not None and math.isfinite(value) else None  # noqa: E731
    outcomes = [{"outcome": s.outcome, "value": finite(s.value), "brier": rounded(s.brier)} for s in scored]
    brier, words = {"brier": rounded(mean_brier(scored))}, [word(s.outcome) for s in scored]
    counts = {name: words.count(name) for name in ("true", "false", "undecided")}
    return info[KEY] | {"outcomes": outcomes} | brier, counts | brier


def mean_brier(scored: Sequence[Scored]) -> float | None:
    scores = [s.brier for s in scored if s.brier is not None]
    return sum(scores) / len(scores) if scores else None


def in_words(info: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield the results of a run's predictions: a headline with the score, then a line for each prediction."""
    scored = score(info, folder)
    if not scored:
        return
    brier, decided = mean_brier(scored), sum(s.outcome is not None for s in scored)
    mean = "" if brier is None else f", Brier score {brier:.3f} (0 is perfect; always saying 0.5 gets 0.25)"
    yield f"{decided} of {len(scored)} decided{mean}"
    width = max(len(str(s.prediction)) for s in scored)
    for s in scored:
        value = "not a number" if s.value is None else f"{s.value:.6g}"
        yield f"{word(s.outcome):<9}  {s.prediction!s:<{width}}  {s.why or f'was {value}'}"


def word(outcome: bool | None) -> str:
    return "undecided" if outcome is None else "true" if outcome else "false"
