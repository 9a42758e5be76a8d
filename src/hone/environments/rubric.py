"""Rubric: reward functions with their weights; one of them decides correctness."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import pickle
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hone.environments.parsers import Parser, completion_text
from hone.errors import UserError
from hone.grading import GraderFailure, Work, accepted_names, as_reward, attempt, decide_outcome, run_reward
from hone.rng import stream
from hone.types import BOUND, LARGEST_REWARD, TOO_LARGE, Example, Message, Outcome, Score

RewardFunc = Callable[..., float | GraderFailure | Awaitable[float | GraderFailure | None] | None]
"""Grades one completion. If it is marked by `of_group`, it grades the samples of a group and returns a list."""
T = TypeVar("T")
Func = TypeVar("Func", bound=Callable[..., Any])
OFFERED = ("completion", "answer", "prompt", "info", "state", "parser", "rng")


def inline(func: Func) -> Func:
    """Mark a function as cheap and pure: it runs in hone's process without limits.

    Use it for a reward function that cannot hang on any completion, or for `env_response` of a task of several turns. A
    rubric runs in hone's process if all its functions are marked.
    """
    func.inline = True  # type: ignore[attr-defined]
    return func


def of_group(func: Func, ids: bool = False, needs_ids: bool = False) -> Func:
    """Mark a function as grading groups: one call gets the `Sample`s of a prompt that are graded together.

    The function returns a list with a value for each sample, or a GraderFailure. `ids`: it uses the samples'
    `completion_ids`. `needs_ids`: it can't run without them.
    """
    func.of_group, func.takes_ids, func.needs_ids = True, ids, needs_ids  # type: ignore[attr-defined]
    return func


@dataclass(frozen=True)
class Range:
    """The values that a component may have, ends included, for a `right` and for a `wrong` well-formed answer."""

    right: tuple[float, float]
    wrong: tuple[float, float]

    def __post_init__(self) -> None:
        assert self.right[0] <= self.right[1] and self.wrong[0] <= self.wrong[1], self


@dataclass(frozen=True)
class Sample:
    """A completion of an example, and its state. `completion_ids` has the sampled tokens if a function uses them."""

    example: Example
    completion: list[Message]
    stop_reason: str
    seed: int = 0
    sample_id: str = ""
    state: dict[str, Any] | None = None
    completion_ids: list[int] | None = None


@dataclass(frozen=True)
class Measured:
    """Results of the task's code. `answer` is the parsed answer as text, or None; `seconds` is wall time."""

    components: dict[str, float]
    answer: str | None
    failure: GraderFailure | None
    seconds: float

    def joined(self, group: Measured) -> Measured:
        components, failure = self.components | group.components, self.failure or group.failure
        return Measured(components, self.answer, failure, self.seconds + group.seconds)


class Rubric:
    """Reward = sum of weight x value over the reward functions.

    A reward function is plain or async. It takes by name some of `completion` (list of messages), `answer` (str),
    `prompt` (list of messages), `info` (dict), `state` (dict, shared by the functions of one grading; see `measure`),
    `parser` and `rng` (a numpy generator for graders that draw). It returns a number, or None to abstain. `weights`
    default to 1. `correctness` is the function, or its name, that decides if an answer is right: its value is then ≥
    1.0. By default it is the first function. Its weight may be 0. `ranges` declares the possible values of components.
    `parser` is used unless the environment has a parser.
    """

    def __init__(
        self,
        funcs: Sequence[RewardFunc],
        weights: Sequence[float] | None = None,
        *,
        correctness: RewardFunc | str | None = None,
        ranges: Mapping[str, Range] | None = None,
        parser: Parser | None = None,
    ) -> None:
        if not funcs:
            raise UserError("a Rubric needs at least one reward function")
        weights = [1.0] * len(funcs) if weights is None else list(weights)
        if len(weights) != len(funcs) or not all(math.isfinite(w) for w in weights):
            raise UserError(f"Rubric: {len(funcs)} reward functions need as many finite weights, not {weights}")
        self.funcs = {component_name(func): func for func in funcs}
        if len(self.funcs) != len(funcs):
            names = [component_name(func) for func in funcs]
            raise UserError(f"Rubric: two of the reward functions {names} have the same name: rename one of them")
        self.weights = dict(zip(self.funcs, map(float, weights), strict=True))
        self.correctness = next(iter(self.funcs))
        if correctness is not None:
            self.correctness = correctness if isinstance(correctness, str) else component_name(correctness)
        if self.correctness not in self.funcs:
            names = list(self.funcs)
            raise UserError(f"Rubric: correctness {self.correctness!r} is not one of the reward functions {names}")
        self.ranges = dict(ranges or {})
        if unknown := self.ranges.keys() - self.funcs.keys():
            raise UserError(f"Rubric: `ranges` has {sorted(unknown)}, but the reward functions are {list(self.funcs)}")
        for name, one in self.ranges.items():
            if not all(map(math.isfinite, (*one.right, *one.wrong))):
                raise UserError(f"Rubric: the range of {name} is infinite: give finite ends, or declare no range")
        if not self._largest() <= LARGEST_REWARD:
            raise UserError(
                f"Rubric: weights and ranges allow a reward of {self._largest():.3g}; a reward must be within {BOUND}: "
                "scale the weights down"
            )
        self.parser = parser
        self.group_funcs = {name: func for name, func in self.funcs.items() if getattr(func, "of_group", False)}
        """Functions that are called once for a group. `sample_funcs` are called once for each completion."""
        self.sample_funcs = {name: func for name, func in self.funcs.items() if name not in self.group_funcs}
        self.takes_ids = any(func.takes_ids for func in self.group_funcs.values())  # type: ignore[attr-defined]
        self.needs_ids = next((n for n, func in self.group_funcs.items() if func.needs_ids), None)  # type: ignore[attr-defined]
        """The name of a function that requires the ids of sampled tokens, or None."""
        self._accepts = {name: _accepted(name, func) for name, func in self.sample_funcs.items()}
        self._any_weight = any(self.weights.values())

    def _payments(self, name: str) -> list[float]:
        one = self.ranges.get(name)
        return [self.weights[name] * end for end in ((*one.right, *one.wrong) if one else (0.0, 1.0))]

    def _largest(self) -> float:
        """Return the largest absolute reward that weights and ranges allow, where any component may abstain."""
        payments = [[0.0, *self._payments(name)] for name in self.weights]
        return max(-sum(map(min, payments)), sum(map(max, payments)))

    @property
    def inline(self) -> bool:
        return all(is_inline(func) for func in self.funcs.values())

    def num_async(self, of_groups: bool) -> int:
        return sum(map(is_async, (self.group_funcs if of_groups else self.sample_funcs).values()))

    def needs(self, column: str, name: str = "") -> bool:
        """Return True if a reward function (or the function `name`) takes the argument `column`."""
        return any(column in accepted for func, accepted in self._accepts.items() if name in ("", func))

    @property
    def least_reward(self) -> float | None:
        """The least reward that the declared ranges allow; None if a weighted component has no range."""
        weighted = [name for name, weight in self.weights.items() if weight]
        if not self.ranges.keys() >= set(weighted):
            return None
        return sum(min(self._payments(name)) for name in weighted)

    def measure(self, sample: Sample, parser: Parser) -> Work[Measured]:
        """Return a `Work` (for `together`) that runs the functions on a completion, up to the first that fails.

        Each function gets copies of its arguments, but all share `state`: a dict of prompt, completion, answer, info,
        example_id, stop_reason and is_truncated, with the conversation's state and entries that functions add. The
        stream of a function's `rng` is (seed, "grader", example, sample_id, function).
        """
        started = time.perf_counter()
        components: dict[str, float] = {}
        offer = yield from attempt(_Offer, sample, parser)
        if isinstance(offer, GraderFailure):
            return Measured({}, None, offer, time.perf_counter() - started)
        answer = yield from attempt(lambda: parser.parse_answer(offer.copies()["completion"]))
        if isinstance(answer, GraderFailure):
            return Measured({}, None, answer, time.perf_counter() - started)
        failure = None
        for name, func in self.sample_funcs.items():
            value = yield from run_reward(func, offer.arguments(name, self._accepts[name]))
            if isinstance(value, GraderFailure):
                failure = value
                break
            if value is not None:
                components[name] = value
        found = None if answer is None else _short(answer)
        return Measured(components, found, failure, time.perf_counter() - started)

    def measure_group(self, samples: Sequence[Sample]) -> Work[list[Measured]]:
        """Run the functions for groups on a group's completions. If a function fails, all completions fail."""
        started = time.perf_counter()
        components: list[dict[str, float]] = [{} for _ in samples]
        failures: list[GraderFailure | None] = [None] * len(samples)
        copies = yield from attempt(_copier, list(samples))
        for name, func in self.group_funcs.items():
            values = copies if isinstance(copies, GraderFailure) else (yield from attempt(func, copies()))
            if isinstance(values, GraderFailure):
                failure = in_group(values, [name], len(samples))
                failures = [known or failure for known in failures]
                break
            for i, value in enumerate(values):
                number = None if value is None else as_reward(func, value)
                if isinstance(number, GraderFailure):
                    failures[i] = failures[i] or number
                elif number is not None:
                    components[i][name] = number
        seconds = (time.perf_counter() - started) / len(samples)
        both = zip(components, failures, strict=True)
        return [Measured(values, None, failure, seconds) for values, failure in both]

    def score(self, measured: Measured, sample: Sample, parser: Parser) -> Score:
        """Return reward and outcome. No code of the task runs here."""
        components = {name: measured.components[name] for name in self.funcs if name in measured.components}
        reward = sum(self.weights[name] * value for name, value in components.items())
        failure = measured.failure
        if failure is None and self._any_weight and not any(self.weights[name] for name in components):
            failure = GraderFailure(Outcome.GRADER_ERROR, "every reward function that has a weight abstained")
        if failure is None and not abs(reward) <= LARGEST_REWARD:
            failure = GraderFailure(Outcome.GRADER_ERROR, f"the weighted sum of {components} {TOO_LARGE}")
        if failure is not None:
            because = failure.outcome, failure.detail, measured.seconds, failure.killed
            return Score(math.nan, components, self.weights, *because)
        well_formed = measured.answer is not None
        outcome = decide_outcome(components.get(self.correctness), well_formed, sample.stop_reason == "length")
        detail = _explain(sample, parser, measured.answer, components)
        return Score(reward, components, self.weights, outcome, detail, measured.seconds)


@inline
def format(completion: list[Message], parser: Parser) -> float:
    """Return 1 if there is a well-formed answer, right or wrong, else 0."""
    return float(parser.parse_answer(completion) is not None)


def answer_rubric(correctness: RewardFunc) -> Rubric:
    """Return the rubric that gives 0 without a well-formed answer, 0.1 for a wrong one, 1 for a right one."""
    ranges = {
        "format": Range(right=(1.0, 1.0), wrong=(1.0, 1.0)),
        component_name(correctness): Range(right=(1.0, 1.0), wrong=(0.0, 0.0)),
    }
    return Rubric([format, correctness], [0.1, 0.9], correctness=correctness, ranges=ranges)


def component_name(func: RewardFunc) -> str:
    func = unwrapped(func)
    return getattr(func, "__name__", type(func).__name__)


def is_inline(func: Callable[..., Any]) -> bool:
    return getattr(unwrapped(func), "inline", False) is True


def is_async(func: Callable[..., Any]) -> bool:
    """Return True if a function is async, also inside a partial or as the `__call__` of an object."""
    func = unwrapped(func)
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


def in_group(failure: GraderFailure, names: Iterable[str], size: int) -> GraderFailure:
    call = f"{', '.join(names)} got the group of {size} completion{'s' * (size != 1)} in one call"
    return replace(failure, detail=f"{failure.detail} ({call})")


def unwrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(func, functools.partial):
        func = func.func
    return func


def _accepted(name: str, func: RewardFunc) -> tuple[str, ...]:
    try:
        return accepted_names(func, OFFERED)
    except ValueError as error:
        raise UserError(
            f"reward function {name} has a parameter {str(error)!r}, which grading does not offer; it offers "
            f"{', '.join(OFFERED)} (give any other parameter a default)"
        ) from None


class _Offer:
    """The arguments offered to reward functions. No function sees another function's changes, except in `state`."""

    def __init__(self, sample: Sample, parser: Parser) -> None:
        example, truncated = sample.example, sample.stop_reason == "length"
        shared = {"prompt": example.prompt, "completion": sample.completion, "info": example.info}
        self.copies = _copier(shared)
        self._sample, self._parser, self._state = sample, parser, copy.deepcopy(dict(sample.state or {}))
        self._facts = {"answer": example.answer, "example_id": example.id}
        self._facts |= {"stop_reason": sample.stop_reason, "is_truncated": truncated}

    def arguments(self, func: str, names: Sequence[str]) -> dict[str, Any]:
        offered = self.copies()
        if "state" in names:
            self._state |= self._facts | offered
        offered |= {"answer": self._facts["answer"], "parser": self._parser, "state": self._state}
        if "rng" in names:
            sample = self._sample
            offered["rng"] = stream(sample.seed, "grader", sample.example.id, sample.sample_id, func)
        return {name: offered[name] for name in names}


def _copier(value: T) -> Callable[[], T]:
    try:
        return functools.partial(pickle.loads, pickle.dumps(value))
    except (pickle.PicklingError, TypeError, AttributeError):  # a function in `info`, where no worker grades
        return functools.partial(copy.deepcopy, value)  # far slower


def _explain(sample: Sample, parser: Parser, answer: str | None, components: Mapping[str, float]) -> str:
    if answer is None:
        text = completion_text(sample.completion)
        found = f"no {parser.expects.removeprefix('an ').removeprefix('a ')} in {_short(text)}"
    elif sample.example.answer:
        found = f"expected {_short(sample.example.answer)}, got {answer}"
    else:
        found = f"got {answer}"
    return "; ".join([found, *(f"{name} {value:.3g}" for name, value in components.items())])


def _short(value: Any, limit: int = 80) -> str:
    """Return a value's text, quoted and cut in the middle; or its type if `str` fails, as for 5,000 digits."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:
        return f"a value of type {type(value).__name__}"
    return repr(text if len(text) <= limit else f"{text[: limit // 2]} … {text[-limit // 2 :]}")
