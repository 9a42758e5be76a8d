"""`hone plan`: the config of a run, of `hone rl` or of `hone sft`, and what the plan is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.sources import config_of, load_toml


class PlanConfig(BaseConfig):
    """What a run will do, take and cost: steps, memory, time, money, and settings that surprise.

    Takes the files and flags of `hone rl` or `hone sft`; which of the two is seen by their keys. Exit code 1 if the run
    does not fit into memory.
    """

    own: ClassVar[tuple[str, ...]] = ("on", "gpus", "calibrate", "usd_per_hour", "as_json")
    """The keys that are the plan's, not the run's."""

    on: str | None = None
    """Plan for this device: h100, rtx4090, l40s, … or a card by its memory (24gb); by default the one here."""
    gpus: int | None = Field(default=None, ge=1)
    """For so many of them."""
    calibrate: bool = False
    """Take a minute: run the real path once at worst-case length, and measure memory and time."""
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
        raise NotImplementedError


class RLPlan(PlanConfig, RLConfig):
    """What a run of `hone rl` will do, take and cost: steps, memory, time, money, and settings that surprise.

    With a file or flags of `hone sft` it plans that (`hone plan @ sft.toml --help` shows its keys).
    """

    @property
    def run(self) -> RLConfig:
        return RLConfig.model_validate(self.model_dump(exclude=set(self.own), exclude_unset=True))


class SFTPlan(PlanConfig, SFTConfig):
    """What a run of `hone sft` will do, take and cost: steps, memory, time, money, and settings that surprise."""

    @property
    def run(self) -> SFTConfig:
        return SFTConfig.model_validate(self.model_dump(exclude=set(self.own), exclude_unset=True))


ONLY_SFT = set(SFTConfig.model_fields) - set(RLConfig.model_fields) | {"data."}  # RL's `data` is no section
ONLY_RL = set(RLConfig.model_fields) - set(SFTConfig.model_fields)


def is_sft(argv: list[str]) -> bool:
    """Whether a command line is one of `hone sft`: by the sections that it names, in files or as flags."""
    named: set[str] = set()
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word.startswith("@"):
            if not (file := word[1:] or following):
                continue  # what reads the files says so
            if kind := config_of(Path(file)):
                return kind == "sft"
            named |= _keys(file)
        elif word.startswith("--"):
            name, dot, _ = word[2:].partition("=")[0].partition(".")
            named.add(_named(name.removeprefix("no-"), bool(dot)))
    return bool(named & ONLY_SFT) and not named & ONLY_RL


def _keys(file: str) -> set[str]:
    """The keys at the top of a file. UserError if it can't be read."""
    content: dict[str, Any] = load_toml(file)
    return {_named(name, isinstance(value, dict)) for name, value in content.items()}


def _named(name: str, is_section: bool) -> str:
    name = name.replace("-", "_")
    return "data." if name == "data" and is_section else name
