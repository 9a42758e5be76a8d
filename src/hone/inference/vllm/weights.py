"""New weights for a vLLM server that hone started, over HTTP."""

from __future__ import annotations

import json
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from hone.errors import UserError

PATIENCE = 600.0
"""Seconds that a server may take to load weights."""


def update_weights(url: str, path: Path, version: int, api_key: str | None = None) -> None:
    """Samples come from the weights in folder `path` (Hugging Face layout, safetensors) when this returns.

    One request, `POST /update_weights {"path": ..., "version": ...}`: the server holds the requests in flight, loads
    the weights into the model it has, forgets what it knew of prompts, and goes on. `url` is the server's, with or
    without `/v1`. UserError if it is not there or refuses, with its reason.
    """
    _ask(url, "POST", "/update_weights", {"path": str(path.resolve()), "version": version}, api_key)


def weights_version(url: str, api_key: str | None = None) -> int:
    """The version of the weights that the server samples from: that of the last update, or 0."""
    return _ask(url, "GET", "/v1/models", None, api_key)["data"][0]["policy_version"]


def _ask(url: str, method: str, path: str, body: dict[str, Any] | None, api_key: str | None) -> dict[str, Any]:
    root = url.rstrip("/").removesuffix("/v1")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})
    request = Request(root + path, json.dumps(body).encode() if body else None, headers, method=method)
    try:
        with opener_for(url).open(request, timeout=PATIENCE) as response:
            return json.load(response)
    except HTTPError as error:
        if error.code == 404:
            raise UserError(
                f"the server at {root} takes no weights: start it with `inference --backend vllm --weights-root DIR`"
            ) from None
        raise UserError(f"the vLLM server at {root} refused the weights: {_reason(error)}") from None
    except (OSError, HTTPException) as error:
        raise UserError(
            f"the vLLM server at {root} was lost ({getattr(error, 'reason', error)}): look at its log, start it again"
        ) from None


def opener_for(url: str):
    """Opens URLs; a proxy of the environment's cannot reach a server on this machine."""
    host = urlsplit(url).hostname or ""
    return build_opener(ProxyHandler({})) if host == "localhost" or host.startswith("127.") else build_opener()


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        return json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"status {error.code}, {text[:300]}"
