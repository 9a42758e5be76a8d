"""Do the records of a run follow from each other? Recomputed from the rollouts, with neither model nor task.

rewards      from components and weights; a completion is correct if its correctness function gave 1
advantages   from the rewards of the group, and so what became of it
metrics      those of a step from its completions, `tokens/total` from all until then, `eval/…` from the samples

Nothing here tells whether a model sampled the completions, or a grader gave the components.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hone.config.rl import AdvantageConfig
from hone.environments.rubric import Range
from hone.errors import UserError
from hone.evaluation.result import EvalResult, EvalSample
from hone.orchestrator.groups import group_state
from hone.orchestrator.metrics import step_metrics
from hone.reproduce.compare import Row
from hone.reproduce.groups import groups_of
from hone.reproduce.integrity import Checked
from hone.reproduce.records import Records
from hone.runs.drift import settings_at
from hone.runs.evaluations import evals_file
from hone.runs.rollouts import TOKEN_COLUMNS, rollouts_file
from hone.runs.settings import flat
from hone.types import Example, Group, Outcome, Reply, Score

CLOSE = 1e-6
"""How far two numbers may be apart, of their size and at all: sums round otherwise on another machine."""
_OF_ROLLOUTS = ("reward/", "outcome/", "completion/", "groups/", "turns/")
_UNLESS_IN_LOCK_STEP = "staleness/max"
_WRONG = (
    UserError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
"""Errors of reading records that hone did not write."""


def check_derived(records: Records, checked: Checked, say: Callable[[str], None]) -> None:
    """Add to `checked` what is not as the rest of the run makes it. Files that are damaged already are left out."""
    if records.kind != "rl":
        return
    metrics = {} if checked.is_spoilt("metrics.jsonl") else records.metrics
    _check_rollouts(records, metrics, checked, say)
    _check_evaluations(records, metrics, checked)


def _check_rollouts(records: Records, metrics: Mapping[int, Any], checked: Checked, say: Callable[[str], None]) -> None:
    info, now = records.run.info, flat(records.run.config)
    correctness = None if info.get("drift") else info.get("correctness")
    total, steps = 0, sorted(records.rollout_steps)
    for place, step in enumerate(steps):
        file, settings = rollouts_file(step), settings_at(info, step + 1, "settings", now)
        say(f"recomputing step {step}")
        if step != place or checked.is_spoilt(file):
            total = math.nan  # nothing follows from a part of the steps
        if checked.is_spoilt(file):
            continue
        try:
            rows = _rows(records, step)
            advantage = {name: settings[f"orchestrator.advantage.{name}"] for name in AdvantageConfig.model_fields}
            groups = groups_of(rows, AdvantageConfig(**advantage), vocab_size=2**31)
            problem = _rows_problem(rows, groups, step, settings["orchestrator.batch_size"], correctness)
            total += sum(len(row["token_ids"]) for row in rows)
            made = step_metrics(groups, step, lag=1) | {"tokens/total": total}
        except _WRONG as error:
            problem, made = f"is nothing that a step writes ({error})", {}
        if problem:
            checked.add(file, problem)
            total = math.nan
        elif step in metrics and (problem := _unlike(metrics[step], made, _OF_ROLLOUTS)):
            checked.add("metrics.jsonl", f"step {step}: {problem} its rollouts")
    checked.counts["steps recomputed"] = sum(not checked.is_spoilt(rollouts_file(step)) for step in steps)


def _rows(records: Records, step: int) -> list[Row]:
    """The completions of a step, their columns of tokens as arrays."""
    table = records.run.rollouts(step)
    rows = table.drop_columns(list(TOKEN_COLUMNS)).to_pylist()
    for name in TOKEN_COLUMNS:
        column = table[name].combine_chunks()
        values, ends = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy()
        for row, begin, end in zip(rows, ends, ends[1:], strict=False):
            row[name] = values[begin:end]
    return rows


def _rows_problem(
    rows: Sequence[Row], groups: Sequence[Group], step: int, batch_size: int, correctness: str | None
) -> str:
    """The first thing in the rows that does not follow from the rest of them; empty if there is none."""
    if len(rows) != batch_size:
        return f"has {len(rows)} completions, where the config has {batch_size}"
    of_row = [(index, group, member) for index, group in enumerate(groups) for member in range(len(group.scores))]
    if [(row["step"], row["group"]) for row in rows] != [(step, index) for index, _, _ in of_row]:
        return "has its completions in another order than a step writes"
    for row, (_, group, member) in zip(rows, of_row, strict=True):
        sample, score, advantage = f"sample {row['sample_id']}", group.scores[member], float(group.advantages[member])
        if problem := _score_problem(sample, score, correctness):
            return problem
        if not _close(row["advantage"], advantage):
            return f"the advantage of {sample} is {row['advantage']}, but its group's rewards make {advantage:.6g}"
        state = "failed" if score.outcome.is_failure else group_state(group)
        if row["state"] != state:
            return f"{sample} is {row['state']}, but by its group's rewards {state}"
    return ""


def _score_problem(sample: str, score: Score, correctness: str | None) -> str:
    """Why the score of a sample contradicts itself; empty if it does not."""
    if score.outcome.is_failure:
        return ""
    reward = sum(score.weights[name] * value for name, value in score.components.items())
    if not _close(score.reward, reward):
        return f"the reward of {sample} is {score.reward:.6g}, but its components make {reward:.6g}"
    right = score.components.get(correctness or "", 0.0) >= 1.0
    if correctness and right != (score.outcome is Outcome.CORRECT):
        return f"{sample} is {score.outcome}, but its {correctness} is {score.components.get(correctness)}"
    return ""


def _check_evaluations(records: Records, metrics: Mapping[int, Any], checked: Checked) -> None:
    info = records.run.info
    weights = {} if info.get("drift") else info.get("reward_weights") or {}
    ranges = {name: Range(**of) for name, of in (info.get("reward_ranges") or {}).items()}
    for version in sorted({*records.evaluations, *(step for step in metrics if _evaluated(metrics[step]))}):
        file, line = evals_file(version), metrics.get(version, {})
        if checked.is_spoilt(file):
            continue
        try:
            samples = [_sample(row, weights) for row in records.run.eval_rows(version)]
            scores = ((f"completion {s.rollout} of example {s.index}", s.score) for s in samples if weights)
            problem = next(filter(None, (_score_problem(*one, info.get("correctness")) for one in scores)), "")
            rollouts = 1 + max(s.rollout for s in samples)
            made = EvalResult(_evaluated(line), version, rollouts, samples, {}, ranges=ranges).metrics()
            if not weights:  # where the reward ends is not known, and so where its interval was cut
                line, made = ({n: v for n, v in one.items() if "/ci95/" not in n} for one in (line, made))
        except _WRONG as error:
            problem, made = f"is nothing that an evaluation writes ({error})", {}
        if problem:
            checked.add(file, problem)
        elif _evaluated(line) and (problem := _unlike(line, made, ("eval/",))):
            checked.add("metrics.jsonl", f"step {version}: {problem} its samples")


def _evaluated(line: Mapping[str, Any]) -> str:
    """Return the id of the task of which a line of metrics has an evaluation; empty without one."""
    ends = (name.removesuffix("/outcome/correct") for name in line if name.endswith("/outcome/correct"))
    return next((name.removeprefix("eval/") for name in ends if name.startswith("eval/")), "")


def _sample(row: Row, weights: Mapping[str, float]) -> EvalSample:
    reply = Reply(
        row["completion"],
        row["stop_reason"],
        "",
        row["prompt_tokens"],
        row["completion_tokens"],
        turns=row.get("turns", 1),
        state={} if "turns" in row else None,
    )
    reward = math.nan if row["reward"] is None else row["reward"]
    score = Score(reward, row["components"], dict(weights), Outcome(row["outcome"]))
    return EvalSample(row["example"], row["rollout"], Example(row["prompt"]), reply, score)


def _unlike(recorded: Mapping[str, Any], made: Mapping[str, float], families: tuple[str, ...]) -> str:
    """The first metric that is not as recomputed, as the beginning of a sentence; empty if there is none."""
    for name, value in made.items():
        known = not math.isnan(value) and (name in recorded or name != _UNLESS_IN_LOCK_STEP)
        if known and not _close(recorded.get(name), value):
            return f"{name} is {recorded.get(name, 'missing')}, and not {value:.6g}, which follows from"
    more = next((name for name in recorded if name.startswith(families) and name not in made), None)
    return f"{more} does not follow from" if more else ""


def _close(first: Any, second: float) -> bool:
    return isinstance(first, int | float) and math.isclose(first, second, rel_tol=CLOSE, abs_tol=CLOSE)
