"""METRICS: a table of all metrics of runs. A new metric needs one row here, and code that computes it.

The table gives predictions the metrics that a run writes and when, the viewer labels, units and default curves, and
`hone replay` the tolerance if sums round differently.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.types import Outcome

Better = Literal["higher", "lower", ""]


@dataclass(frozen=True)
class Metric:
    """A row of `METRICS`. `*` in `name` matches anything: `reward/*/mean` stands for all components."""

    name: str
    where: str
    """Its writer: `rl` and `sft` at each step; `val` and `eval` at measurements (`eval` as `eval/ENV/<name>`);
    `canary` after each publication of weights; `time` from a clock, in timings.jsonl."""
    unit: str = ""
    label: str = ""
    """The meaning, if the name does not say it; `{}` stands for what `*` matches."""
    better: Better = ""
    curve: bool = False
    """True if the viewer draws it by default."""
    tolerance: float | None = 0
    """Allowed difference if ranks round differently, in multiples of a replay's limit. None: it is not compared."""


_OF_ENV = "(?:eval|env)/[^/]+/"
SHARE = "share of completions"
NATS = "nats per token"
METRICS = (
    Metric("reward/mean", "rl eval", "reward", "reward, mean", better="higher", curve=True),
    Metric("reward/std", "rl eval", "reward", "reward, standard deviation"),
    Metric("ci95/low", "eval", "reward", "reward, 95 % interval, low end"),
    Metric("ci95/high", "eval", "reward", "reward, 95 % interval, high end"),
    Metric("correct", "eval", SHARE, "correct", better="higher"),
    Metric("correct/ci95/low", "eval", SHARE, "correct, 95 % interval, low end"),
    Metric("correct/ci95/high", "eval", SHARE, "correct, 95 % interval, high end"),
    Metric("frac_reward_zero_std", "rl", "share of groups", "groups without signal", better="lower"),
    Metric("outcome/correct", "rl eval", SHARE, "outcome correct", better="higher"),
    Metric("outcome/wrong", "rl eval", SHARE, "outcome wrong", better="lower"),
    Metric("outcome/unparsable", "rl eval", SHARE, "outcome unparsable", better="lower"),
    Metric("outcome/truncated", "rl eval", SHARE, "outcome truncated", better="lower"),
    Metric("outcome/grader_error", "rl eval", SHARE, "outcome grader error", better="lower"),
    Metric("outcome/grader_timeout", "rl eval", SHARE, "outcome grader timeout", better="lower"),
    Metric("completion/length/mean", "rl eval", "tokens", "length, mean"),
    Metric("completion/truncated", "rl eval", SHARE, "truncated", better="lower"),
    Metric("completion/repeated", "rl", SHARE, "repeated", better="lower"),
    Metric("completion/identical", "rl", SHARE, "identical to another prompt's", better="lower"),
    Metric("completion/kept_ids/mean", "rl", "ids per token", "ids that top_k, top_p and min_p keep, mean"),
    Metric("turns/mean", "rl eval", "turns per completion", "turns of a conversation, mean"),
    Metric("trajectories/mean", "rl", "trajectories per completion", "trajectories of an agent's rollout, mean"),
    Metric("tokens/environment", "rl", "tokens", "tokens of the environment's messages"),
    Metric("staleness/mean", "rl", "versions", "versions behind, mean"),
    Metric("groups/trained", "rl", "groups"),
    Metric("groups/filtered", "rl", "groups"),
    Metric("groups/failed", "rl", "groups"),
    Metric("groups/surplus", "rl", "groups"),
    Metric("groups/cut", "rl", "groups"),
    Metric("groups/drawn", "rl", "groups", "groups sampled for the step"),
    Metric("logprob_gap/mean", "rl", "nats", "gap of sampler and trainer, mean", better="lower", tolerance=None),
    Metric("logprob_gap/max", "rl", "nats", "gap of sampler and trainer, largest", better="lower", tolerance=None),
    Metric("clipped", "rl", "share of tokens", "tokens with a clipped ratio", tolerance=None),
    Metric("loss", "rl sft", "", "loss", curve=True, tolerance=1),
    Metric("entropy", "rl sft", NATS, "entropy of the policy", tolerance=10),
    Metric("grad_norm", "rl sft", "", "norm of the gradient", tolerance=10),
    Metric("lr", "rl sft", "", "learning rate"),
    Metric("optimizer/skipped", "rl sft", "", "update left out"),
    Metric("tokens/total", "rl sft", "tokens", "tokens so far"),
    Metric("epoch", "sft"),
    Metric("examples/total", "sft", "examples", "examples so far"),
    Metric("val/loss", "val", NATS, "validation loss", better="lower", curve=True, tolerance=1),
    Metric("canary/gap/mean", "canary", "nats", "gap on a fixed text, mean", better="lower"),
    Metric("canary/gap/max", "canary", "nats", "gap on a fixed text, largest", better="lower"),
    Metric("canary/verdict", "canary"),
    Metric("teacher/kl", "rl", NATS, "reverse KL to the teacher", better="lower"),
    Metric("kl", "rl", NATS, "KL to the initial policy", better="lower", tolerance=10),
    Metric("staleness/max", "rl", "versions"),
    Metric("staleness/returned", "", "versions"),  # of older runs
    Metric("pool/active", "rl", "prompts"),
    Metric("pool/retired", "rl", "prompts"),
    Metric("pool/parked", "rl", "prompts"),
    Metric("pass@*", "eval", SHARE, "pass@{0} (at least one of {0} completions correct)", better="higher"),
    Metric("reward/*/mean", "rl eval", "reward", "{0} (a component of the reward), mean"),
    Metric("tokens/s", "time", "tokens per second"),
    Metric("time/*", "time", "s"),
    Metric("idle/*", "time", "s"),
    Metric("queue/*", "time"),
    Metric("usd/total", "time", "USD"),
)


def row(metric: str) -> Metric | None:
    """Return the row of a metric; `eval/ENV/` or `env/ENV/` before its name is ignored. None for a plugin's metric."""
    name = re.sub(rf"^{_OF_ENV}", "", metric)
    return next((one for one in METRICS if fnmatchcase(name, one.name)), None)


def unit(metric: str) -> str:
    found = row(metric)
    return found.unit if found else ""


def label(metric: str) -> str:
    found = row(metric)
    if found is None or not found.label:
        return metric
    pattern = re.escape(found.name).replace(r"\*", "(.+)")
    match = re.fullmatch(pattern, re.sub(rf"^{_OF_ENV}", "", metric))
    assert match is not None
    return found.label.format(*(part.replace("_", " ") for part in match.groups()))


def written(metric: str, config: RunConfig, env_id: str | None = None) -> list[int] | str:
    """Return the steps at which a run of `config` writes `metric`, or the end of a sentence that says why it does not.

    `env_id` is the id of a single task, if known: its metrics have this name.
    """
    found, last = row(metric), config.max_steps
    where = found.where.split() if found else []
    kind = "rl" if isinstance(config, RLConfig) else "sft"
    of, _, rest = metric.partition("/")
    task = rest.partition("/")[0]
    if isinstance(config, RLConfig) and of == "eval":
        settings = config.orchestrator.eval
        if settings is None:
            return "needs evaluations during the run: add --orchestrator.eval.interval"
        evaluated = _evaluated(config, env_id)
        if (task in evaluated or None in evaluated) and "eval" in where:
            return [*range(0, last, settings.interval), last]
    elif of in ("env", "eval"):
        if isinstance(config, RLConfig) and task in config.tasks() and kind in where:
            return [*range(last)]
    elif "time" in where:
        return "comes from a clock (timings.jsonl) and never repeats: predict a metric in metrics.jsonl"
    elif "val" in where and isinstance(config, SFTConfig):
        return [*range(0, last, config.val.interval), last] if config.val else "needs validation: add --val.interval"
    elif kind in where:
        return [*range(last)]
    elif "canary" in where and kind == "rl":
        return [*range(last + 1)]
    names = known(config, env_id)
    ends = [name for name in names if name.endswith(f"/{metric}") or name.startswith(f"{metric}/")]
    close = ends[:1] or get_close_matches(metric, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names[:3])}, … (see metrics.jsonl of a run)"
    return f"is no metric of `{kind}`: {hint}"


def check(config: RunConfig, env_id: str | None = None) -> None:
    """Raise UserError if `stop.metric` or `ckpt.best` is never measured, or `ckpt.best` not at any checkpoint."""
    interval = config.ckpt and config.ckpt.interval
    named = {"stop.metric": config.stop and config.stop.metric, "ckpt.best": config.ckpt and config.ckpt.best}
    for name, metric in named.items():
        steps = written(metric, config, env_id) if metric else []
        if isinstance(steps, str):
            raise UserError(f"{name} = {metric} {steps}")
        if name == "ckpt.best" and metric and not any(interval and step % interval == 0 for step in steps[1:]):
            raise UserError(
                f"ckpt.best = {metric} is never measured when a checkpoint is saved: set ckpt.interval to a "
                "multiple of the steps between its measurements"
            )


def best_step(metric: str, lines: Iterable[Mapping[str, Any]], steps: Collection[int]) -> tuple[int, float] | None:
    """Return the best step of `steps` for a metric (losses: lowest; ties: earliest step), and the metric's value."""
    found, sign = row(metric), 1
    if metric.endswith("loss") or (found is not None and found.better == "lower"):
        sign = -1
    values = [(line["step"], line[metric]) for line in lines if line["step"] in steps and line.get(metric) is not None]
    return max(values, key=lambda one: (sign * one[1], -one[0]), default=None)


def known(config: RunConfig, env_id: str | None = None) -> list[str]:
    """Return the metrics that a run of `config` may write, except metrics of reward components."""
    kinds = {"rl", "canary"} if isinstance(config, RLConfig) else {"sft", "val"}
    rows = [one for one in METRICS if "*" not in one.name]
    names = [one.name for one in rows if kinds & set(one.where.split())]
    if isinstance(config, RLConfig) and config.orchestrator.eval:
        tasks = [name or config.orchestrator.env.id for name in _evaluated(config, env_id)]
        names += [f"eval/{name}/{one.name}" for name in tasks for one in rows if "eval" in one.where]
    return names


def _evaluated(config: RLConfig, env_id: str | None) -> list[str | None]:
    return [name or env_id for name in config.eval_tasks()]


def component_means(components: Sequence[dict[str, float]]) -> dict[str, float]:
    """Compute `reward/<component>/mean`, over the samples on which the component did not abstain."""
    names = dict.fromkeys(name for sample in components for name in sample)
    return {f"reward/{n}/mean": float(np.mean([sample[n] for sample in components if n in sample])) for n in names}


def outcome_shares(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Compute `outcome/<name>` for the six outcomes: their shares of the samples, which sum to 1."""
    return {f"outcome/{outcome}": sum(o == outcome for o in outcomes) / len(outcomes) for outcome in Outcome}
