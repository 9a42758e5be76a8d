"""Nothing that a client sends, and no weights, keep the server from answering the next request as before."""

from __future__ import annotations

import http.client
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from real_server import Served, random_model, serving
from safetensors.torch import load_file, save_file

from hone.inference.endpoint import Endpoint
from hone.model.hf import save_model
from hone.orchestrator import reach

PROBE = {"prompt": "Hello", "max_tokens": 6, "temperature": 0, "return_token_ids": True, "ignore_eos": True}


def ask(served: Served, path: str, body: Any, method: str = "POST") -> tuple[int, Any]:
    """Status and answer; a body that is not bytes goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=120)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, content, {"Content-Type": "application/json"})
    response = connection.getresponse()
    status, answer = response.status, json.loads(response.read())
    connection.close()
    return status, answer


def probe(served: Served) -> list[int]:
    status, answer = ask(served, "/v1/completions", PROBE)
    assert status == 200, answer
    return answer["choices"][0]["token_ids"]


def health(served: Served) -> tuple[int, dict[str, Any]]:
    return ask(served, "/health", b"", "GET")


@pytest.mark.parametrize("temperature", [1e-320, 1e-38, 1e-6])
def test_a_tiny_temperature_is_greedy(served: Served, temperature: float) -> None:
    status, answer = ask(served, "/v1/completions", PROBE | {"temperature": temperature})
    assert (status, answer["choices"][0]["token_ids"]) == (200, probe(served))


BEYOND: list[tuple[str, Any]] = [
    ("n", 4097), ("n", 0), ("n", 2**70), ("seed", 2**64), ("seed", -(2**63) - 1), ("temperature", 1e300),
    ("top_k", 2**31), ("top_k", -2), ("min_p", 1.5), ("top_p", 0), ("max_tokens", 2**70), ("logprobs", 21),
    ("prompt_logprobs", 2**70), ("stop_token_ids", [2**70]), ("stop_token_ids", [-1]), ("stop_token_ids", [2**30]),
    ("stop_token_ids", [1] * 257), ("stop", ["a"] * 33), ("stop", "a" * 257), ("stop", [5]), ("key", [2**64]),
    ("key", [1] * 4097), ("user", "u" * 257), ("model", "m" * 257), ("best_of", 2**70), ("prompt", ["a"] * 4097),
    ("prompt", [2**70]), ("metadata", [1]), ("frequency_penalty", 1e9), ("logit_bias", {"1": 1}), ("x" * 10**5, 1),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BEYOND, ids=[f"{f[:20]}-{str(v)[:20]}" for f, v in BEYOND])
def test_what_is_out_of_bounds_is_refused_before_the_engine_sees_it(served: Served, field: str, value: Any) -> None:
    status, answer = ask(served, "/v1/completions", PROBE | {field: value})
    assert status == 400 and len(answer["error"]["message"]) < 1000
    assert served.service.running == 0 and not served.service.engine.busy


def test_bounds_leave_what_clients_send(served: Served) -> None:
    fields = {"stop_token_ids": list(range(256)), "stop": ["z" * 256] * 32, "seed": 2**64 - 1, "temperature": 1000}
    assert ask(served, "/v1/completions", PROBE | fields)[0] == 200
    message = {"role": "assistant", "content": "a", "refusal": None, "annotations": [], "function_call": None}
    messages = [{"role": "developer", "content": "a"}, {"role": "user", "content": "a", "name": "Bo"}, message]
    assert ask(served, "/v1/chat/completions", {"messages": [*messages, messages[1]], "max_tokens": 1})[0] == 200


DEEP = b"[" * 400 + b"]" * 400
USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("completions", b'{"prompt": "a", "prompt": "b"}', "the key 'prompt' is there twice"),
        ("completions", b'{"prompt": "a", "stream_options": {"include_usage": true, "include_usage": false}}', "twice"),
        ("completions", b'{"prompt": "a", "temperature": 1e999}', "too large"),
        ("completions", b"\xfe\xff", "not valid JSON"),
        ("chat/completions", {"messages": [USER | {"role": "wizard"}]}, "messages.0.role: Input should be 'system'"),
        ("chat/completions", {"messages": [USER | {"role": ["user"]}]}, "messages.0.role: Input should be 'system'"),
        ("chat/completions", {"messages": [USER | {"magic": 1}]}, "magic is not supported here"),
        ("chat/completions", {"messages": [USER | {"name": 5}]}, "messages.0.name: Input should be a valid string"),
        ("chat/completions", b'{"messages": [{"role": "user", "content": ' + DEEP + b"}]}", "no text"),
        ("chat/completions", b'{"messages": [{"role": "user"}], "tools": ' + DEEP + b"}", "no content"),
    ],
)  # fmt: skip
def test_what_means_nothing_is_refused_with_the_reason(served: Served, path: str, body: Any, words: str) -> None:
    status, answer = ask(served, f"/v1/{path}", body)
    assert status == 400 and words in answer["error"]["message"]


@pytest.mark.parametrize("path", ["a\0b", "a" * 4000 + "/b", "a" * 5000, "", ".", "~", "/proc/self", 5, None])
def test_paths_that_name_nothing(weights: Path, path: Any) -> None:
    with serving(weights_root=weights) as served:
        assert ask(served, "/update_weights", {"path": path, "version": 1})[0] == 400
        assert ask(served, "/update_weights", {"path": "step_1", "version": 2**63})[0] == 400


def _link_out(folder: Path) -> None:
    outside = folder.parent.parent / "outside.safetensors"
    shutil.move(folder / "model.safetensors", outside)
    (folder / "model.safetensors").symlink_to(outside)


def _index(weight_map: Any) -> Callable[[Path], Any]:
    text = json.dumps({"weight_map": weight_map})
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text)


def _config_linked_out(folder: Path) -> None:
    shutil.move(folder / "config.json", folder.parent.parent / "config.json")
    (folder / "config.json").symlink_to(folder.parent.parent / "config.json")


def _shard_linked_out(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent.parent / "outside.safetensors")
    (folder / "shard.safetensors").symlink_to(folder.parent.parent / "outside.safetensors")
    _index({"x": "shard.safetensors"})(folder)


def _config(**values: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def _text(name: str, text: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(text)


def _not_finite(value: float) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors["model.layers.1.mlp.down_proj.weight"][3, 4:6] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


SHARD = "/etc/passwd"
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "inf": (_not_finite(float("inf")), "2 values of model.layers.1.mlp.down_proj.weight are not finite"),
    "nan": (_not_finite(float("nan")), "2 values of model.layers.1.mlp.down_proj.weight are not finite"),
    "link": (_link_out, "is not under the weights root"),
    "linked config": (_config_linked_out, "is not under the weights root"),
    "linked shard": (_shard_linked_out, "is not under the weights root"),
    "absolute": (_index({"x": SHARD}), "must map each tensor to a file in its own folder"),
    "upwards": (_index({"x": "../outside.safetensors"}), "must map each tensor to a file in its own folder"),
    "deep config": (_text("config.json", b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "is not valid JSON"),
    "size": (_config(hidden_size="64"), "hidden_size in config.json is 64, not a whole number"),
    "header": (_text("model.safetensors", (2**62).to_bytes(8, "little") + b"{}"), "cannot be read"),
}  # fmt: skip


def test_weights_that_cannot_be_served_are_refused_and_the_old_ones_stay(weights: Path, tmp_path: Path) -> None:
    root = tmp_path / "weights"
    root.mkdir()
    with serving(weights_root=root) as served:
        before = probe(served)
        for name, (damage, words) in DAMAGE.items():
            shutil.copytree(weights / "step_1", root / name)
            damage(root / name)
            status, answer = ask(served, "/update_weights", {"path": name, "version": 7})
            assert status == 400 and words in answer["error"]["message"], (name, answer)
        assert probe(served) == before and health(served)[1]["policy_version"] == 0


def test_an_engine_that_failed_works_again_after_good_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_model(random_model(seed=1), tmp_path / "good")
    with serving(weights_root=tmp_path) as served:
        with torch.no_grad():  # as finite weights do whose products are too large
            served.service.engine.model.embed.fill_(float("nan"))
        served.service.engine.model.refresh()
        for count in range(1, 5):
            status, answer = ask(served, "/v1/completions", PROBE | {"n": 3})
            assert status == 500 and "logits are not finite" in answer["error"]["message"]
            code, body = health(served)
            assert (code, body["status"]) == ((200, "ok") if count < 3 else (503, "failing"))
            assert reach.answers(Endpoint(served.url)), "a run may give it weights"
            assert body["failed_steps"] == count and "logits are not finite" in body["last_failure"]
            assert not served.service.engine.busy
        for about in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 0}):
            status, answer = ask(served, "/v1/completions", PROBE | {"max_tokens": 0} | about)
            assert status == 500 and "logits are not finite" in answer["error"]["message"]
        assert ask(served, "/update_weights", {"path": "good", "version": 2})[0] == 200
        assert health(served)[:1] == (200,) and len(probe(served)) == 6
    assert capfd.readouterr().err.count("A step failed") == 1


def test_steps_that_fail_are_logged_once_and_told_by_health(capfd: pytest.CaptureFixture[str], monkeypatch) -> None:
    with serving() as served:
        before, counts = probe(served), iter(range(100))

        def failing() -> Any:
            raise RuntimeError(f"out of memory: tried to allocate {next(counts)} bytes")

        with monkeypatch.context() as patch:
            patch.setattr(served.service.engine, "step", failing)
            for _ in range(4):
                status, answer = ask(served, "/v1/completions", PROBE)
                assert status == 500 and "out of memory" in answer["error"]["message"]
        assert health(served)[0] == 503
        assert probe(served) == before
        assert (health(served)[0], health(served)[1]["failed_steps"]) == (200, 0)
    assert len(capfd.readouterr().err.splitlines()) == 1
