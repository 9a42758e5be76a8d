"""What a prediction says: `reward/mean@40 > 0.6 p=0.8`. Reads it, and says what is wrong with one that can't be."""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs.metric_names import Written, written

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = re.compile(
    rf"\s*(?P<metric>\S.*?)\s*@\s*(?P<step>\d+|end)\s*(?P<op>>=|<=|>|<)\s*(?P<number>{_NUMBER})"
    rf"\s*p\s*=\s*(?P<p>{_NUMBER})\s*"
)
_EXAMPLE = 'METRIC@STEP OP NUMBER p=PROB, as in "reward/mean@40 > 0.6 p=0.8"'
_OPS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


@dataclass(frozen=True)
class Prediction:
    """`metric` at `step` is `op` `number`, with probability `p`. `end`: the step was said as the run's last."""

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
        """What is predicted, without the probability."""
        return f"{self.metric}@{'end' if self.end else self.step} {self.op} {_number(self.number)}"

    def holds(self, value: float) -> bool:
        """Whether it came true. Of NaN nothing is true."""
        return _OPS[self.op](value, self.number)


def check(config: RunConfig, env_id: str | None = None) -> None:
    """UserError if the config's predictions can't be those of its run. `env_id`: the task's own id, if it is known.

    A resume may go to other steps than those that its predictions were made for: they are compared when it is opened.
    """
    if config.resume is None:
        read(config, env_id)


def read(config: RunConfig, env_id: str | None = None) -> list[Prediction]:
    """The predictions of a run of `config`. UserError naming the one that can't be, and what to write instead."""
    found: dict[tuple, Prediction] = {}
    for text in config.predict:
        fields = fields_of(text)
        when = written(fields["metric"], config, env_id)
        if isinstance(when, str):
            raise UserError(f"{quoted(text)}: {fields['metric']} {when}")
        one = prediction(fields, when.last)
        if one.step not in when:
            raise UserError(f"{quoted(text)}: {_not_then(one, when, config.max_steps)}")
        key = (one.metric, one.step, one.op, one.number)
        if key in found:
            raise UserError(f"{quoted(text)}: {one.statement} is predicted twice: leave one out")
        found[key] = one
    return list(found.values())


def _not_then(one: Prediction, when: Written, max_steps: int) -> str:
    said = f"the run has max_steps = {max_steps}, and " if one.step > when.last else ""
    return f"{said}{one.metric} is written at {when}, not at {one.step}: predict it at {when.nearest(one.step)}"


def fields_of(text: str) -> dict[str, str]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise UserError(f"{quoted(text)} {_problem(text)}: write {_EXAMPLE}")
    if not math.isfinite(float(match["number"])):
        raise UserError(f"{quoted(text)}: {match['number']} is more than a number can be: write a smaller one")
    if not 0 < float(match["p"]) < 1:
        raise UserError(f"{quoted(text)}: p must be between 0 and 1, and nothing is certain: write p=0.99 or p=0.01")
    return match.groupdict()


def _problem(text: str) -> str:
    """What a text lacks that is no prediction."""
    if re.search(r"\bp\s*=\s*[\d.]+\s*%", text):
        return "has its probability in per cent, not as a share"
    if not re.search(r"\bp\s*=", text):
        return "does not say how likely it is"
    if "@" not in text:
        return "does not say at which step"
    if not re.search(r"[<>]", text):
        return "has no comparison (>, >=, < or <=)"
    return "can't be read"


def prediction(fields: Mapping[str, str], last: int) -> Prediction:
    end = fields["step"] == "end"
    step = last if end else int(fields["step"])
    return Prediction(fields["metric"], step, fields["op"], float(fields["number"]), float(fields["p"]), end)


def quoted(text: str) -> str:
    return f"--predict {json.dumps(text, ensure_ascii=False)}"


def _number(value: float) -> str:
    """As short as it can be and read back: `0.6`, `40`, `1e-06`."""
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
