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
    ranks: int = 1,
    trains_on: str | None = None,
) -> Iterator[str]:
    """Yield lines to print before step 0; if no plan can be made, why, for the run goes on without.

    `env` is the task of RL, whose data has been read; `ranks` are those of SFT; `trains_on` is the device of a trainer
    in another process.
    """
    try:
        facts, shape = Facts(), Shape.of(decoder)
        if isinstance(config, RLConfig) and env is not None:
            facts = facts_of_task(config, env, Counter(renderer), EXAMPLES)
        if trains_on is None:
            device = this_device(config.model.device, measured=False)
            yield from short(plan_of(config, device, facts, ranks, shape=shape))
            return
        # What the other processes have by now is no longer free; and their GPUs can't be seen from here.
        device = replace(this_device("cpu", measured=False), free=None)
        plan = plan_of(config.model_copy(update={"mode": "split"}), device, facts, shape=shape)
        yield from short(plan if trains_on == "cpu" else replace(plan, memory=None))
    except Exception as error:
        yield f"No memory estimate: {type(error).__name__}: {error}"
