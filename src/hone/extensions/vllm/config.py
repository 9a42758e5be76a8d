"""Config keys for vLLM."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hone.config.base import BaseConfig, Meta
from hone.errors import UserError

GPU_GIB = 8.0
"""Default GiB for vLLM's keys and values on the trainer's GPU: room for 75k tokens of Qwen3-0.6B in bf16."""


class EngineKeys(BaseConfig):
    """Keys of the section `inference` and of `hone inference`."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """vLLM's `--dtype`. With `auto`, `rl` follows `precision`, and `inference` serves fp32 weights in bf16."""
    tensor_parallel: Annotated[int, Meta(decides="rounding")] = Field(default=1, ge=1, le=64)
    """Number of GPUs over which each vLLM server is spread."""
    max_lora_rank: int | None = Field(default=None, ge=1, le=512)
    """Send vLLM only adapters, of up to this rank. By default vLLM gets merged weights."""
    vllm_python: Annotated[Path | None, Meta(decides="nothing")] = None
    """Python of an environment with vLLM. By default hone's Python if it has vLLM, else the Python of `.venv-vllm`."""

    @model_validator(mode="after")
    def _check_parallel(self: Any) -> Any:
        if self.tensor_parallel > 1 and self.backend != "vllm":
            raise UserError(
                f"inference.tensor_parallel = {self.tensor_parallel} is for inference.backend = vllm: hone's engine "
                "has one GPU. Leave it out; for several GPUs set inference.replicas"
            )
        return self

    @property
    def gpus(self) -> int:
        return self.tensor_parallel

    @property
    def in_bf16(self) -> bool:
        return self.dtype == "bfloat16"

    def server_settings(self: Any, run: Any, on_gpu: bool, shares: bool = True) -> dict[str, Any]:
        if self.backend != "vllm":
            return {}
        longest = None  # of the model; only the hub knows
        if run.model.name == "hone/tiny":
            longest = run.model.init.max_positions
        with contextlib.suppress(OSError, ValueError):
            longest = json.loads((Path(run.model.name) / "config.json").read_bytes()).get("max_position_embeddings")
        settings: dict[str, Any] = {"max_model_len": min(run.seq_len + 1, longest or run.seq_len + 1)}
        if self.kv_gib or shares or not on_gpu:
            settings["kv_gib"] = self.kv_gib or (GPU_GIB if on_gpu else 1.0)
        return settings | {"dtype": self.served_dtype(run)}

    def served_dtype(self, run: Any) -> str:
        auto = "float32" if run.precision == "fp32" else "bfloat16"
        return auto if self.dtype == "auto" else self.dtype


class RLKeys(BaseConfig):
    """Checks of `hone rl`."""

    @model_validator(mode="after")
    def _check_vllm(self: Any) -> Any:
        if (most := self.inference.max_lora_rank) is not None:
            if self.model.lora is None or self.inference.backend != "vllm" or self.model.lora.rank > most:
                raise UserError(
                    f"inference.max_lora_rank = {most} needs inference.backend = vllm and a model.lora.rank of up to "
                    f"{most}: set both, or leave max_lora_rank out"
                )
            if self.model.lora.base is not None:
                raise UserError(
                    f"vLLM would add adapters to unquantised weights, but model.lora.base = {self.model.lora.base}: "
                    "leave out inference.max_lora_rank, so that vLLM gets merged weights"
                )
        return self
