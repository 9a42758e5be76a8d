"""Programs that make rollouts with the `openai` client: what is recorded of their calls, and what they may not do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest
from processes import alive, until, wait_until_gone
from real_server import talking_model

from hone.config.rl import RLConfig
from hone.environments.data import given_rows
from hone.environments.functions import FunctionTask, Source
from hone.errors import Halt, UserError
from hone.extensions.agents.calls import ProgramCalls
from hone.extensions.agents.rewards import AgentLimits, Rewarded, checked_rollout
from hone.extensions.agents.task import AgentTask
from hone.extensions.planning.data import facts_of_tasks
from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.engine import Engine
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import EnginePolicy, segment_of
from hone.loops.groups import grade_groups, group_state, step_metrics, trainable, with_advantages
from hone.model.chat import load_renderer
from hone.types import Outcome, Rollout, Segment

RENDERER = load_renderer("hone/tiny")
MORE: Any = {"role": "user", "content": "More"}
ROWS = [{"prompt": "Say a", "answer": "a"}, {"prompt": "Say b", "answer": "b"}]
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]


def task_of(
    agent: Callable[..., Any] | None, command: str | None = None, agent_env: Any = None, **limits: Any
) -> AgentTask:
    source, rows = None if agent is None else Source(agent, None, "digest"), given_rows(ROWS, "dataset")
    bounds = AgentLimits(**limits)
    return AgentTask(source, command, bounds, rows, given_rows(ROWS[:1], "eval"), agent_env=agent_env)


def played(
    task: AgentTask | FunctionTask, rollouts: int = 2, seq_len: int = 256, max_tokens: int = 6, examples: int = 2
) -> list[Rollout]:
    policy = EnginePolicy(Engine(talking_model(), batch_invariant=True, tokenizer=RENDERER.tokenizer), RENDERER)
    settings = RolloutSettings(RENDERER, rollouts, seq_len, max_tokens, 0, "rollout")
    split = task.split("train")
    return roll_out(task, policy, settings, [split[i] for i in range(examples)], range(examples), 0, SamplingParams())


COMMAND = """
import json, os, subprocess, sys
from openai import OpenAI
example = json.load(sys.stdin)
text = OpenAI().chat.completions.create(model="m", messages=example["prompt"]).choices[0].message.content
%s
"""


def commanded(folder: Path, end: str, given: Any = None, **limits: Any) -> Rollout:
    """The rollout of a program in a process of its own that makes a call, and then does this."""
    (script := folder / "agent.py").write_text(COMMAND % end)
    (sample,) = played(task_of(None, f"{sys.executable} {script}", given, **limits), rollouts=1, examples=1)
    return sample


async def ask(client: openai.AsyncOpenAI, messages: list[Any], **more: Any) -> Any:
    answer = await client.chat.completions.create(model="any", messages=messages, **more)
    return answer.choices[0].message


async def once(client: openai.AsyncOpenAI, example: Any) -> float:
    message = await ask(client, example.prompt)
    return float(len(message.content or ""))


def test_one_call_is_sampled_as_a_task_of_one_turn_is() -> None:
    def zero(completion: Any) -> float:
        return 0.0

    agent = task_of(once)
    made = played(agent)
    plain = FunctionTask([Source(zero, None, "")], given_rows(ROWS, "dataset"), given_rows(ROWS[:1], "eval"))
    for one, other in zip(made, played(plain), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist() and one.messages == other.messages
        assert np.array_equal(one.logprobs, other.logprobs) and one.sample_id == other.sample_id
        assert len(one.segments) == 1 and one.failure is None
    scores = agent.grade_many([(plain.split("train")[i // 2], t) for i, t in enumerate(made)])
    assert [s.reward for s in scores] == [float(len(t.messages[-1]["content"])) for t in made]


async def goes_on(client: openai.AsyncOpenAI, example: Any) -> dict[str, float]:
    messages: list[Any] = [*example.prompt]
    for _ in range(3):
        message = await ask(client, messages)
        messages += [message.model_dump(exclude_none=True), MORE]
    await ask(client, [{"role": "user", "content": "Another thing"}])
    return {"correct": 1.0, "style": 0.5}


async def parallel(client: openai.AsyncOpenAI, example: Any) -> float:
    first = await ask(client, example.prompt)
    messages = [*example.prompt, first.model_dump(exclude_none=True), MORE]
    await asyncio.gather(*(ask(client, messages) for _ in range(3)))
    return 1.0


async def leaves(client: openai.AsyncOpenAI, example: Any) -> float:
    first = await ask(client, example.prompt)
    messages = [*example.prompt, first.model_dump(exclude_none=True), MORE]
    forgotten = asyncio.create_task(ask(client, messages))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    forgotten.cancel()
    await asyncio.gather(forgotten, return_exceptions=True)
    await ask(client, messages)
    asyncio.create_task(ask(client, [{"role": "user", "content": "Nobody waits"}]))  # noqa: RUF006
    await asyncio.sleep(0)
    return 1.0


STOPS, SAID = [], []


async def stops(client: openai.AsyncOpenAI, example: Any) -> float:
    """A call with a stop of its own, and one that goes on from it."""
    first = await ask(client, example.prompt, **({"stop": STOPS} if STOPS else {}))
    await ask(client, [*example.prompt, first.model_dump(exclude_none=True), MORE])
    SAID.append(first.content)
    return 1.0


CALLED = {"a": asyncio.Event(), "b": asyncio.Event()}


async def meets(client: openai.AsyncOpenAI, example: Any) -> float:
    """Two programs that wait for each other."""
    await once(client, example)
    CALLED[example.answer].set()
    await CALLED["b" if example.answer == "a" else "a"].wait()
    return await once(client, example)


async def streams(client: openai.AsyncOpenAI, example: Any) -> float:
    more = {"stream": True, "stream_options": {"include_usage": True}}
    parts = await client.chat.completions.create(model="any", messages=example.prompt, **more)
    text = ""
    async for part in parts:
        text += "".join(choice.delta.content or "" for choice in part.choices)
    await ask(client, [*example.prompt, {"role": "assistant", "content": text}, MORE], tools=None)
    return float(len(text) > 0)


async def retries(client: openai.AsyncOpenAI, example: Any) -> float:
    """An answer that was lost is given again."""
    first = await ask(client, example.prompt)
    again = await ask(client, example.prompt, extra_headers={"x-stainless-retry-count": "1"})
    return float(again.content == first.content)


TURNS = {goes_on: [3, 1], parallel: [1, 1, 2], leaves: [2], meets: [1, 1], streams: [2], retries: [1], stops: [2]}


@pytest.mark.parametrize("agent", TURNS)
def test_calls_that_go_on_are_one_segment_and_others_are_further_ones(agent: Callable[..., Any]) -> None:
    for sample in played(task_of(agent), rollouts=1):
        turns = [one.turns for one in sample.segments]
        assert sample.failure is None and (sorted(turns) if agent is parallel else turns) == TURNS[agent]
        sampled = sample.sampled_mask
        assert (sample.logprobs[sampled] < 0).all() and (sample.logprobs[~sampled] == 0).all()
        assert (sample.versions[sampled] == 0).all() and (sample.versions[~sampled] == -1).all()
        texts = {tuple(one.token_ids[one.sampled_mask].tolist()) for one in sample.segments}
        assert len(texts) == len(turns), "each call has randomness of its own"
        assert sample.state is not None and all(value > 0 for value in sample.state["rewards"].values())
    if agent is goes_on:
        rewards = {"correct": 1.0, "style": 0.5}
        assert sample.state == {"rewards": rewards, "limit": "", "gave_up": False, "calls": 4}
        assert sample.messages[0]["content"].startswith("Say") and len(sample.messages) == 6


def test_a_call_may_have_stops_of_its_own() -> None:
    played(task_of(stops), 1, examples=1)
    STOPS.append(SAID[-1][2])
    (cut,) = played(task_of(stops), 1, examples=1)
    stop = STOPS.pop()
    assert cut.failure is None and len(cut.segments) == 1, "the second call goes on from the first"
    assert SAID[-1] == SAID[-2][: SAID[-2].index(stop)]
    first = int(cut.sampled_mask.argmax())
    assert RENDERER.tokenizer.decode(cut.token_ids[first:].tolist()).startswith(SAID[-1] + stop), "it is trained on"


class NoNumber:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error

    def __repr__(self) -> str:
        return "\ud800"


HALF = "half of a pair: \ud800"
FAILING: dict[str, tuple[Any, str]] = {
    "no call": (None, "made no call"),
    "hangs": (TimeoutError(), "took more than 0.5 s"),
    "nan": (float("nan"), "gave nan as reward"),
    "word": ({"style": "high", "reward": 1.0}, "gave 'high' as style"),
    "cancels": (asyncio.CancelledError(), "cancelled itself"),
    "exits": (SystemExit(3), "SystemExit"),
    "half a pair": (ValueError(HALF), "half of a pair: ?"),
    "raises as a number": (NoNumber(RuntimeError(HALF)), "RuntimeError: half of a pair: ?"),
    "exits as a number": (NoNumber(SystemExit(3)), "SystemExit"),
    "half a pair as a number": (NoNumber(TypeError()), "gave ? as reward"),
    "too many calls": ({"style": 1.0, "calls": [0, 1]}, "gave 2 rewards of calls; 1 were answered"),
    "a word for a call": ({"style": 1.0, "calls": [0, "no"]}, "'no' as calls[1]"),
    "too large for a call": ({"style": 1.0, "calls": [2e6]}, "2000000.0 as calls[0]; a reward is a number within ±1"),
    "a matrix of calls": ({"style": 1.0, "calls": np.zeros((1, 1))}, "as calls; a reward is a number"),
}


@pytest.mark.parametrize(("gives", "words"), FAILING.values(), ids=FAILING)
def test_a_program_that_fails_costs_its_own_sample(gives: Any, words: str) -> None:
    outcome = Outcome.GRADER_TIMEOUT if isinstance(gives, TimeoutError) else Outcome.GRADER_ERROR

    async def some(client: Any, example: Any) -> Any:
        if example.answer != "a":
            return await once(client, example)
        if isinstance(gives, TimeoutError):
            for _ in range(3):  # it heeds nothing
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        elif isinstance(gives, BaseException):
            raise gives
        elif gives is not None:
            await once(client, example)
        return 1.0 if isinstance(gives, TimeoutError | None) else gives

    task = task_of(some, timeout=0.5 if outcome is Outcome.GRADER_TIMEOUT else 600.0)
    bad, good = played(task, rollouts=1)
    assert bad.failure is not None and bad.failure[0] is outcome and words in bad.failure[1], bad.failure
    assert good.failure is None and good.first.num_sampled and bad.first.turn_rewards is None
    split = task.split("train")
    scores = task.grade_many([(split[0], bad), (split[1], good)])
    assert scores[0].outcome is outcome and np.isnan(scores[0].reward) and scores[1].reward > 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n": 2}, "n is the run's to set"),
    ({"logprobs": True}, "logprobs is the run's to set"),
    ({"temperature": 0.3}, "temperature is the run's to set"),
    ({"seed": 3}, "seed is the run's to set"),
    ({"extra_body": {"best": 1}}, "best is not a field of this request"),
    ({"tools": [{"type": "function"}]}, "is no function"),
]


def test_what_a_call_may_not_ask_for_is_a_400_with_a_sentence() -> None:
    seen: list[str] = []

    async def asks(client: openai.AsyncOpenAI, example: Any) -> float:
        for more, _ in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await ask(client, example.prompt, **more)
            seen.append(str(caught.value))
        stranger = client.with_options(api_key="other")
        with pytest.raises(openai.AuthenticationError, match="names no rollout"):
            await ask(stranger, example.prompt)
        keys.append(client)
        await ask(client, example.prompt, temperature=1.0, top_p=1.0, n=1, max_tokens=2)
        return 1.0

    keys: list[Any] = []
    (sample,) = played(task_of(asks), rollouts=1, examples=1)
    assert sample.failure is None and sample.first.num_sampled <= 2
    assert all(words in text for (_, words), text in zip(REFUSED, seen, strict=True)), seen


def test_the_key_of_a_rollout_that_has_ended_is_refused() -> None:
    ended, errors = asyncio.Event(), []

    async def uses_anothers(client: openai.AsyncOpenAI, example: Any) -> float:
        if example.answer == "a":
            uses_anothers.key = client.api_key  # type: ignore[attr-defined]
            await once(client, example)
            asyncio.get_running_loop().call_later(0.05, ended.set)
            return 1.0
        await ended.wait()
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client.with_options(api_key=uses_anothers.key), example.prompt)  # type: ignore[attr-defined]
        errors.append(caught.value.status_code)
        return await once(client, example)

    first, second = played(task_of(uses_anothers), rollouts=1)
    assert errors == [410] and len(first.segments) == len(second.segments) == 1 and first.turns == second.turns == 1


async def endless(client: openai.AsyncOpenAI, example: Any) -> float:
    messages: list[Any] = [*example.prompt]
    while True:
        message = await ask(client, messages)
        messages += [message.model_dump(exclude_none=True), MORE]


def asks(content: str) -> Callable[..., Any]:
    async def agent(client: openai.AsyncOpenAI, example: Any) -> float:
        await once(client, example)
        await ask(client, [{"role": "user", "content": content}])
        return 1.0

    return agent


MUCH = "more than 4,096 characters, seq_len is 256 tokens"
BEYOND = [
    (endless, {"max_calls": 3}, 256, "made its 3 calls"),
    (endless, {"max_tokens": 9}, 256, "sampled its 9 tokens"),
    (endless, {}, 64, "seq_len is 64"),
    (asks("word " * 900), {}, 256, MUCH),
    (asks("word " * 400_000), {}, 256, MUCH),
    (asks("é" * 5_000_000), {}, 256, MUCH),
]


@pytest.mark.parametrize(("agent", "limits", "seq_len", "words"), BEYOND)
def test_limits_of_calls_tokens_and_context_are_outcomes_of_the_model(
    monkeypatch: pytest.MonkeyPatch, agent: Any, limits: dict[str, Any], seq_len: int, words: str
) -> None:
    """What cannot fit is refused before it is tokenised."""
    rendered, prompt_ids = [0], type(RENDERER).prompt_ids

    def noting(self: Any, messages: Any, tools: Any = None) -> list[int]:
        rendered.append(sum(len(message["content"]) for message in messages))
        return prompt_ids(self, messages, tools)

    monkeypatch.setattr(type(RENDERER), "prompt_ids", noting)
    task = task_of(agent, **limits)
    (sample,) = played(task, rollouts=1, seq_len=seq_len, examples=1)
    (score,) = task.grade_many([(task.split("train")[0], sample)])
    assert score.outcome is Outcome.TRUNCATED and score.reward == 0 and words in score.detail
    assert sum(one.num_sampled for one in sample.segments) <= limits.get("max_tokens", 10**6)
    assert len(sample.token_ids) <= seq_len and max(rendered) <= 4096


def test_a_long_prompt_is_tokenised_beside_the_calls_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, prompt_ids = threading.Event(), type(RENDERER).prompt_ids

    def waits(self: Any, messages: Any, tools: Any = None) -> list[int]:
        if len(messages[0]["content"]) > 4096:
            assert goes_on.wait(60), "no other call is answered meanwhile"
        return prompt_ids(self, messages, tools)

    monkeypatch.setattr(type(RENDERER), "prompt_ids", waits)

    async def agent(client: openai.AsyncOpenAI, example: Any) -> float:
        if example.answer == "a":
            with pytest.raises(openai.BadRequestError, match="tokens, seq_len is 512"):
                await ask(client, [{"role": "user", "content": "word " * 1200}])
        else:
            await once(client, example)
            goes_on.set()
        return await once(client, example)

    assert [one.failure for one in played(task_of(agent), rollouts=1, seq_len=512)] == [None, None]


def test_the_calls_of_one_program_begin_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.extensions.server.http.SHORT", 500)

    async def agent(client: openai.AsyncOpenAI, example: Any) -> float:
        prompts = ["a" * 600, "short", "a" * 700, "short again"]
        await asyncio.gather(*(ask(client, [{"role": "user", "content": text}]) for text in prompts))
        return 1.0

    (sample,) = played(task_of(agent), rollouts=1, examples=1, seq_len=2048)
    assert sample.failure is None
    assert [len(one.messages[-2]["content"]) for one in sample.segments] == [600, 5, 700, 11]


def test_a_command_gets_a_stated_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "WANDB_API_KEY", "SEARCH_API_KEY", "OPENAI_API_KEY", "http_proxy"):
        monkeypatch.setenv(name, "hidden-from-programs")
    monkeypatch.setenv("LANG", "C.UTF-8")
    note = tmp_path / "environ"
    known = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR"}  # Python itself sets LC_CTYPE
    ours = {"OPENAI_BASE_URL", "OPENAI_API_KEY", "no_proxy", "NO_PROXY"}
    for given in (None, ["SEARCH_API_KEY", "http_proxy"]):
        sample = commanded(tmp_path, f"json.dump(dict(os.environ), open({str(note)!r}, 'w')); print(1.0)", given)
        env = json.loads(note.read_text())
        assert sample.failure is None and {"PATH", "HOME", "LANG"} | ours | {*(given or ())} <= env.keys()
        assert env.keys() <= known | ours | {*(given or ())}
        assert env["OPENAI_API_KEY"].startswith("hone-0-0-0-") and "127.0.0.1" in env["no_proxy"]
    assert env["SEARCH_API_KEY"] == "hidden-from-programs"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "be a list of names"),
        ("PATH", "be a list of names"),
        (["sk-0123"], "be a list of names"),
        (["OPENAI_API_KEY"], "OPENAI_API_KEY, which hone sets"),
        (["NOT_SET_HERE"], "names NOT_SET_HERE, which is not set"),
    ],
)
def test_wrong_names_of_variables_are_one_sentence(given: Any, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        task_of(None, "cat", given).check_rollouts()
    assert "0123" not in str(error.value)
    with pytest.raises(UserError, match="agent_env is for agent_command"):
        task_of(once, None, ["PATH"]).check_rollouts()


def scripted(agent: Callable[..., Any], *texts: str) -> Rollout:
    """The rollout of an agent whose policy writes these texts, one after another."""
    left = [[*RENDERER.tokenizer.encode(text).ids, RENDERER.end_of_turn_id] for text in texts]

    def sample(requests: Any, *_: Any) -> list[Segment]:
        made = [Completion(ids, [-1.0] * len(ids), "stop") for ids in (left.pop(0) for _ in requests)]
        pairs = zip(requests, made, strict=True)
        return [segment_of(request, one, [0] * len(one.token_ids), RENDERER) for request, one in pairs]

    task, policy = task_of(agent), SimpleNamespace(sample=sample)
    settings = RolloutSettings(RENDERER, 1, 512, None, 0, "rollout")
    (made,) = roll_out(task, policy, settings, [task.split("train")[0]], [0], 0, SamplingParams())  # type: ignore[arg-type]
    return made


def test_tool_calls_come_back_and_their_ids_are_gone_on_from() -> None:
    call = 'Let me see.<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    results: list[Any] = []

    async def uses_tools(client: openai.AsyncOpenAI, example: Any) -> float:
        first = await ask(client, example.prompt, tools=TOOLS, tool_choice="required")  # a wish, and no error
        results.append(first)
        (called,) = first.tool_calls
        answer = {"role": "tool", "tool_call_id": called.id, "content": "2"}
        second = await ask(client, [*example.prompt, first.model_dump(exclude_none=True), answer], tools=TOOLS)
        results.append(second)
        return 1.0

    sample = scripted(uses_tools, call, "It is 2.")
    assert sample.failure is None and sample.turns == 2 and len(sample.segments) == 1
    assert results[0].content == "Let me see." and results[0].tool_calls[0].function.name == "add"
    assert results[1].content == "It is 2."
    sampled = RENDERER.tokenizer.decode(sample.token_ids[sample.sampled_mask].tolist(), skip_special_tokens=False)
    assert call in sampled and "It is 2." in sampled and "tool_call_id" not in sampled


def test_a_program_may_compose_the_texts_that_it_sends_again() -> None:
    async def composes(client: openai.AsyncOpenAI, example: Any) -> float:
        first = await ask(client, [{"role": "user", "content": "e\u0301"}])
        again = [
            {"role": "user", "content": "é"},
            {"role": "assistant", "content": unicodedata.normalize("NFC", first.content)},
        ]
        await ask(client, [*again, MORE])
        return 1.0

    sample = scripted(composes, "cafe\u0301", "b")
    assert sample.failure is None and sample.turns == 2 and len(sample.segments) == 1


@pytest.mark.parametrize(("refused", "words"), [(0, "the judge is down"), (2, "of which 2 were refused")])
def test_an_error_after_a_limit_that_the_model_has_not_caused_is_no_reward_of_zero(refused: int, words: str) -> None:
    """Calls that are refused count, too."""

    async def asks_a_judge(client: openai.AsyncOpenAI, example: Any) -> float:
        for _ in range(refused):
            with pytest.raises(openai.BadRequestError):
                await ask(client, example.prompt, n=2)
        await once(client, example)
        with pytest.raises(openai.BadRequestError) as caught:
            await once(client, example)
        raise RuntimeError(str(caught.value) if refused else "the judge is down")

    (sample,) = played(task_of(asks_a_judge, max_calls=refused + 1), rollouts=1, examples=1)
    assert sample.failure is not None and sample.failure[0] is Outcome.GRADER_ERROR and words in sample.failure[1]


def test_a_program_that_hides_that_a_call_was_refused_has_used_the_limit_up(tmp_path: Path) -> None:
    async def hides(client: openai.AsyncOpenAI, example: Any) -> float:
        try:
            return [await once(client, example) for _ in range(2)] and 1.0
        except openai.BadRequestError:
            raise RuntimeError("gave up") from None

    async def in_a_group(client: openai.AsyncOpenAI, example: Any) -> float:
        await once(client, example)
        async with asyncio.TaskGroup() as group:
            group.create_task(once(client, example))
        return 1.0

    again = 'try: OpenAI(max_retries=0).chat.completions.create(model="m", messages=example["prompt"])'
    again += "\nexcept Exception: sys.exit('gave up')"
    samples = [played(task_of(agent, max_calls=1), rollouts=1, examples=1)[0] for agent in (hides, in_a_group)]
    for sample in (*samples, commanded(tmp_path, again, max_calls=1)):
        assert sample.failure is None and (sample.state or {})["gave_up"]


def test_a_command_ends_when_hone_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 1000'"
    code = f"import test_agents as t; t.played(t.task_of(None, {command!r}), rollouts=1, examples=1)"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with subprocess.Popen([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}) as hone:
        until(note.exists, "the program runs")
        pid = int(note.read_text())
        assert alive({pid})
        hone.kill()
    wait_until_gone({pid})


HANGS_UP = """
import socket, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
head = f"POST {url.path}/chat/completions HTTP/1.1\\r\\nHost: {url.netloc}\\r\\nContent-Length: 1000\\r\\n"
head += f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}\\r\\n\\r\\n"
for body in ("", '{"messages": ['):
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall((head + body).encode())
OpenAI().chat.completions.create(model="m", messages=example["prompt"])
print(1.0)
"""
TOO_LONG = """
import openai
try:
    OpenAI(max_retries=0).chat.completions.create(model="m", messages=[{"role": "user", "content": "a" * 20_000_000}])
except openai.BadRequestError as error:
    print(json.dumps(float(error.code == "context_length_exceeded")))
"""
SLEEP = "subprocess.Popen(['sleep', '1000'], start_new_session=%s); open('pid', 'w').write(str(child.pid)); "
ENDS: dict[str, tuple[str, str | dict[str, float]]] = {
    "a line of rewards": (
        "print('thinking'); print(json.dumps({'reward': 1 + (text != ''), 'b': .5}))",
        {"reward": 2, "b": 0.5},
    ),
    "no JSON": ("print('not JSON')", "is not JSON: 'not JSON'"),
    "no line": ("pass", "printed nothing"),
    "gives up": ("sys.exit('I give up')", "ended with code 1: I give up"),
    "no key in its words": ("sys.exit(f'refused: {os.environ[\"SEARCH_API_KEY\"]}')", "refused: [SEARCH_API_KEY]"),
    "prints for ever": ("while True: print('x' * 2**20)", "printed more than 64 MiB"),
    "nan": ("print('NaN')", "gave nan as reward"),
    "killed": ("os.kill(os.getpid(), 9)", "ended with code -9"),
    "hangs up within its request": (HANGS_UP, {"reward": 1.0}),
    "a prompt of 20 MB": (TOO_LONG, {"reward": 1.0}),
    "leaves a process": (f"child = {SLEEP % False}print(1.0)", {"reward": 1.0}),
    "leaves a process of another session that holds its output": (f"child = {SLEEP % True}print(0.5)", {"reward": 0.5}),
    "hangs": (f"child = {SLEEP % False}child.wait()", "took more than 5 s"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_command_gets_the_example_and_ends_with_a_line_of_rewards(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEARCH_API_KEY", "sk-search-secret")
    monkeypatch.chdir(tmp_path)
    end, found = ENDS[name]
    sample = commanded(tmp_path, end, ["SEARCH_API_KEY"], timeout=5.0 if name == "hangs" else 60.0)
    assert sample.turns == 1, sample.failure
    if isinstance(found, str):
        outcome = Outcome.GRADER_TIMEOUT if name == "hangs" else Outcome.GRADER_ERROR
        assert sample.failure is not None and sample.failure[0] is outcome and found in sample.failure[1]
        assert "secret" not in sample.failure[1]
    else:
        assert sample.failure is None and sample.state is not None and sample.state["rewards"] == found
    assert capfd.readouterr().err == ""
    if Path("pid").exists():
        pid = int(Path("pid").read_text())
        if "another session" in name:
            os.kill(pid, signal.SIGKILL)
        wait_until_gone({pid})


def test_a_call_that_waits_at_the_deadline_of_its_command_is_a_410(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    closed, sample, asked = threading.Event(), EnginePolicy.sample, []

    def close(self: ProgramCalls, *args: Any) -> None:
        close_rollout(self, *args)
        closed.set()

    def samples_late(self: EnginePolicy, requests: Any, *args: Any) -> list[Segment]:
        asked.extend(requests)
        assert closed.wait(60)
        return sample(self, requests, *args)

    close_rollout = ProgramCalls.close
    monkeypatch.setattr(ProgramCalls, "close", close)
    monkeypatch.setattr(EnginePolicy, "sample", samples_late)
    made = commanded(tmp_path, "", timeout=8.0)
    assert asked and made.failure is not None and made.failure[0] is Outcome.GRADER_TIMEOUT
    assert "Exception" not in capfd.readouterr().err


def test_memory_is_planned_for_all_calls_of_a_rollout() -> None:
    assert facts_of_tasks(RLConfig(), {"": task_of(once, max_calls=5)}, None).turns == 5


def test_calls_with_rewards_of_their_own_are_compared_with_each_other() -> None:
    given = [[0.0, 1.0, 2.0, 3.0], [2.0, 2.0, 2.0, 2.0], None]

    async def rewards_calls(client: openai.AsyncOpenAI, example: Any) -> dict[str, Any]:
        own = given.pop(0)
        await goes_on(client, example)
        return {"correct": 1.0} | ({} if own is None else {"calls": own})

    config = RLConfig.model_validate({"orchestrator": {"advantage": {"baseline": "group", "scale": "none"}}})
    task = task_of(rewards_calls, concurrency=1)
    samples = played(task, rollouts=3, examples=1)
    (group,) = with_advantages(grade_groups(task, [task.split("train")[0]], [5], samples, config), config)
    assert [s.reward for s in group.scores] == [1.0, 1.0, 1.0] and not group.advantages.any()
    assert group.scores[0].components == {"correct": 1.0} and group_state(group) == "trained"
    assert step_metrics([group], version=0)["frac_reward_zero_std"] == 0, "the calls' rewards differ"
    mean = (6 + 8 + 4) / 12  # without rewards of its own, a call counts the rollout's
    rewards = {0: [0, 1, 2], 3: [3], 1: [2, 2, 2], 4: [2], 2: [1, 1, 1], 5: [1]}
    expected = {sample: [reward - mean for reward in own] for sample, own in rewards.items()}
    batch = trainable([group], config)
    assert [one.sample for one in batch.sequences] == [0, 3, 1, 4, 2, 5]
    for one in batch.sequences:
        starts = np.flatnonzero(np.diff(one.loss_mask.astype(int)) == 1) + 1
        assert one.advantage[starts] == pytest.approx(expected[one.sample], abs=1e-6)
        turns = np.split(one.advantage, starts)
        for turn, advantage in zip(turns[1:], expected[one.sample], strict=True):
            assert set(turn.tolist()) <= {np.float32(advantage).item(), 0.0}
        assert np.array_equal(one.advantage != 0, one.loss_mask)


@pytest.mark.parametrize("calls", [[0.5, 1], (0.5, 1.0), np.array([0.5, 1.0], np.float32)])
def test_rewards_of_calls_come_in_any_sequence_beside_a_reward(calls: Any) -> None:
    assert checked_rollout({"correct": 1.0, "calls": calls}) == Rewarded({"correct": 1.0}, calls=(0.5, 1.0))
    with pytest.raises(ValueError, match=r"give the rollout a reward as well, such as \{"):
        checked_rollout({"calls": calls})


def test_a_policy_that_changes_prompts_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = EnginePolicy.sample

    def changes(*args: Any) -> list[Segment]:
        turns = sample(*args)
        turns[0].token_ids[0] += 1
        return turns

    monkeypatch.setattr(EnginePolicy, "sample", changes)
    with pytest.raises(Halt, match="sampled from another prompt"):
        played(task_of(once))


HEADERS: list[dict[str, str]] = [
    {}, {"Authorization": "Bearer "}, {"Authorization": "Bearer hone-0-0-0"}, {"Authorization": "Basic a2V5"},
    {"Host": "evil.example"}, {"Host": "evil.example", "Authorization": "Bearer x"}, {"Origin": "http://evil.example"},
    {"Content-Type": "text/plain"}, {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"},
]  # fmt: skip


def test_a_web_page_without_a_rollouts_key_is_refused_whatever_host_it_names(tmp_path: Path) -> None:
    """As by DNS rebinding, and by requests that a browser sends without asking first."""
    script, note = tmp_path / "agent.py", tmp_path / "statuses"
    script.write_text(f"""
import http.client, json, os
from urllib.parse import urlsplit
url, found = urlsplit(os.environ["OPENAI_BASE_URL"]), []
assert url.hostname == "127.0.0.1"
for headers in {HEADERS!r}:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("OPTIONS", "/v1/models")):
        connection = http.client.HTTPConnection(url.hostname, url.port)
        body = json.dumps({{"messages": [{{"role": "user", "content": "a"}}]}}) if method == "POST" else None
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        found.append((answer.status, answer.headers.get("Access-Control-Allow-Origin"), b"choices" in answer.read()))
open({str(note)!r}, "w").write(json.dumps(found))
print(1.0)
""")
    (sample,) = played(task_of(None, f"{sys.executable} {script}"), rollouts=1, examples=1)
    statuses = json.loads(note.read_text())
    assert statuses == [[401, None, False], [401, None, False], [405, None, False]] * len(HEADERS)
    assert sample.first.num_sampled == 0
