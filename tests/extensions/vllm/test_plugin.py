"""Who gets past hone's layer on vLLM's server. Real servers are asked in tests/extensions/vllm."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hone.extensions.vllm.server import EXTENSION


@pytest.fixture
def extension(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What runs in vLLM's process, with a key."""
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    spec = importlib.util.spec_from_file_location("hone_vllm", EXTENSION / "hone_vllm.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def status(layer, path: str, key: str | None, method: str = "POST", **headers: str) -> int:
    """That of the answer."""
    sent = []

    async def send(message) -> None:
        sent.append(message)

    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    named += [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    asyncio.run(layer({"type": "http", "method": method, "path": path, "headers": named}, None, send))
    return sent[0]["status"]


async def inner(scope, receive, send) -> None:
    """A server that answers everything."""
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b'{"data": []}'})


PATHS = ("/v1/completions", "/v1/models", "/invocations", "/tokenize", "/inference/v1/generate", "/docs", "/healthy")


def test_the_key_is_wanted_everywhere_but_where_it_is_of_no_use(extension: ModuleType) -> None:
    layer = extension.UpdateWeights(inner)
    for path in PATHS:
        found = [status(layer, path, key) for key in (None, "", "guess", "sesame")]
        assert found == [401, 401, 401, 200], path
    assert [status(layer, "/update_weights", key) for key in (None, "guess", "sesame")] == [401, 401, 403]
    assert [status(layer, path, None, "GET") for path in ("/health", "/metrics")] == [200, 200]
    assert status(layer, "/invocations", None, "OPTIONS") == 200


def test_without_a_key_only_programs_of_this_machine_are_let_in(extension: ModuleType) -> None:
    extension.KEY = None
    layer, own = extension.UpdateWeights(inner), "localhost:8000"
    for path in ("/v1/completions", "/v1/models"):
        assert [status(layer, path, None, host=host) for host in (own, "127.0.0.1:1", "[::1]:1")] == [200, 200, 200]
        assert status(layer, path, None, host=own, origin=f"http://{own}") == 200
    for headers in ({}, {"host": "evil.example"}, {"host": "[::1"}, {"host": own, "origin": "http://evil.example"}):
        found = [status(layer, path, None, **headers) for path in (*PATHS, "/update_weights")]
        assert found == [403] * len(found)
        assert status(layer, "/health", None, "GET", **headers) == 200


def test_weights_that_are_not_finite_or_lie_elsewhere_are_refused(extension, tmp_path, monkeypatch) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside.safetensors"
    (root / "step_1").mkdir(parents=True)
    monkeypatch.setattr(extension, "ROOT", str(root))
    monkeypatch.setattr(extension, "shapes_of", lambda config: {"a": [3]})
    file = root / "step_1" / "model.safetensors"
    save_file({"a": torch.tensor([1.0, 3e38, 3e38])}, file)
    extension.check_weights(root / "step_1", None)
    save_file({"a": torch.tensor([1.0, float("inf"), 0.0])}, file)
    with pytest.raises(ValueError, match="1 values of a are not finite"):
        extension.check_weights(root / "step_1", None)
    save_file({"a": torch.ones(3)}, outside)
    file.unlink()
    file.symlink_to(outside)
    with pytest.raises(ValueError, match="no file under the weights root"):
        extension.check_weights(root / "step_1", None)


def test_weights_are_taken_from_memory_too(extension, tmp_path, monkeypatch) -> None:
    for name in ("root", "memory/step_1", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(extension, "ROOT", str(tmp_path / "root"))
    with pytest.raises(ValueError, match="not under the weights root"):
        extension.weights_folder(str(tmp_path / "memory/step_1"))
    monkeypatch.setattr(extension, "MEMORY", str(tmp_path / "memory"))
    assert extension.weights_folder(str(tmp_path / "memory/step_1")) == tmp_path / "memory/step_1"
    with pytest.raises(ValueError, match="not under the weights root"):
        extension.weights_folder(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize("cpu", [False, True])
def test_a_model_of_a_family_without_an_inner_model_is_reloaded(extension, monkeypatch, cpu: bool) -> None:
    platform = SimpleNamespace(is_cpu=lambda: cpu)
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.platforms", SimpleNamespace(current_platform=platform))
    loaded: list[str] = []
    worker = SimpleNamespace(
        reload_weights=lambda weights_path: loaded.append(weights_path),
        model_runner=SimpleNamespace(get_model=lambda: SimpleNamespace(lm_head="a head")),
    )
    extension.WorkerExtension.hone_load_weights(worker, "step_1")
    assert loaded == ["step_1"]


class Engine:
    """Notes what the layer asks of vLLM's engine; `fails` names what raises."""

    def __init__(self, lora: bool, sleeps: bool = True) -> None:
        self.asked: list[str] = []
        self.fails = ""
        self.model_config = SimpleNamespace(enable_sleep_mode=sleeps, hf_config=None)
        self.vllm_config = SimpleNamespace(lora_config=object() if lora else None)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def ask(*args: Any, **named: Any) -> bool:
            words = [name, *(str(arg) for arg in (*args, *named.values()) if isinstance(arg, str | int | list))]
            self.asked.append(" ".join(words))
            if name == self.fails:
                raise RuntimeError("it failed")
            return True

        return ask


def posted(layer: Any, engine: Engine, place: str, **body: Any) -> int:
    """The status of the answer."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    state = SimpleNamespace(engine_client=engine, openai_serving_models=None)
    scope = {"type": "http", "method": "POST", "path": place, "headers": [(b"authorization", b"Bearer sesame")]}
    asyncio.run(layer(scope | {"app": SimpleNamespace(state=state)}, receive, send))
    return sent[0]["status"]


@pytest.mark.parametrize(("lora", "level"), [(False, 2), (True, 1)])
def test_a_server_sleeps_until_it_has_new_weights(extension, tmp_path, monkeypatch, lora: bool, level: int) -> None:
    """Level 2 keeps no weights, as the update brings them; level 1 keeps those under an adapter."""
    (tmp_path / "step_1").mkdir()
    monkeypatch.setattr(extension, "ROOT", str(tmp_path))
    for name in ("check_weights", "check_adapter"):
        monkeypatch.setattr(extension, name, lambda *_: None)

    async def load_adapter(engine: Any, models: Any, folder: Path) -> None:
        await engine.add_lora()

    monkeypatch.setattr(extension, "_load_adapter", load_adapter)
    layer, engine = extension.UpdateWeights(inner), Engine(lora)
    loads = "add_lora" if lora else "collective_rpc hone_load_weights"
    update = ["pause_generation keep False", loads, "reset_prefix_cache True", "resume_generation"]
    assert posted(layer, engine, "/update_weights", path="step_1", version=1) == 200
    assert engine.asked == update, "it was awake"
    engine.asked.clear()
    assert posted(layer, engine, "/sleep") == 200
    assert posted(layer, engine, "/update_weights", path="step_1", version=2) == 200
    pause, load, reset, resume = update
    woken = [pause, "wake_up ['weights']", load, reset, "wake_up ['kv_cache']", resume]
    assert engine.asked == [f"sleep {level}", *woken]
    engine.asked.clear()
    assert posted(layer, engine, "/sleep") == 200
    engine.fails = loads.split()[0]
    assert posted(layer, engine, "/update_weights", path="step_1", version=3) == 500
    assert layer.broken is not None
    engine.asked.clear()
    engine.fails = ""
    assert posted(layer, engine, "/update_weights", path="step_1", version=4) == 200
    assert engine.asked == woken and layer.broken is None, "half awake, it wakes again"
