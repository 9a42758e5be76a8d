"""Settings for servers that are already running; an RL run can sample from them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from hone.config.base import BaseConfig, Meta
from hone.config.shared import KeyVariable, server_url
from hone.errors import UserError


class AskedConfig(BaseConfig):
    """Requests to a running server."""

    place: ClassVar[str]
    """Dotted path of the section."""

    api_key_var: Annotated[KeyVariable, Meta(decides="nothing")] = None
    """Environment variable that holds the server's API key."""
    timeout: Annotated[float, Meta(decides="nothing")] = Field(default=600.0, gt=0)
    """Seconds to wait for an answer (with all samples of a group) or for a server to start; then the run ends."""
    max_retries: Annotated[int, Meta(decides="nothing")] = Field(default=6, ge=0)
    """Retries if the server is missing or fails; the waits between tries double from 1 s."""


class ClientConfig(AskedConfig):
    """A running inference server, such as `inference` starts."""

    place = "orchestrator.client"

    base_url: Annotated[list[str] | None, Meta("server", decides="rounding")] = None
    """Sample from the server at this URL, such as http://localhost:8000/v1 (repeatable). Every server gets the weights
    of each step. Several servers imply mode split."""

    @field_validator("base_url", mode="before")
    @classmethod
    def _listed(cls, given: Any) -> Any:
        return None if given == [None] else [given] if isinstance(given, str) else given

    @field_validator("base_url")
    @classmethod
    def _check_urls(cls, given: list[str] | None) -> list[str] | None:
        urls = [server_url(url, f"{cls.place}.api_key_var") for url in given or ()]
        if len(set(urls)) < len(urls):
            raise UserError(f"{cls.place}.base_url has a URL twice: give each server once")
        return urls or None

    @property
    def urls(self) -> list[str]:
        return self.base_url or []
