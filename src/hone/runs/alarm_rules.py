"""The rule of each alarm, by its name: see `alarm_finding.py` for what a rule is."""

from __future__ import annotations

from hone.runs import alarm_rules_completions as completions
from hone.runs import alarm_rules_learning as learning
from hone.runs.alarm_finding import Rule

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        completions.falling_reward,
        learning.zero_std,
        completions.unparsable,
        completions.wrong,
        completions.component,
        completions.truncation,
        learning.entropy_collapse,
        learning.entropy_blowup,
        learning.kl,
        learning.ratio,
        learning.grad_spike,
        completions.identical,
        completions.grader,
        learning.solved_pool,
        learning.dead_pool,
        learning.no_signal,
    )
}
"""By the name of the alarm. `gap` has no rule: `hone.orchestrator.watch` raises it."""
