"""Real vLLM servers on the CPU, and the models they serve: small ones, made here, in two versions each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import openai
import pytest
import torch

from hone.config.shared import InitConfig
from hone.inference.vllm import VllmServer
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config
from hone.model.tokenizer import save_tokenizer

QWEN = tiny_config(InitConfig(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=96))
FAMILIES = {
    "qwen3, tied": QWEN,
    "llama, untied": replace(QWEN, family="llama", qk_norm=False, tie_word_embeddings=False),
}


@dataclass(frozen=True)
class Served:
    """A server, the folder of its model's versions (`v0` is what it started with), and a client of it."""

    server: VllmServer
    folder: Path
    client: openai.OpenAI

    @property
    def name(self) -> str:
        return str(self.folder / "v0")


def make_versions(family: str, folder: Path) -> None:
    """`folder/v0` and `folder/v1`: random weights with clearly different logprobs, in Hugging Face layout."""
    for version in (0, 1):
        model = random_decoder(FAMILIES[family], seed=version, precision="fp32")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2:
                    parameter.mul_(3 if name in ("embed", "lm_head") else 6)
        save_model(model, folder / f"v{version}")
        save_tokenizer(folder / f"v{version}")


@pytest.fixture(scope="module", params=list(FAMILIES))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("vllm")
    make_versions(request.param, folder)
    settings = {"dtype": "float32", "kv_gib": 1 / 16, "weights_root": folder, "max_model_len": 512}
    with VllmServer(folder / "v0", log=folder / "vllm.log", **settings) as server:
        yield Served(server, folder, openai.OpenAI(base_url=server.url, api_key="none", max_retries=0))
