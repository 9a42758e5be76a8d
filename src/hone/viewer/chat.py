"""`/chat/`: a box that talks to servers: those of `hone view --chat`, and those that runs in mode split have started.

A page may connect to nothing but the viewer, which passes questions on; so a server's key stays here. It asks no other
server than those, and none at all before somebody looks at the page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from hone.client import Endpoint
from hone.errors import Halt, UserError
from hone.inference.client import ServerClient
from hone.pages import visible
from hone.viewer.site import Site

LISTING = 3.0
"""Seconds that a server has to say which models it serves."""
MAX_BODY = 4 * 2**20
"""Bytes of a conversation."""


@dataclass(frozen=True)
class ChatServer:
    """A server, by the name that the page shows, with its models or the problem it has."""

    name: str
    url: str
    models: tuple[str, ...] = ()
    problem: str = ""


class Question(BaseModel):
    """What the page's script sends: a conversation that ends with the user's words."""

    server: str
    model: str
    messages: list[dict[str, str]] = Field(min_length=1)
    temperature: float = Field(ge=0)
    max_tokens: int = Field(ge=1)


def servers(site: Site) -> dict[str, str]:
    """Return the name of each server that can be talked to, by its URL."""
    runs = [entry for entry in site.catalog.entries() if entry.summary and entry.summary.server]
    return {url: url for url in site.chats} | {str(entry.state.server): entry.name for entry in runs}


def chat(site: Site, query: QueryParams) -> str:
    """Show the box, with a column for each server."""

    async def listed(name: str, url: str) -> ChatServer:
        endpoint = Endpoint(url, site.chats.get(url), timeout=LISTING, max_retries=0)
        try:
            async with ServerClient(endpoint) as client:
                return ChatServer(name, url, tuple(served.id for served in await client.models()))
        except Halt as error:
            return ChatServer(name, url, problem=str(error))

    async def all_listed() -> list[ChatServer]:
        return await asyncio.gather(*(listed(name, url) for url, name in servers(site).items()))

    return site.page("chat.html", "chat/", "Chat", servers=asyncio.run(all_listed()))


async def ask(site: Site, request: Request) -> Response:
    """Ask a server, and stream its answer as events: `{"text", "shown"}`, `{"note"}`, `{"error"}`.

    HTTPException 415 for what a form of another page could send, 413 for a long one, 400 for a server not on the page.
    """
    if request.headers.get("content-type", "").partition(";")[0] != "application/json":
        raise HTTPException(415, "a question comes as JSON")
    if int(request.headers.get("content-length", MAX_BODY + 1)) > MAX_BODY:
        raise HTTPException(413, "the conversation is too long: begin a new one")
    try:
        question = Question.model_validate_json(await request.body())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise HTTPException(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if question.server not in await asyncio.to_thread(servers, site):
        raise HTTPException(400, "this server is not one of the page, or has ended")
    events = _events(Endpoint(question.server, site.chats.get(question.server), max_retries=0), question)
    return StreamingResponse(events, media_type="text/event-stream")


async def _events(endpoint: Endpoint, question: Question) -> AsyncIterator[str]:
    body = question.model_dump(exclude={"server"})
    try:
        async with ServerClient(endpoint) as client:
            async for event in client.stream("/v1/chat/completions", body):
                for choice in event.get("choices") or []:
                    if text := (choice.get("delta") or {}).get("content"):
                        yield _event(text=text, shown=visible(text))
                    if choice.get("finish_reason") == "length":
                        yield _event(note=f"cut off after {question.max_tokens} tokens, or where the context ends")
    except UserError as error:
        yield _event(error=str(error))


def _event(**facts: Any) -> str:
    return f"data: {json.dumps(facts)}\n\n"
