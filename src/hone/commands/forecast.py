"""The plan in short, at the start of a run: memory in a line, and each setting that surprises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment
from hone.model.chat import ChatRenderer
from hone.model.config import DecoderConfig
from hone.planning.data import Counter, Facts, facts_of_task
from hone.planning.devices import this_device
from hone.planning.report import plan_of, short
from hone.planning.shape import Shape

EXAMPLES = 16
"""How many are measured: few, for it must not delay the start."""


def forecast(
    config: RLConfig | SFTConfig,
    decoder: DecoderConfig,
    renderer: ChatRenderer,
    env: Environment | None = None,
    alone: bool = True,
) -> Iterator[str]:
    """Yield lines to print before step 0; if no plan can be made, why, for the run goes on without.

    `env` is the task of RL, whose data has been read. A run of several processes is not `alone`: a plan does not know
    what each of them takes.
    """
    try:
        facts = Facts()
        if isinstance(config, RLConfig) and env is not None:
            facts = facts_of_task(config, env, Counter(renderer), EXAMPLES)
        plan = plan_of(config, this_device(config.model.device, measured=False), facts, shape=Shape.of(decoder))
        yield from short(plan if alone else replace(plan, memory=None))
    except Exception as error:
        yield f"No memory estimate: {type(error).__name__}: {error}"
