"""The client against a real HTTP server that misbehaves."""

from __future__ import annotations

import asyncio

import pytest
from fake_openai import Drop, FakeOpenAI, Raw, Say, Status

from hone.client import Endpoint
from hone.errors import UserError
from hone.evaluation.client import ChatClient, Failure
from hone.types import Rollout


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


def in_turn(*answers):
    left = iter(answers)
    return lambda body: next(left)


def test_a_completion_comes_with_its_text_counts_and_reason():
    with FakeOpenAI(in_turn(Say("abc"), Say("defgh", "length"), Say(None, "tool_calls", usage=False))) as server:
        answers, client = ask(server.url, 3)
    assert [a.messages for a in answers] == [
        [{"role": "user", "content": str(i)}, {"role": "assistant", "content": text}]
        for i, text in enumerate(("abc", "defgh", ""))
    ]
    assert [(a.stop_reason, a.prompt_tokens, a.completion_tokens) for a in answers] == [
        ("stop", 11, 3),
        ("length", 11, 5),
        ("stop", None, None),
    ]
    assert [a.sample_id for a in answers] == ["0-0-0", "0-1-0", "0-2-0"]
    assert (client.succeeded, client.retries) == (3, 0)


def test_the_body_is_sent_as_it_is_and_the_key_as_a_bearer_token(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")

    body = {"max_tokens": 7, "top_k": 20, "seed": 5}
    with FakeOpenAI() as server:
        ask(server.url, body=body, api_key="sk-1")
        ask(server.url, body=body)
    sent = {"model": "toy", "messages": [{"role": "user", "content": "0"}]} | body
    assert server.bodies == [sent, sent]
    assert [h.get("Authorization") for h in server.headers] == ["Bearer sk-1", None]


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
        (Status(401, "who are you"), "wants an API key (who are you): put the key into an environment variable"),
        (Status(429, "pay first", error_code="insufficient_quota"), "refuses the account: pay first"),
        (Status(404, "Not Found"), "answers 404 (Not Found): check -b"),
    ],
)
def test_what_is_hopeless_for_every_request_ends_all_at_once(answer: Status, words: str):
    with FakeOpenAI(lambda body: answer) as server, pytest.raises(UserError) as error:
        ask(server.url, 50)
    assert words in str(error.value) and "\n" not in str(error.value)
    assert len(server.bodies) == 1


def test_a_refusal_after_a_success_costs_only_its_own_request():
    with FakeOpenAI(in_turn(Say("one"), Status(401, "revoked"), Say("three"))) as server:
        answers, _ = ask(server.url, 3)
    assert isinstance(answers[1], Failure) and answers[1].reason == "status 401: revoked"
    assert [a.messages[-1]["content"] for a in (answers[0], answers[2])] == ["one", "three"]


def test_a_server_that_went_away_is_not_waited_for_again_with_each_request():
    servers = []

    def script(body):
        if body["messages"][0]["content"] == "2":
            servers[0].stop()
            return Drop()
        return Say("fine")

    waits: list[float] = []
    server = FakeOpenAI(script)
    servers.append(server)
    server.__enter__()
    answers, _ = ask(server.url, 40, waits=waits)
    assert [isinstance(a, Rollout) for a in answers] == [True] * 2 + [False] * 38
    assert len(waits) == 6
    assert "nothing answers" in answers[2].reason and "gave up after 7 tries" in answers[2].reason
    assert {a.reason for a in answers[3:]} == {answers[3].reason}
    assert answers[3].reason.startswith("the server no longer answers (nothing answers (")


def served(url: str, model: str | None = None, **endpoint):
    async def run():
        async with ChatClient(Endpoint(url, **endpoint)) as client:
            return await client.served(model)

    return asyncio.run(run())


def test_the_models_are_listed_or_the_server_says_none():
    with FakeOpenAI(models=("a", "b"), owner="hone") as server:
        assert served(server.url) == {"a": "hone", "b": "hone"}
    for answer in (Status(404), Status(500), Raw("<html>", "text/html"), Raw("nonsense"), Raw('{"data": null}'), ()):
        with FakeOpenAI(models=answer) as server:
            assert served(server.url) == {}, answer


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
