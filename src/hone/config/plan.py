"""`hone plan`: the config of a run, of `hone rl` or of `hone sft`, and what the plan is for."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.parse import config_of, load_toml
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


class PlanConfig(BaseConfig):
    """What a run will do, take and cost: steps, memory, time, money, and settings that surprise.

    Takes the files and flags of `hone rl` or `hone sft`; which of the two is seen by their keys. Exit code 1 if the run
    does not fit into memory.
    """

    own: ClassVar[tuple[str, ...]] = ("on", "calibrate", "usd_per_hour", "as_json")
    """The keys that are the plan's, not the run's."""
    common = {"The plan": "on calibrate usd_per_hour json"}

    on: str | None = None
    """Plan for this device: h100, rtx4090, l40s, … or a card by its memory (24gb); by default the one here."""
    calibrate: bool = False
    """Take three real steps in a scratch folder, and scale the plan to their memory and time."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    """Price of the machine in US dollars per hour; by default that of `budget`, else of a table."""
    as_json: bool = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the plan as JSON."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        return (SFTPlan if is_sft(argv) else RLPlan) if cls is PlanConfig else cls  # pyright: ignore[reportReturnType]

    @property
    def run(self) -> RLConfig | SFTConfig:
        """The config of the run, without the plan's own keys."""
        run = SFTConfig if isinstance(self, SFTConfig) else RLConfig
        return run.model_validate(self.model_dump(exclude=set(self.own), exclude_unset=True))


class RLPlan(PlanConfig, RLConfig):
    """What a run of `hone rl` will do, take and cost: steps, memory, time, money, and settings that surprise.

    With a file or flags of `hone sft` it plans that (`hone plan @ sft.toml --help` shows its keys).
    """


class SFTPlan(PlanConfig, SFTConfig):
    """What a run of `hone sft` will do, take and cost: steps, memory, time, money, and settings that surprise."""


ONLY_SFT = set(SFTConfig.model_fields) - set(RLConfig.model_fields) | {"data."}  # RL's `data` is no section
ONLY_RL = set(RLConfig.model_fields) - set(SFTConfig.model_fields)


def is_sft(argv: list[str]) -> bool:
    """Return True for a command line of `hone sft`, by the sections that it names, in files or as flags."""
    named: set[tuple[str, bool]] = set()
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word.startswith("@") and (file := word[1:] or following):
            if kind := config_of(Path(file)):
                return kind == "sft"
            named |= {(name, isinstance(value, dict)) for name, value in load_toml(file).items()}
        elif word.startswith("--"):
            name, dot, _ = word[2:].partition("=")[0].partition(".")
            named.add((name.removeprefix("no-"), bool(dot)))
    keys = {f"{name}." if (name, section) == ("data", True) else name.replace("-", "_") for name, section in named}
    return bool(keys & ONLY_SFT) and not keys & ONLY_RL
