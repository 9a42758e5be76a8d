"""The units of the metrics that a run writes, by their names."""

from __future__ import annotations

import re

_UNITS = (
    (r"time/.*|idle/.*", "s"),
    (r"tokens/s", "tokens per second"),
    (r"tokens/.*|.*completion/length/.*", "tokens"),
    (r"outcome/.*|completion/(truncated|repeated|identical)|exact(/ci95/(low|high))?|pass@\d+", "share of completions"),
    (r"frac_reward_zero_std", "share of groups"),
    (r"clipped", "share of tokens"),
    (r"val/loss|entropy|kl", "nats per token"),
    (r"(logprob_gap|canary/gap)/.*", "nats"),
    (r"staleness/.*", "versions"),
    (r"turns/.*", "turns per completion"),
    (r"groups/.*", "groups"),
    (r"pool/.*", "prompts"),
    (r"usd/.*", "USD"),
    (r"examples/.*", "examples"),
    (r"reward/.*|ci95/(low|high)", "reward"),
)
"""The first expression that a name matches, from `eval/ENV/` on, decides."""


def unit(metric: str) -> str:
    """The unit of a metric in words; empty for one that has none, or whose meaning is not known here."""
    name = re.sub(r"eval/[^/]+/", "", metric)
    return next((words for expression, words in _UNITS if re.fullmatch(expression, name)), "")
