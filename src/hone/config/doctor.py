"""`hone doctor`: what it looks at."""

from __future__ import annotations

from typing import Self

from pydantic import AliasChoices, Field

from hone.config.base import BaseConfig
from hone.config.plan import is_sft
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig


class DoctorConfig(BaseConfig):
    """Looks at this machine for what breaks or slows runs, and says the command that mends it. Exit code 1 for errors.

    With the files and flags of `hone rl` or `hone sft` it also looks at what that run needs: model, task, port, disk.
    """

    common = {"Of the doctor": "offline json"}

    offline: bool = False
    """Ask no other machine."""
    as_json: bool = Field(default=False, validation_alias=AliasChoices("as_json", "json"))
    """Print the findings as JSON."""

    @classmethod
    def chosen(cls, argv: list[str]) -> type[Self]:
        own = {"--offline", "--no-offline", "--json", "--no-json", "--as-json", "--help"}
        words = {word.partition("=")[0] for word in argv if word.startswith(("--", "@"))}
        if cls is not DoctorConfig or not words - own:
            return cls
        return DoctorSFT if is_sft(argv) else DoctorRL  # pyright: ignore[reportReturnType]

    @property
    def run(self) -> RLConfig | SFTConfig | None:
        """The config of the run, without the doctor's own keys; None if there is none."""
        if not isinstance(self, RLConfig | SFTConfig):
            return None
        run = SFTConfig if isinstance(self, SFTConfig) else RLConfig
        return run.model_validate(self.model_dump(exclude={"offline", "as_json"}, exclude_unset=True))


class DoctorRL(DoctorConfig, RLConfig):
    """Looks at this machine, and at what this run of `hone rl` needs."""


class DoctorSFT(DoctorConfig, SFTConfig):
    """Looks at this machine, and at what this run of `hone sft` needs."""
