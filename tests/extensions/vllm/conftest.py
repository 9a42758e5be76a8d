"""Real vLLM servers on the CPU, started as a user would, and the small models they serve, in two versions each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import openai
import pytest
import torch

from hone.client import refusal_in
from hone.config.shared import InitConfig
from hone.errors import UserError
from hone.model.hf import save_model
from hone.model.presets import random_decoder, tiny_config
from hone.model.tokenizer import save_tokenizer
from hone.processes import free_port

QWEN = tiny_config(InitConfig(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=96))
FAMILIES = {
    "qwen3, tied": QWEN,
    "llama, untied": replace(QWEN, family="llama", qk_norm=False, tie_word_embeddings=False),
}
ENDINGS = {"qwen3, tied": signal.SIGINT, "llama, untied": signal.SIGKILL}


@dataclass
class Served:
    """`inference --backend vllm` of `folder/v0`, as a process; how it is to end, and a client of it."""

    process: subprocess.Popen[str]
    output: list[str]
    url: str
    folder: Path
    ending: signal.Signals

    @property
    def name(self) -> str:
        return str(self.folder / "v0")

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key="sesame", max_retries=0)

    def update(self, path: Path, version: int) -> None:
        headers, body = {"Authorization": "Bearer sesame"}, {"path": str(path.resolve()), "version": version}
        answer = httpx.post(self.url.removesuffix("/v1") + "/update_weights", json=body, headers=headers, timeout=600)
        if not answer.is_success:
            raise UserError(refusal_in(answer.text)[0])

    @property
    def version(self) -> int:
        (model,) = self.client.models.list()
        return model.policy_version


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
    with serving(folder, folder / "v0", ENDINGS[request.param]) as one:
        yield one


@pytest.fixture
def serve() -> Callable[..., AbstractContextManager[Served]]:
    return serving


@contextmanager
def serving(
    root: Path, model: Path, ending: signal.Signals = signal.SIGTERM, kv_gib: float = 0.0625
) -> Iterator[Served]:
    """vLLM with a model in fp32, which takes weights from `root`."""
    port = free_port()
    flags = (
        f"--backend vllm --dtype float32 --kv-gib {kv_gib} --max-model-len 2048 --port {port} --api-key-var KEY".split()
    )
    argv = [*flags, "--model.name", str(model), "--weights-root", str(root)]
    path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
    process = subprocess.Popen(
        [sys.executable, "-m", "hone.cli", "inference", *argv],
        cwd=root,
        env={**os.environ, "PYTHONPATH": path, "KEY": "sesame"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    shown: list[str] = []
    try:
        while not shown or not shown[-1].startswith("stop "):
            shown.append(process.stdout.readline())
            assert shown[-1], shown
        yield Served(process, shown, f"http://127.0.0.1:{port}/v1", root, ending)
    finally:
        process.terminate()
        process.wait(300)
