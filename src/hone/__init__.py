"""hone: reinforcement learning with verifiable rewards, reproducible to the bit.

    run = hone.rl(model="Qwen/Qwen3-0.6B", dataset="problems.jsonl", reward_funcs=[exact], max_steps=100)
    run.plot()

What a program uses is imported when it is first named: `import hone` itself loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.api import evaluate, rl, sft, study
    from hone.composition.rl import RL
    from hone.composition.sft import SFT
    from hone.environments.services import HTTPReward, Judge
    from hone.runs import Run

__version__ = "0.2.0"
__all__ = ["RL", "SFT", "HTTPReward", "Judge", "Run", "evaluate", "rl", "sft", "study"]

_HOMES = {
    "rl": "hone.api",
    "sft": "hone.api",
    "evaluate": "hone.api",
    "study": "hone.api",
    "RL": "hone.composition.rl",
    "SFT": "hone.composition.sft",
    "Run": "hone.runs",
    "HTTPReward": "hone.environments.services",
    "Judge": "hone.environments.services",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hone' has no attribute {name!r}: it has {', '.join(__all__)}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
