"""A client that exchanges token ids with an inference server: hone's server, or another that hone starts.

async with ServerClient(Endpoint("http://localhost:8000/v1")) as client:
    (served,) = await client.models()
    answer = await client.post("/v1/completions", {"model": served.id, "prompt": [1, 2, 3], ...})
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from hone.client import Client, Endpoint, one_line
from hone.errors import Halt
from hone.web import MIB, TooLarge

LARGEST_ANSWER = 1024 * MIB
"""Largest answer in bytes. 64 completions of 32k tokens, with 20 candidates a token, take about 400 MiB."""


@dataclass(frozen=True)
class ServedModel:
    """A model that a server lists. A field is None if the server does not report it, or before the first weight update.

    `owner`: name of the server's maker; `policy_path`: folder of the last update; `parameters`: number of weights;
    `instance`: id of the server process.
    """

    id: str
    owner: str
    max_model_len: int | None
    policy_version: int | None
    policy_path: str | None
    parameters: int | None
    instance: str | None = None


class ServerClient(Client):
    """A client that doesn't retry after a timeout, because a second try would take just as long."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, LARGEST_ANSWER, asks_late_again=False)
        self._root, self._requests = endpoint.url.rstrip("/").removesuffix("/v1"), 0

    async def models(self) -> list[ServedModel]:
        page = await self._send("GET", "/v1/models", None)
        try:
            return [
                ServedModel(
                    entry["id"], entry["owned_by"], *(entry.get(field.name) for field in fields(ServedModel)[2:])
                )
                for entry in page["data"]
            ]
        except (KeyError, TypeError, AttributeError):
            raise Halt(
                f"{self.endpoint.url} does not list its models ({one_line(str(page))}): give the URL of an inference "
                "server, ending in /v1"
            ) from None

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Return the server's answer to `body`. Raises errors of `request`, and Halt if the answer can't be read."""
        return await self._send("POST", path, body)

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        self._requests += 1
        url = self.endpoint.url
        try:
            answer = await self.request(method, self._root + path, body, f"{path} {self._requests}")
        except TooLarge as error:
            raise Halt(f"the answer of {url} can't be read: {error}") from None
        try:
            return answer.json()
        except ValueError:
            raise Halt(
                f"{url} does not answer in JSON ({one_line(answer.text)}): give the URL of an inference server, "
                "ending in /v1"
            ) from None
