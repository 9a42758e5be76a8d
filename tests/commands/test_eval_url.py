"""`vf-eval -b URL` against a real HTTP server."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_openai import Drop, FakeOpenAI, Say, Status

from hone import rng
from hone.cli import call
from hone.composition import evaluating
from hone.composition.evaluating import local_sampling
from hone.environments import load_environment
from hone.errors import UserError
from hone.evaluation import client
from hone.evaluation.remote import request_body
from hone.inference.types import SamplingParams


def vf_eval(*words: str) -> int:
    return call("eval", list(words), "vf-eval")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client, "delay", lambda *_: 0.0)
    monkeypatch.setattr(evaluating, "load_weights", lambda *_: pytest.fail("no model may be loaded here"))
    return tmp_path


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT means Ctrl-C, also where these tests run in the background of a shell, which has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def question(body) -> str:
    return body["messages"][-1]["content"]


def tag(text: str) -> str:
    return f"<reversed_text>{text}</reversed_text>"


def answers(here: Path) -> tuple[list[dict], dict, Path]:
    (folder,) = (here / "outputs" / "evals").glob("*/*")
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return rows, json.loads((folder / "metadata.json").read_text()), folder


def test_a_servers_model_is_graded_reported_and_saved(here: Path, capsys):
    first = load_environment("reverse-text").split("eval")[0]

    def script(body):
        text = question(body)
        if text == first.prompt[-1]["content"]:
            return Say(tag(text[::-1]))
        return Say("cut o", "length")

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-m", "toy", "-b", server.url, "-n", "2", "-r", "3", "-c", "4") == 0
    out = capsys.readouterr().out
    rows, metadata, folder = answers(here)
    assert folder.parent.name == "reverse-text--toy"
    assert [(row["example"], row["rollout"]) for row in rows] == [(e, r) for e in range(2) for r in range(3)]
    assert [row["outcome"] for row in rows] == ["correct"] * 3 + ["truncated"] * 3
    assert [row["reward"] for row in rows] == [1.0] * 3 + [0.0] * 3
    assert rows[0]["prompt"] == first.prompt
    asked = [body["messages"] for body in server.bodies]  # four at a time: in the order in which they arrived
    assert [asked.count(row["prompt"]) for row in rows] == [3] * 6
    assert rows[0]["completion"] == [{"role": "assistant", "content": tag(first.answer)}]
    assert [row["completion_tokens"] for row in rows] == [len(tag(first.answer))] * 3 + [5] * 3
    assert all(row["prompt_tokens"] == 11 and row["seconds"] >= 0 for row in rows)
    assert metadata["sampling"] == {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "seed": 0}
    assert metadata["base_url"] == server.url and "precision" not in metadata
    assert metadata["requests"]["concurrency"] == 4 and metadata["requests"]["retries"] == 0
    assert set(metadata["requests"]["seconds"]) == {"mean", "median", "p95", "max"}
    assert (metadata["failures"], metadata["failed_rollouts"], metadata["prompt_tokens"]) == (0, 0, 66)
    assert metadata["metrics"]["eval/reverse-text/pass@2"] == 0.5
    assert re.search(r"^reward +0\.500 ± 0\.500", out, re.MULTILINE)
    assert re.search(r"^similarity +1 +0\.500 +0\.500 +6$", out, re.MULTILINE)
    assert re.search(r"^requests    median .* 0 tried again, up to 4 at a time$", out, re.MULTILINE)
    assert "3 of 6 cut by the limit" in out and "One completion (example 0)" in out
    assert f"next        hone eval reverse-text -m toy -b {server.url} -n 200 -r 8" in out
    assert "\x1b" not in out


def test_every_flag_reaches_the_server(here: Path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret")
    extra = '{"top_k": 20, "min_p": 0.1, "stop": ["\\n"]}'
    words = ["-a", '{"min_chars": 3, "max_chars": 4}', "--max-tokens", "9", "-T", "0.5", "--top-p", "0.9", "-S", extra]
    with FakeOpenAI(key="sk-secret") as server:
        assert vf_eval("reverse-text", "-b", server.url, "-k", "MY_KEY", "-n", "2", "-r", "2", "-s", *words) == 0
    for body in server.bodies:
        assert body["model"] == "toy"
        assert (body["max_tokens"], body["temperature"], body["top_p"]) == (9, 0.5, 0.9)
        assert (body["top_k"], body["min_p"], body["stop"]) == (20, 0.1, ["\n"])
        assert len(question(body)) <= 4
    _, metadata, folder = answers(here)
    assert metadata["sampling"]["top_k"] == 20 and metadata["model"] == "toy"
    for path in folder.iterdir():
        assert "sk-secret" not in path.read_text()


def test_each_rollout_has_a_seed_of_its_own_that_the_evaluations_seed_decides(here: Path):
    def seeds(*words: str) -> list[int]:
        with FakeOpenAI() as server:
            assert vf_eval("reverse-text", "-b", server.url, "-n", "2", "-r", "2", "-c", "1", "--no-save", *words) == 0
        return [body.get("seed") for body in server.bodies]

    expected = [rng.key(3, "eval", 0, e, r) >> 33 for e in range(2) for r in range(2)]
    assert seeds("--seed", "3") == seeds("-S", '{"seed": 3}') == expected
    assert len({*expected, *seeds()}) == 8 and max(expected) < 2**31
    assert seeds("-S", '{"seed": null}') == [None] * 4


def test_hones_own_server_is_sent_the_keys_of_the_local_evaluation(here: Path):
    with FakeOpenAI(owner="hone") as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "1", "-r", "2", "-c", "1", "--seed", "5") == 0
    assert [body["key"] for body in server.bodies] == [rng.key(5, "eval", 0, 0, r) for r in range(2)]
    assert not any("seed" in body for body in server.bodies)
    assert "key" not in request_body({"seed": None}, 0, 0, 0, exact_keys=True)


def test_the_saved_config_makes_the_same_requests_again(here: Path):
    words = ("-S", '{"temperature": 0, "top_p": null, "max_completion_tokens": 4, "stop": ["a"]}', "--seed", "3")
    with FakeOpenAI() as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "2", "-c", "1", *words) == 0
        _, _, folder = answers(here)
        assert vf_eval("@", f"{folder}/config.toml", "--no-save") == 0
    assert len(server.bodies) == 12 and server.bodies[:6] == server.bodies[6:]
    assert server.bodies[0].keys() == {"model", "messages", "seed", "temperature", "max_completion_tokens", "stop"}


def test_other_names_of_flags_and_of_max_tokens_work(here: Path):
    args = '{"max_completion_tokens": 50, "top_p": null}'
    words = ("--api-base-url", "--max-concurrent", "--sampling-args")
    with FakeOpenAI() as server:
        assert vf_eval("reverse-text", words[0], f"{server.url}/", words[1], "1", words[2], args, "-n", "1") == 0
    _, metadata, _ = answers(here)
    assert metadata["base_url"] == server.url
    assert {"max_tokens", "top_p"}.isdisjoint(server.bodies[0]) and server.bodies[0]["max_completion_tokens"] == 50


def test_a_server_that_fails_now_and_then_costs_nothing_but_time(here: Path, capsys):
    count = iter(range(1000))
    problems = {1: Status(429), 4: Drop(), 5: Status(500), 7: Drop(midway=True)}

    def script(body):
        return problems.get(next(count)) or Say(tag(question(body)[::-1]))

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "3", "-r", "2", "-c", "1") == 0
    rows, metadata, _ = answers(here)
    assert [row["outcome"] for row in rows] == ["correct"] * 6
    assert metadata["requests"]["retries"] == 4
    assert "4 tried again" in capsys.readouterr().out


def test_failed_rollouts_are_counted_said_saved_and_the_exit_code_is_1(here: Path, capsys):
    split = load_environment("reverse-text").split("eval")
    bad, worse = (split[i].prompt[-1]["content"] for i in (1, 3))

    def script(body):
        text = question(body)
        return Status(400, "too long") if text == bad else Status(502) if text == worse else Say(tag(text[::-1]))

    with FakeOpenAI(script) as server:
        words = ("reverse-text", "-b", server.url, "-n", "4", "-r", "2", "--max-retries", "1")
        assert vf_eval(*words) == 1
    captured = capsys.readouterr()
    rows, metadata, _ = answers(here)
    failed = [row for row in rows if row["outcome"] == "rollout_failed"]
    assert [(row["example"], row["rollout"]) for row in rows] == [(e, r) for e in range(4) for r in range(2)]
    assert [(row["example"], row["reward"]) for row in failed] == [(1, None)] * 2 + [(3, None)] * 2
    assert [row["detail"] for row in failed] == ["status 400: too long"] * 2 + [
        "status 502: no; gave up after 2 tries"
    ] * 2
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert metadata["failed_rollouts"] == 4 and metadata["num_examples"] == 4
    assert metadata["metrics"]["eval/reverse-text/reward/mean"] == 1.0
    assert "4 of 8 rollouts failed and are in no average:" in captured.out
    assert "  2 x status 400: too long" in captured.out
    assert captured.err == "error: 4 of 8 rollouts failed: the averages are over the other 4\n"


def test_when_every_rollout_fails_there_is_no_result_and_exit_code_1(here: Path, capsys):
    with FakeOpenAI(lambda body: Status(400, "no")) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "2", "-r", "1") == 1
    captured = capsys.readouterr()
    assert captured.err == "error: all 2 rollouts failed, so there is no result\n"
    assert "2 of 2 rollouts failed" in captured.out and "nan" not in captured.out
    rows, metadata, _ = answers(here)
    assert len(rows) == 2 and metadata["metrics"] == {} and metadata["completion_tokens"] is None


def test_ctrl_c_keeps_what_has_come_by_then(here: Path, interruptible, capsys):
    came, left = iter(range(1000)), threading.Event()

    def script(body):
        if next(came) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            left.wait(300)
        return Say(tag(question(body)[::-1]))

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "3", "-r", "2", "-c", "1") == 1
        left.set()
    rows, metadata, _ = answers(here)
    assert [row["outcome"] for row in rows] == ["correct"] * 3 + ["rollout_failed"] * 3
    assert "  3 x stopped by Ctrl-C before an answer came" in capsys.readouterr().out
    assert metadata["failed_rollouts"] == 3


def test_ctrl_c_before_anything_came_leaves_nothing(here: Path, interruptible):
    left = threading.Event()

    def script(body):
        os.kill(os.getpid(), signal.SIGINT)
        left.wait(300)
        return Say("late")

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-c", "1") == 130
        left.set()
    assert list(here.iterdir()) == []


def test_a_server_that_counts_no_tokens_is_said_to(here: Path, capsys):
    with FakeOpenAI(lambda body: Say("hm", usage=False)) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "1") == 0
    assert "tokens      not counted by the server (0 of 3 cut by the limit)" in capsys.readouterr().out
    rows, metadata, _ = answers(here)
    assert rows[0]["completion_tokens"] is None and metadata["prompt_tokens"] is None
    assert "eval/reverse-text/completion/length/mean" not in metadata["metrics"]


def test_where_nothing_answers_one_sentence_says_how_to_start_inference(here: Path, capsys):
    with FakeOpenAI() as server:
        url = server.url
    assert vf_eval("reverse-text", "-m", "my/model", "-b", url) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: nothing answers at {url} (") and err.count("\n") == 1
    assert f"start a server with `inference --model.name my/model --port {server.port}`" in err
    assert list(here.iterdir()) == []


def test_a_url_without_v1_is_guessed_at(here: Path, capsys):
    with FakeOpenAI(models=Status(404)) as server:
        url = server.url.removesuffix("/v1")
        assert vf_eval("reverse-text", "-b", url) == 2
    assert capsys.readouterr().err == f"error: {url} lists no models: did you mean {url}/v1?\n"


@pytest.mark.parametrize(
    ("models", "words", "why"),
    [
        (("a", "b"), (), "serves a, b: name one with -m"),
        (Status(404), (), "serves models that it does not list: name one with -m"),
        (("a", "b"), ("-m", "c"), "has no model 'c': say -m with one of a, b"),
        (("a",), ("-k", "NO_SUCH_KEY"), "the environment variable NO_SUCH_KEY (-k) is not set"),
        (("a",), ("-k", "sk-123"), "-k takes the name of the environment variable that holds the API key, not the key"),
        (("a",), ("--threads", "2"), "--threads is for a model in this process"),
        (("a",), ("-S", '{"n": 4}'), "'n' is no sampling argument: say it with -r"),
        (("a",), ("-S", '{"stream": true}'), "'stream' is no sampling argument"),
        (("a",), ("-S", '{"temperature": 0}', "-T", "0.5"), "temperature is given twice, by -T and in -S"),
        (("a",), ("-b", "localhost:8000"), "'localhost:8000' is no URL of a server"),
        (("a",), ("-b", "http://me:pw@host/v1"), "the URL holds a password"),
        (("a",), ("-b", "http://host:port/v1"), "is no URL of a server"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(here: Path, models, words, why: str, capsys):
    with FakeOpenAI(models=models) as server:
        assert vf_eval("reverse-text", "-b", server.url, *words) == 2
    err = capsys.readouterr().err
    assert why in err and err.startswith("error: ") and err.count("\n") == 1 and "sk-123" not in err
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("-c", "8"), "-c is for a server: give its URL with -b"),
        (("-k", "K"), "-k is for a server"),
        (("-S", '{"stop": ["x"]}'), "'stop' is no sampling argument of a model in this process: it has"),
        (("-S", '{"top_k": 2.5}'), "top_k is 2.5 (-S), but should be a whole number"),
        (("-S", '{"temperature": "hot"}'), "temperature is 'hot' (-S), but should be a number"),
        (("-S", '{"top_p": 3}'), "top_p is 3; it must lie in (0, 1]"),
    ],
)
def test_without_a_server_its_flags_are_refused_and_sampling_arguments_checked(here: Path, words, why: str, capsys):
    assert vf_eval("reverse-text", *words) == 2
    assert why in capsys.readouterr().err


def test_sampling_arguments_reach_the_model_in_this_process():
    said = {"max_tokens": 5, "temperature": 0.5, "top_p": None, "seed": 4, "top_k": 3}
    assert local_sampling(said) == SamplingParams(max_tokens=5, temperature=0.5, seed=4, top_k=3)
    with pytest.raises(UserError, match="'logit_bias'"):
        local_sampling({"logit_bias": {}})
