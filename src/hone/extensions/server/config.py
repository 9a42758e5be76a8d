"""`hone inference`: the server."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from hone.config.shared import (
    DEFAULT_PRECISION,
    TRANSPORT,
    CkptConfig,
    EngineConfig,
    KeyVariable,
    ModelConfig,
    Precision,
    TransportConfig,
    transport_weights,
)
from hone.errors import UserError


class ServeConfig(EngineConfig):
    """Serve a model over the OpenAI protocol: completions and chat, streamed or whole, with logprobs and token ids."""

    model: ModelConfig = ModelConfig()
    """The model to serve."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    api_key: str | None = Field(default=None, min_length=1)
    """Answer only clients that send this key. Other users of this machine can read the key in the command line."""
    api_key_var: KeyVariable = None
    """Environment variable that holds the key."""
    weights_root: Path | None = None
    """`POST /update_weights` loads only from this folder; by default from the transport's, else never."""
    transport: TransportConfig = TransportConfig()
    """Transport of the run to serve. Updates load from its weights folder, unless `weights_root` is set."""
    seed: int = Field(default=0, ge=0)
    """Seed for requests without a seed, and for `hone/tiny`'s weights."""
    precision: Precision = DEFAULT_PRECISION
    """`fp32`, `bf16_linear` (matrix products in bf16) or `bf16`; for vLLM see `dtype`."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; by default 1 for models under 10M parameters, else one per core."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest sequence that vLLM serves, in tokens; if unset, the model's limit."""
    output_dir: Path | None = None
    """Run directory. Updates load from its transport, unless `weights_root` or `transport` is set."""
    max_steps: int | None = None
    """Key of `rl`, ignored here, so that one file can be for both commands."""
    seq_len: int | None = None
    """Key of `rl`, ignored here."""
    ckpt: CkptConfig | None = None
    """Key of `rl`, ignored here."""

    @property
    def weights_folder(self) -> Path | None:
        if self.weights_root is not None or (self.transport.path is None and self.output_dir is None):
            return self.weights_root
        return transport_weights(self.transport.path or (self.output_dir or Path()) / TRANSPORT)

    @model_validator(mode="after")
    def _check_key(self) -> ServeConfig:
        if self.api_key is not None and self.api_key_var is not None:
            raise UserError("api_key and api_key_var are both set, but the server has one key: leave out api_key")
        return self
