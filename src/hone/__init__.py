"""hone: reinforcement learning with verifiable rewards, reproducible to the bit.

    run = hone.rl(model="Qwen/Qwen3-0.6B", dataset="problems.jsonl", reward_funcs=[exact], max_steps=100)
    run.plot()

Each name is imported at its first use: `import hone` itself loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hone.api import evaluate as evaluate
    from hone.api import rl as rl
    from hone.api import sft as sft
    from hone.loops.rl import RL as RL
    from hone.loops.sft import SFT as SFT
    from hone.runs import Run as Run

__version__ = "0.2.0"
_HOMES = {
    "rl": "hone.api",
    "sft": "hone.api",
    "evaluate": "hone.api",
    "RL": "hone.loops.rl",
    "SFT": "hone.loops.sft",
    "Run": "hone.runs",
}


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        from hone.extension import gathered, lacking

        homes = gathered("EXPORTS", _HOMES)
        if name == "__all__":
            return sorted(one for one in homes if "." not in one)
        if (home := homes.get(name)) is None:
            why = lacking("EXPORTS", name) or f"it has {', '.join(__getattr__('__all__'))}"
            raise AttributeError(f"module 'hone' has no attribute {name!r}: {why}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__getattr__("__all__")])
