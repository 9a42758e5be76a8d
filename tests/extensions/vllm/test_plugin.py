"""Who gets past hone's layer on vLLM's server. Real servers are asked in tests/extensions/vllm."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

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
