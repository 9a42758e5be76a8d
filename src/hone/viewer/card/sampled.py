"""How the evaluations of a card were sampled, in words, and the command that decodes the same weights greedily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hone.runs import Run
from hone.runs.summary import Summary
from hone.runs.words import evaluation

if TYPE_CHECKING:
    from hone.viewer.card.facts import Card

TINY = "hone/tiny"
"""The model that is made from a run's seed: `hone eval` would make another."""


def sampling(run: Summary) -> dict[str, Any]:
    """The settings of a run's evaluations, or of an evaluation; empty where config.toml does not say them."""
    if run.kind == "eval":
        return run.config | run.config.get("sampling_args", {})
    settings = run.config.get("orchestrator", {})
    found = settings.get("eval", {}).get("sampling", {})
    longest = {name: value for name, value in settings.get("sampling", {}).items() if name == "max_tokens"}
    return longest | found


def temperature(run: Summary) -> float | None:
    """At which a run's evaluations were sampled; 0 is greedy, None not known."""
    value = sampling(run).get("temperature")
    return float(value) if isinstance(value, int | float) else None


def how_sampled(card: Card) -> str:
    """`sampled at T = 1, 1 completion each`; empty where the temperature is not known."""
    value = temperature(card.run)
    if value is None or not card.evaluated:
        return ""
    count = card.evaluated[-1].rollouts
    each = f"{count} completion{'' if count == 1 else 's'} each"
    if value == 0:
        return f"decoded greedily, {each}"
    given = sampling(card.run)
    narrowed = [f"{label} {given[name]:g}" for label, name, off in _NARROWED if given.get(name, off) != off]
    return ", ".join([f"sampled at T = {value:g}", *narrowed, each])


_NARROWED = (("top-p", "top_p", 1.0), ("top-k", "top_k", 0))
"""In words, the setting, and the value at which it narrows nothing."""


def greedy_caveat(card: Card) -> str:
    """That a gain is of samples, and the command that decodes greedily; empty where there is no gain of samples."""
    run, value = card.run, temperature(card.run)
    if card.comparison is None or not card.good or not value:
        return ""
    weights = Run(run.path).weights()
    newest = str(weights[max(weights)]) if weights else "WEIGHTS"
    words = ["-n", str(len(card.evaluated[-1].by_example)), "-r", "1", "-T", "0"]
    if longest := sampling(run).get("max_tokens"):
        words += ["-t", str(longest)]
    command = evaluation(run, newest, words)
    first = run.config.get("model", {}).get("name", TINY)
    before = f" (and with -m {first} where it began)" if first != TINY and not card.comparison.first.step else ""
    gain = f"The gain is of samples at T = {value:g}: decoded greedily it may be smaller."
    return f"{gain} To measure that{before}: {command}"
