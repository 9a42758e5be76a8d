"""How long the client of servers waits before another try, and when it makes none."""

from __future__ import annotations

import asyncio

import pytest
from fake_openai import Drop, FakeOpenAI, Say, Status

from hone.client import LONGEST_RETRY_AFTER, LONGEST_WAIT, Client, Endpoint, RequestRejected, ServerUnavailable, delay
from hone.web import MIB, retry_after


def test_retry_after_is_obeyed_up_to_a_cap_if_it_can_be_read():
    asked = [delay(0, retry_after({"retry-after": text}), "0-0-0") for text in ("17", "100000", "soon", "-5", "nan")]
    assert asked == [17.0, LONGEST_RETRY_AFTER, *[delay(0, None, "0-0-0")] * 3]
    assert retry_after({"retry-after-ms": "90500"}) == 90.5


def test_own_waits_have_a_cap_and_differ_between_requests():
    assert LONGEST_WAIT / 2 <= delay(30, None, "0-0-0") <= LONGEST_WAIT
    assert len({delay(3, None, f"0-{i}-0") for i in range(20)}) == 20


def asked(server: FakeOpenAI, waits: list[float], **endpoint) -> str:
    """What the server says in the end. Waits are noted down, not waited for."""

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def ask() -> str:
        url = f"{server.url}/chat/completions"
        async with Client(Endpoint(server.url, **endpoint), MIB, sleep) as client:
            answer = await client.request(
                "POST", url, {"model": "toy", "messages": [{"role": "user", "content": "hi"}]}, "name"
            )
            assert client.retries == len(waits)
            return answer.json()["choices"][0]["message"]["content"]

    return asyncio.run(ask())


def test_what_may_pass_is_tried_again_and_what_may_not_once():
    waits: list[float] = []
    bad = [Status(429, headers={"retry-after": "9"}), Status(425), Drop(), Status(502), Drop(midway=True), Status(408)]
    answers = iter([*bad, Say("there")])
    with FakeOpenAI(lambda body: next(answers)) as server:
        assert asked(server, waits) == "there"
    assert waits == [9.0, *(delay(attempt, None, "name") for attempt in range(1, 6))]
    assert all(0.5 * 2**attempt <= wait <= 2**attempt for attempt, wait in enumerate(waits) if attempt)
    for status, code in ((400, None), (501, None), (429, "insufficient_quota")):
        with FakeOpenAI(lambda body: Status(status, "no", error_code=code)) as server:  # noqa: B023
            with pytest.raises(RequestRejected) as refused:
                asked(server, waits)
            assert (refused.value.status, refused.value.reason, refused.value.code) == (status, "no", code)
            assert len(server.bodies) == 1


def test_all_tries_together_have_a_limit():
    waits: list[float] = []
    own = [delay(attempt, None, "name") for attempt in range(9)]
    with FakeOpenAI(lambda body: Status(503, "busy")) as server, pytest.raises(ServerUnavailable) as gone:
        asked(server, waits, patience=own[5], max_retries=8)
    assert waits == own[:5] and (gone.value.status, gone.value.reason) == (503, "busy")
