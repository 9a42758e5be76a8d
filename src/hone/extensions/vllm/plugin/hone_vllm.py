"""hone's code in vLLM's processes: loads weights in place, and adds HTTP paths for it.

vLLM finds this file on PYTHONPATH. vLLM's environment lacks hone, so the file imports only vLLM's packages.
`WorkerExtension` becomes a base of vLLM's worker (`--worker-extension-cls`); `UpdateWeights` wraps vLLM's server
(`--middleware`).
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import os
import uuid
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = os.environ.get("HONE_WEIGHTS_ROOT")
"""Weights are loaded only from this folder and, if it is set, from MEMORY. If ROOT is not set, updates are refused."""
MEMORY = os.environ.get("HONE_SHARED_MEMORY")
ADAPTER = "adapter"
"""Name of an adapter's folder within a folder of weights."""
KEY = os.environ.get("VLLM_API_KEY")
LOCAL = ("localhost", "127.0.0.1", "::1")
OPEN = ("/health", "/metrics")
"""Paths that need no key, and answer even if the model is partly updated. vLLM itself checks only some paths."""


class WorkerExtension:
    """Methods for vLLM's workers."""

    def hone_load_weights(self: Any, path: str) -> None:
        """Load the safetensors of folder `path` into the running model. `self` is vLLM's worker."""
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]

        self.reload_weights(weights_path=path)
        model = self.model_runner.get_model()
        head, embedding = getattr(model, "lm_head", None), getattr(getattr(model, "model", None), "embed_tokens", None)
        if current_platform.is_cpu() and head is not None and embedding is not None:
            # On a CPU, layers multiply with a packed copy, which only a reload of the layer renews. A tied head would
            # keep its old copy.
            head.quant_method.process_weights_after_loading(head)


class UpdateWeights:
    """Answers `POST /update_weights` as hone's server does.

    In `GET /v1/models` it adds the weights' version and folder, and an id of this process. `POST /sleep` frees the GPU
    until the next update. If KEY is set, requests need the key; else only programs of this machine are served.

    An update that fails while it writes weights leaves the model partly updated. Then the server refuses requests (503)
    until an update succeeds.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.version = 0
        self.path: str | None = None
        self.broken: str | None = None
        self.asleep = False
        self.lock = asyncio.Lock()
        self.instance = uuid.uuid4().hex

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN:
            await self.app(scope, receive, send)
        elif not KEY and _from_elsewhere(scope):
            await _answer(send, 403, _error("without a key this server answers only requests to localhost"))
        elif not _has_key(scope):
            await _answer(send, 401, _error("this request needs the API key"))
        elif (scope["method"], scope["path"]) == ("POST", "/update_weights"):
            status, answer = await self._update(scope, receive)
            await _answer(send, status, answer)
        elif (scope["method"], scope["path"]) == ("POST", "/sleep"):
            await _answer(send, *await self._sleep(scope["app"].state.engine_client))
        elif scope["path"] == "/v1/models":
            await self._models(scope, receive, send)
        elif self.broken:
            await _answer(send, 503, _error(self.broken))
        else:
            await self.app(scope, receive, send)

    async def _update(self, scope: dict[str, Any], receive: Any) -> tuple[int, dict[str, Any]]:
        if ROOT is None:
            return 403, _error("this server takes no weights: start it with --weights-root FOLDER")
        engine, models = scope["app"].state.engine_client, scope["app"].state.openai_serving_models
        with_adapter = engine.vllm_config.lora_config is not None
        async with self.lock:
            try:
                body = json.loads(await _body(receive))
                path, version = body["path"], body["version"]
                if not isinstance(path, str) or not isinstance(version, int) or version < 0:
                    raise TypeError("path must be text, version a number from 0")
                folder = weights_folder(path)
                if with_adapter:
                    await asyncio.to_thread(check_adapter, folder / ADAPTER)
                else:
                    await asyncio.to_thread(check_weights, folder, engine.model_config.hf_config)
            except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
                return 400, _error(f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else str(error))
            # Running requests wait. Nothing computed by the old weights may be reused: caches are emptied, and running
            # requests recompute their keys and values.
            await engine.pause_generation(mode="keep", clear_cache=False)
            before, self.version, self.path = self.version, version, path  # reported before a token is sampled with it
            try:
                if self.asleep:
                    await engine.wake_up(["weights"])
                if with_adapter:
                    await _load_adapter(engine, models, folder / ADAPTER)
                else:
                    await engine.collective_rpc("hone_load_weights", args=(str(folder),))
                if not await engine.reset_prefix_cache(reset_running_requests=True):
                    raise RuntimeError("the prefix cache could not be emptied")
                if self.asleep:
                    await engine.wake_up(["kv_cache"])
                    self.asleep = False
            except Exception as error:
                self.broken = f"an update of the weights failed ({error}): update them again, or restart the server"
                await engine.pause_generation(mode="abort")
                return 500, _error(self.broken)
            finally:
                await engine.resume_generation()
            self.broken = None
        return 200, {"status": "ok", "policy_version": version, "previous_version": before}

    async def _sleep(self, engine: Any) -> tuple[int, dict[str, Any]]:
        if not engine.model_config.enable_sleep_mode:
            return 400, _error("this server does not sleep: no trainer that started it shares its GPU")
        async with self.lock:
            # Level 2 drops the weights, which an update reloads; with adapters the weights stay.
            await engine.sleep(1 if engine.vllm_config.lora_config is not None else 2)
            self.asleep = True
        return 200, {"status": "ok"}

    async def _models(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        sent: list[dict[str, Any]] = []

        async def keep(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, keep)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        if sent[0]["status"] != 200:
            await _answer(send, sent[0]["status"], json.loads(body))
            return
        models = json.loads(body)
        del models["data"][1:]  # the adapter, under the same name
        for model in models["data"]:
            model |= {"policy_version": self.version, "policy_path": self.path, "instance": self.instance}
            if ROOT is not None:
                config = scope["app"].state.engine_client.model_config.hf_config
                model["parameters"] = await asyncio.to_thread(count_parameters, config)
        await _answer(send, 200, models)


async def _load_adapter(engine: Any, models: Any, folder: Path) -> None:
    from vllm.lora.request import LoRARequest  # pyright: ignore[reportMissingImports]

    request = {"lora_name": models.base_model_paths[0].name, "lora_int_id": 1, "lora_path": str(folder)}
    await engine.add_lora(LoRARequest(**request, load_inplace=True))
    models.lora_requests[request["lora_name"]] = LoRARequest(**request)  # in place it would reload each time


def _has_key(scope: dict[str, Any]) -> bool:
    """Return True for requests with the key, and for a browser's preflight (OPTIONS), which never has one."""
    if not KEY or scope["method"] == "OPTIONS":
        return True
    return hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), f"Bearer {KEY}".encode())


def _from_elsewhere(scope: dict[str, Any]) -> bool:
    """Return True if Host is not localhost, or Origin is another site. vLLM would allow requests of any web page."""
    headers = {name: value.decode("latin-1").lower() for name, value in scope["headers"]}
    host, origin = headers.get(b"host", ""), headers.get(b"origin")
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        name = None
    return name not in LOCAL or origin not in (None, f"http://{host}", f"https://{host}")


def weights_folder(path: str) -> Path:
    """Return the folder `path`, absolute or relative to ROOT. Raises ValueError if it is not below ROOT or MEMORY."""
    assert ROOT is not None
    root = Path(ROOT).resolve()
    folder = (root / path).resolve()
    if not _is_below_a_root(folder):
        raise ValueError(f"{path} is not under the weights root {root}: save the weights there")
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give a folder of saved weights, such as weights/step_20")
    return folder


def _is_below_a_root(path: Path) -> bool:
    return any(path.is_relative_to(Path(root).resolve()) for root in (ROOT, MEMORY) if root)


def check_weights(folder: Path, config: Any) -> None:
    """Raise ValueError unless the tensors in `folder` have exactly the names and shapes of a model with `config`."""
    there = finite_shapes(folder)
    if not there:
        raise ValueError(f"{folder} has no safetensors: give a folder of saved weights, such as weights/step_20")
    wanted = shapes_of(config)
    for name in sorted(wanted.keys() | there.keys()):
        if there.get(name) != wanted.get(name):
            ours = wanted.get(name)
            raise ValueError(f"{folder} is another model: {name} has shape {there.get(name)}, not {ours}")


def check_adapter(folder: Path) -> None:
    """Raise ValueError unless `folder` has an adapter with finite values. vLLM itself checks that it fits the model."""
    if not (folder / "adapter_config.json").is_file() or not finite_shapes(folder):
        raise ValueError(f"this server takes adapters (--max-lora-rank), but {folder} has none: use a run with LoRA")


def finite_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in `folder` by name. Raises ValueError if a value is not finite, or if a file is
    a link out of ROOT and MEMORY."""
    from safetensors import SafetensorError, safe_open

    there: dict[str, list[int]] = {}
    for file in sorted(folder.iterdir()):  # vLLM reads others too
        if not file.is_dir() and not (file.is_file() and _is_below_a_root(file.resolve())):
            raise ValueError(f"{file} is no file under the weights root: save the weights there")
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    there[name] = tensors.get_slice(name).get_shape()
                    value = tensors.get_tensor(name)
                    if not value.sum().isfinite() and (count := int((~value.isfinite()).sum())):
                        raise ValueError(f"{folder} is refused: {count} values of {name} are not finite")
        except SafetensorError as error:
            raise ValueError(f"{file} cannot be read ({error}): save it again") from None
    return there


def count_parameters(config: Any) -> int:
    return sum(math.prod(shape) for shape in shapes_of(config).values())


def shapes_of(config: Any) -> dict[str, list[int]]:
    return expected_shapes(json.dumps(config.to_dict(), default=str, sort_keys=True), type(config))


@cache
def expected_shapes(config: str, kind: type) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a model's files, by name. `config` is JSON for the config class `kind`."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(kind.from_dict(json.loads(config)))
    named = dict(model.named_parameters())  # of tied tensors only the first
    return {name: list(parameter.shape) for name, parameter in named.items()}


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ValueError("the client left before its request was read")
        body += message.get("body", b"")
        if len(body) > 2**16:
            raise ValueError("the request is longer than 64 KiB")
        if not message.get("more_body"):
            return body


async def _answer(send: Any, status: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message}}
