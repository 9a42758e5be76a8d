"""The client against a real HTTP server that misbehaves."""

from __future__ import annotations

import asyncio

import pytest
from fake_openai import FakeOpenAI, Raw, Say, Status

from hone.client import Endpoint
from hone.errors import UserError
from hone.evaluation.client import ChatClient, Failure


def ask(url: str, n: int = 1, model: str = "toy", waits: list[float] | None = None, body=None, **endpoint):
    """The answers to n requests, one after the other, and the client. Waits are noted down, not waited for."""

    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    async def run():
        async with ChatClient(Endpoint(url, **endpoint), sleep) as client:
            messages = [[{"role": "user", "content": str(i)}] for i in range(n)]
            return [await client.complete(model, m, body or {}, f"0-{i}-0") for i, m in enumerate(messages)], client

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Status(400, "maximum context length is 8"), "status 400: maximum context length is 8"),
        (Raw("<html>", "text/html"), "no chat completion (<html>): does the URL end in /v1?"),
        (Raw('{"choices": []}'), "no chat completion"),
        (Raw('{"choices": [{"index": 0}]}'), "no chat completion"),
        (Say("", "content_filter"), "the server's content filter withheld the completion"),
    ],
)
def test_what_another_try_cannot_mend_is_not_tried_again(answer, reason: str):
    with FakeOpenAI(lambda body: Say("fine") if body["messages"][0]["content"] == "1" else answer) as server:
        (failure, fine), client = ask(server.url, 2)
    assert isinstance(failure, Failure) and reason in failure.reason
    assert fine.messages[-1]["content"] == "fine"
    assert (client.retries, len(server.bodies)) == (0, 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Status(401, "who are you"), "wants an API key (who are you): name the environment variable"),
        (Status(429, "pay first", error_code="insufficient_quota"), "refuses the account: pay first"),
        (Status(404, "Not Found"), "answers 404 (Not Found): check the URL"),
    ],
)
def test_what_is_hopeless_for_every_request_ends_all_at_once(answer: Status, words: str):
    with FakeOpenAI(lambda body: answer) as server, pytest.raises(UserError) as error:
        ask(server.url, 50)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert len(server.bodies) == 1


def served(url: str, model: str | None = None, **endpoint):
    async def run():
        async with ChatClient(Endpoint(url, **endpoint)) as client:
            return await client.served(model)

    return asyncio.run(run())


def test_where_nothing_answers_one_sentence_says_how_to_start_a_server():
    with FakeOpenAI() as server:
        url, port = server.url, server.port
    with pytest.raises(UserError) as error:
        served(url, "my/model")
    assert str(error.value).startswith(f"nothing answers at {url} (")
    assert f"start a server with `inference --model.name my/model --port {port}`" in str(error.value)


def test_a_key_that_is_missing_or_wrong_is_said_before_anything_is_sampled():
    with FakeOpenAI(key="sk-right") as server:
        with pytest.raises(UserError, match=r"wants an API key .*-k OPENAI_API_KEY"):
            served(server.url)
        with pytest.raises(UserError, match=r"does not accept the key \(Incorrect API key provided\.\)"):
            served(server.url, api_key="sk-wrong")
        assert list(served(server.url, api_key="sk-right")) == ["toy"]
