"""Checks that a running server serves the trained model, and accepts the run's weights. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.client import HONE, Endpoint, RequestRejected, ServerUnavailable
from hone.errors import UserError
from hone.extension import gathered, sampler_name
from hone.inference.client import ServedModel, ServerClient
from hone.runs.display import say

if TYPE_CHECKING:
    from hone.model.chat import ChatRenderer

PROBE = "One probe: naïve café, 12+34=46, {x}\n"
"""A text that tokenizers of different models split differently."""


@dataclass(frozen=True)
class Server:
    """A server to sample from: its endpoint, its kind (`backend`) and the model that it serves."""

    endpoint: Endpoint
    backend: str
    model: str

    @classmethod
    def of(cls, endpoint: Endpoint, served: ServedModel) -> Server:
        return cls(endpoint, served.owner, served.id)

    @property
    def is_hone(self) -> bool:
        return self.backend == HONE

    @property
    def name(self) -> str:
        return f"{'hone inference' if self.is_hone else sampler_name(self.backend)} at {self.endpoint.url}"

    def scoring(self, prompts: Sequence[Sequence[int] | str], temperature: float = 1.0) -> dict[str, Any]:
        """Return the body of a request for logprobs of prompts. Servers other than hone's must also sample a token."""
        body = {"model": self.model, "prompt": [p if isinstance(p, str) else list(p) for p in prompts]}
        body |= {"max_tokens": 0 if self.is_hone else 1, "temperature": temperature}
        return body | {"prompt_logprobs": 0}


class NoServer(UserError):
    """No server answers at the URL."""


def scores(answer: Any, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the logprobs of each prompt's tokens except the first, from the answer to `Server.scoring`.

    Raises KeyError, IndexError, TypeError or ValueError if logprobs are missing.
    """
    entries = [choice["prompt_logprobs"][1:] for choice in answer["choices"]]
    return [
        [float(entry[str(token)]["logprob"]) for token, entry in zip(ids[1:], row, strict=True)]
        for ids, row in zip(prompts, entries, strict=True)
    ]


def are_logprobs(values: Sequence[float]) -> bool:
    """Return True if all values can be logprobs: finite, and at most 0 up to rounding."""
    return all(-1e6 < value < 0.01 for value in values)


def with_remedy(error: RequestRejected, flag: str) -> UserError:
    if error.status != 401:
        return error
    return UserError(f"{error}; set {flag} to the environment variable with the server's key")


def connect_to_server(
    endpoint: Endpoint,
    model: str,
    renderer: ChatRenderer | None,
    tokens: int,
    spool: Path,
    parameters: int | None,
    patience: float = 0.0,
    named: bool = True,
) -> Server:
    """Return the server at `endpoint`. Raises UserError unless it serves the trained model.

    The server must serve `model` with this number of `parameters`, have the tokenizer of `renderer` (None: unchecked)
    and room for `tokens` tokens, and accept weights from folders below `spool`. hone waits `patience` seconds for an
    answer, and prints a line every 30 s. `named` is true if the user set --orchestrator.client.base-url.
    """

    async def ask() -> Server:
        async with ServerClient(replace(endpoint, max_retries=0)) as client:
            served = await client.models()
            entry = served[0] if len(served) == 1 else next((one for one in served if one.id == model), None)
            names = ", ".join(one.id for one in served[:20])
            if entry is None:
                raise UserError(f"{endpoint.url} serves {names or 'no model'}, not {model}: start a server of {model}")
            if entry.owner not in gathered("SAMPLERS", {HONE: None}):
                raise UserError(
                    f"{endpoint.url} is a server of {entry.owner or 'an unknown kind'}: rollouts need token ids, their "
                    f"logprobs and updates of the weights: start a server with `inference --model.name {model}`"
                )
            if entry.policy_version is None:
                raise UserError(
                    f"{endpoint.url} takes no weights: start {sampler_name(entry.owner)} with `inference --backend "
                    f"{entry.owner} --model.name {model}`"
                )
            if entry.max_model_len is not None and entry.max_model_len < tokens:
                raise UserError(
                    f"{endpoint.url} has room for {entry.max_model_len} tokens, but seq_len is {tokens}: lower seq_len"
                )
            if entry.parameters is not None and parameters is not None and entry.parameters != parameters:
                raise UserError(
                    f"{endpoint.url} serves a model of {entry.parameters:,} parameters, not the run's {parameters:,}: "
                    f"start a server of {model}"
                )
            server = Server.of(endpoint, entry)
            if renderer is not None:
                await _check_tokenizer(client, server, model, renderer)
            await _check_root(client, spool)
            return server

    began = shown = time.monotonic()
    while True:
        try:
            return asyncio.run(ask())
        except RequestRejected as error:
            raise with_remedy(error, "--orchestrator.client.api-key-var") from None
        except ServerUnavailable as gone:
            now = time.monotonic()
            if gone.status == 503:  # after an update that failed half way, or hone's without its engine
                raise UserError(f"{gone}: stop that server and start it anew") from None
            if gone.status is not None or now - began >= patience:
                other = "leave out --orchestrator.client.base-url to sample in this process"
                if not named:
                    other = "raise --orchestrator.client.timeout if a server takes longer to start"
                command = f"inference --model.name {model} --weights-root {spool.resolve().parent}"
                raise NoServer(f"{gone}: start a server with `{command}`, or {other}") from None
            if now - shown > 30:
                shown = now
                say(f"Waiting for the server at {endpoint.url}: {now - began:.0f} s")
            time.sleep(0.5)


async def _check_tokenizer(client: ServerClient, server: Server, model: str, renderer: ChatRenderer) -> None:
    hones = server.is_hone
    more = {"max_tokens": 0, "echo": True} if hones else {"max_tokens": 1, "add_special_tokens": False}
    body = {"model": server.model, "prompt": PROBE, "return_token_ids": True, **more}
    (choice,) = (await client.post("/v1/completions", body))["choices"]
    ids = renderer.tokenizer.encode(PROBE, add_special_tokens=hones).ids
    if choice.get("prompt_token_ids") != ids:
        raise UserError(
            f"{server.endpoint.url} serves {server.model} with another tokenizer than {model}: serve the model "
            "that is trained"
        )


async def _check_root(client: ServerClient, spool: Path) -> None:
    """Raise UserError if the server refuses weights from below `spool`. The request names no existing folder."""
    try:
        await client.post("/update_weights", {"path": str(spool.resolve() / "none"), "version": 0})
    except RequestRejected as error:
        if error.status == 403 or "weights root" in error.reason:
            root = spool.resolve().parent
            raise UserError(f"{error}; here --weights-root must be {root} or one of its parents") from None
