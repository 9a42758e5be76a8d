"""`hone plan` and `hone doctor`: the keys of `hone rl` or `hone sft`, and further keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AliasChoices, Field, create_model

from hone.config.base import BaseConfig, Meta
from hone.config.parse import config_of, load_toml
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


class _AboutRun(BaseConfig):
    """A command that also takes the files and flags of a run."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        """Return this class plus the keys of `hone sft` if `argv` names such keys, else plus the keys of `hone rl`."""
        kind = SFTConfig if is_sft(argv) else RLConfig
        return create_model(cls.__name__, __base__=(cls, kind), __doc__=cls.__doc__)  # pyright: ignore

    @property
    def command_keys(self) -> set[str]:
        """The keys that this command has, but `hone rl` and `hone sft` don't."""
        return type(self).model_fields.keys() - RLConfig.model_fields.keys() - SFTConfig.model_fields.keys()

    @property
    def run(self) -> RLConfig | SFTConfig | None:
        """The config of the run, without the keys of this command; None if the command got no run."""
        kind = next((kind for kind in (RLConfig, SFTConfig) if isinstance(self, kind)), None)
        return kind and kind.model_validate(self.model_dump(exclude=self.command_keys, exclude_unset=True))


class PlanConfig(_AboutRun):
    """Predict steps, memory, time and cost of a run, and list surprising settings. Takes the files and flags of
    `hone rl` or `hone sft`, and tells from the keys which command is meant. Exit code 1 if the run does not fit into
    memory, or if a prompt is too long for `seq_len`.
    """

    headings = "The plan: plan"

    on: Annotated[str | None, Meta("plan")] = None
    """Plan for this device: h100, rtx4090, l40s, … or a memory size (24gb); by default this machine's device."""
    calibrate: Annotated[bool, Meta("plan")] = False
    """Take two real steps in a scratch folder, and scale the plan to their memory and time."""
    usd_per_hour: Annotated[float | None, Meta("plan")] = Field(default=None, gt=0, allow_inf_nan=False)
    """Price of the machine in US dollars per hour; by default from `budget`, else from a table."""
    as_json: Annotated[bool, Meta("plan")] = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the plan as JSON."""


class DoctorConfig(_AboutRun):
    """Check this machine for problems that break or slow runs, and print fixes. Exit code 1 for errors.

    With the files and flags of `hone rl` or `hone sft` it also checks what the run needs: model, task, port, disk.
    """

    headings = "The doctor: doctor"

    offline: Annotated[bool, Meta("doctor")] = False
    """Contact no other machine."""
    as_json: Annotated[bool, Meta("doctor")] = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the findings as JSON."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        flags = {"--offline", "--no-offline", "--json", "--no-json", "--as-json", "--help"}
        words = {word.partition("=")[0] for word in argv if word.startswith(("--", "@"))}
        return super().chosen(argv) if words - flags else cls


def is_sft(argv: list[str]) -> bool:
    """Return True if `argv` names a config or keys (in files, as flags) of `hone sft`."""
    named: set[str] = set()
    for word, following in zip(argv, [*argv, ""][1:], strict=True):
        if word.startswith("@") and (file := word[1:] or following):
            if kind := config_of(Path(file)):
                return kind == "sft"
            named |= {f"{name}." if isinstance(value, dict) else name for name, value in load_toml(file).items()}
        elif word.startswith("--"):
            name, dot, _ = word[2:].partition("=")[0].replace("-", "_").partition(".")
            named.add(name.removeprefix("no_") + dot)
    # RL's `data` is no section.
    names, sft, rl = {name.rstrip(".") for name in named - {"data."}}, SFTConfig.model_fields, RLConfig.model_fields
    return "data." in named or bool(names & (sft.keys() - rl.keys()) and not names & (rl.keys() - sft.keys()))
