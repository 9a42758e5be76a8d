"""`vf-eval -b URL` against a real HTTP server."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
from fake_openai import FakeOpenAI, Say, Status

from hone import client
from hone.cli import call
from hone.environments import load_environment
from hone.loops import evaluating


def vf_eval(*words: str) -> int:
    return call("eval", list(words), "vf-eval")


@pytest.fixture(autouse=True)
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(client, "delay", lambda *_: 0.0)
    monkeypatch.setattr(evaluating, "load_weights", lambda *_: pytest.fail("no model may be loaded here"))
    return here


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
        return Say(tag(text[::-1])) if text == first.prompt[-1]["content"] else Say("cut o", "length")

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-m", "toy", "-b", server.url, "-n", "2", "-r", "3", "-c", "4") == 0
    out = capsys.readouterr().out
    rows, metadata, folder = answers(here)
    assert folder.parent.name == "reverse-text--toy"
    assert [(row["example"], row["rollout"]) for row in rows] == [(e, r) for e in range(2) for r in range(3)]
    assert [(row["outcome"], row["reward"]) for row in rows] == [("correct", 1.0)] * 3 + [("truncated", 0.0)] * 3
    asked = [body["messages"] for body in server.bodies]  # four at a time: in the order in which they arrived
    assert rows[0]["prompt"] == first.prompt and [asked.count(row["prompt"]) for row in rows] == [3] * 6
    assert rows[0]["completion"] == [{"role": "assistant", "content": tag(first.answer)}]
    assert [row["completion_tokens"] for row in rows] == [len(tag(first.answer))] * 3 + [5] * 3
    assert metadata["sampling"] == {"max_tokens": 1024, "temperature": 1.0, "top_p": 1.0, "seed": 0}
    assert metadata["base_url"] == server.url and "precision" not in metadata
    assert (metadata["requests"]["concurrency"], metadata["requests"]["retries"]) == (4, 0)
    assert (metadata["failures"], metadata["failed_rollouts"], metadata["prompt_tokens"]) == (0, 0, 66)
    assert metadata["metrics"]["eval/reverse-text/pass@2"] == 0.5
    assert re.search(r"^reward +0\.500 ± 0\.500", out, re.MULTILINE)
    assert "3 of 6 cut by the limit" in out and "One completion (example 0)" in out and "\x1b" not in out


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
    details = ["status 400: too long"] * 2 + ["status 502: no; gave up after 2 tries"] * 2
    assert [row["detail"] for row in failed] == details
    assert all(row.keys() == rows[0].keys() for row in rows)
    assert metadata["failed_rollouts"] == 4 and metadata["num_examples"] == 4
    assert metadata["metrics"]["eval/reverse-text/reward/mean"] == 1.0
    assert "4 of 8 rollouts failed and are in no average:" in captured.out
    assert "  2 x status 400: too long" in captured.out
    assert captured.err == "error: 4 of 8 rollouts failed: the averages are over the remaining 4\n"


def test_ctrl_c_keeps_what_has_come_by_then(here: Path, interruptible, capsys):
    came, left = iter(range(1000)), threading.Event()

    def script(body):
        if next(came) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            left.wait(300)
        return Say(tag(question(body)[::-1]))

    with FakeOpenAI(script) as server:
        assert vf_eval("reverse-text", "-b", server.url, "-n", "3", "-r", "2", "-c", "1") == 130
        left.set()
    rows, metadata, folder = answers(here)
    assert [row["outcome"] for row in rows] == ["correct"] * 3 + ["rollout_failed"] * 3
    captured = capsys.readouterr()
    assert "  3 x stopped by Ctrl-C before it ended" in captured.out
    assert captured.err == f"Stopped by Ctrl-C: 3 of 6 completions are saved in {folder.relative_to(here)}.\n"
    assert metadata["failed_rollouts"] == 3 and json.loads((folder / "run.json").read_text())["status"] == "stopped"


@pytest.mark.parametrize(
    ("models", "words", "why"),
    [
        (("a", "b"), (), "serves a, b: name one with -m"),
        (Status(404), (), "serves models that it does not list: name one with -m"),
        (("a", "b"), ("-m", "c"), "has no model 'c': give -m one of a, b"),
        (("a",), ("-k", "NO_SUCH_KEY"), "the environment variable NO_SUCH_KEY (-k) is not set"),
        (("a",), ("-k", "sk-123"), "-k takes the name of the environment variable that holds the API key, not the key"),
        (("a",), ("--threads", "2"), "--threads is for a model in this process"),
        (("a",), ("-S", '{"n": 4}'), "'n' is no sampling argument: set it with -r"),
        (("a",), ("-S", '{"temperature": 0}', "-T", "0.5"), "temperature is set twice, in -S and by a flag"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_2(here: Path, models, words, why: str, capsys):
    with FakeOpenAI(models=models) as server:
        assert vf_eval("reverse-text", "-b", server.url, *words) == 2
    err = capsys.readouterr().err
    assert why in err and err.startswith("error: ") and err.count("\n") == 1 and "sk-123" not in err
    assert list(here.iterdir()) == []
