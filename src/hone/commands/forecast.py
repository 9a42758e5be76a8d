"""The plan in short, at the start of a run: memory in a line, and each setting that surprises."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment
from hone.model.chat import ChatRenderer
from hone.model.config import DecoderConfig
from hone.planning.data import Counter, Facts, of_environment
from hone.planning.devices import this_device
from hone.planning.report import plan_of, short
from hone.planning.shape import Shape

LOOKED_AT = 16
"""Examples whose lengths are measured: few, for it must not delay the start."""


def forecast(
    config: RLConfig | SFTConfig,
    decoder: DecoderConfig,
    renderer: ChatRenderer,
    env: Environment | None = None,
    ranks: int = 1,
    trains_on: str | None = None,
) -> Iterator[str]:
    """Lines to be said before step 0. `env` is the task of RL, whose data has been read; `ranks` are those of SFT;
    `trains_on` is the device of a trainer in another process.

    Takes some hundredths of a second. A plan is a courtesy: where it can't be made, the run goes on without.
    """
    try:
        yield from _lines(config, decoder, renderer, env, ranks, trains_on)
    except Exception as error:
        yield f"No memory estimate: {type(error).__name__}: {error}"


def _lines(
    config: RLConfig | SFTConfig,
    decoder: DecoderConfig,
    renderer: ChatRenderer,
    env: Environment | None,
    ranks: int,
    trains_on: str | None,
) -> list[str]:
    facts = Facts()
    if isinstance(config, RLConfig) and env is not None:
        facts = of_environment(config, env, Counter(renderer), most=LOOKED_AT)
    if trains_on is None:
        device = this_device(config.model.device, measured=False)
        return short(plan_of(config, device, facts, ranks, shape=Shape.of(decoder)))
    # What the other processes have by now is no longer free; and their GPUs can't be seen from here.
    device = replace(this_device("cpu", measured=False), free=None)
    plan = plan_of(config.model_copy(update={"mode": "split"}), device, facts, shape=Shape.of(decoder))
    return short(plan if trains_on == "cpu" else replace(plan, memory=None))
