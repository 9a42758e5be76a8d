"""The box of `hone view` that talks to servers: a real server of hone's, and servers that misbehave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_openai import Drop, FakeOpenAI, Raw, Status
from made_runs import INFO
from real_server import serving, talking_model
from run_folders import held
from starlette.testclient import TestClient

from hone.runs.files import write_json
from hone.viewer.app import create_app
from hone.viewer.catalog import Catalog
from hone.viewer.site import Site


def client(root: Path, **chats: str | None) -> TestClient:
    return TestClient(create_app(Site(Catalog(root), chats)), base_url="http://127.0.0.1:8600")


def question(server: str, *texts: str, model: str = "hone/tiny", **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"server": server, "model": model, "messages": messages, "temperature": 0, "max_tokens": 12} | more


def events(answer: Any) -> list[dict[str, str]]:
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n") if part]


def test_an_answer_is_streamed_as_the_server_gives_it(tmp_path):
    with serving(talking_model()) as served:
        url = f"{served.url}/v1"
        page = client(tmp_path, **{url: None})
        assert '<option value="hone/tiny">hone/tiny</option>' in page.get("/chat/").text
        asked = question(url, "abc", "xyz", "more?")
        parts = events(page.post("/chat/", json=asked))
        del asked["server"]
        (whole,) = served.client().chat.completions.create(**asked).choices
    text = "".join(part.get("text", "") for part in parts)
    assert text == whole.message.content and len(text) > 3 and len(parts) > 3
    assert (parts[-1].get("note", "").startswith("cut off after 12 tokens")) == (whole.finish_reason == "length")


def test_only_servers_of_the_page_are_asked_and_only_by_the_page(tmp_path):
    with FakeOpenAI(key="secret") as known, FakeOpenAI() as other:
        page = client(tmp_path, **{known.url: "secret"})
        shown = page.get("/chat/")
        assert "toy" in shown.text and "secret" not in shown.text and other.url not in shown.text
        assert page.post("/chat/", json=question(other.url, "hi", model="toy")).status_code == 400
        body = json.dumps(question(known.url, "hi", model="toy"))
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert page.post("/chat/", content=body, headers={"content-type": kind}).status_code == 415
        assert page.post("/chat/", json={"server": known.url}).status_code == 400
        assert page.post("/chat/", json=question(known.url, "x" * 5_000_000)).status_code == 413
        assert other.lists == 0 and known.bodies == other.bodies == []
        events(page.post("/chat/", json=question(known.url, "hi", model="toy")))
        assert known.headers[0]["Authorization"] == "Bearer secret" and known.bodies[0]["stream"] is True


def delta(text: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]}, ensure_ascii=False)}\n\n"


@pytest.mark.parametrize(
    "answer, error",
    [
        (Status(400, "the conversation has 99 tokens"), "answers 400: the conversation has 99 tokens"),
        (Drop(), "is gone, or fails"),
        (Raw(delta("ol") + 'data: {"error": {"message": "out of memory"}}\n\n'), "fails: out of memory"),
        (Raw("data: <html>\n\n"), "does not stream events in JSON"),
        (Raw("data: 1\n\n"), "does not stream events in JSON"),
    ],
)
def test_a_server_that_fails_is_a_sentence_in_the_answer(tmp_path, answer, error):
    with FakeOpenAI(lambda body: answer) as server:
        parts = events(
            client(tmp_path, **{server.url: None}).post("/chat/", json=question(server.url, "a", model="toy"))
        )
    assert error in parts[-1]["error"]


def test_text_keeps_its_characters_and_is_shown_without_those_that_command(tmp_path):
    text = "a\u2028b\x85c \x1b[2J </pre>"
    with FakeOpenAI(lambda body: Raw(delta(text) + "data: [DONE]\n\n", "text/event-stream")) as server:
        parts = events(
            client(tmp_path, **{server.url: None}).post("/chat/", json=question(server.url, "a", model="toy"))
        )
    assert parts == [{"text": text, "shown": "a\\u2028b\\u0085c \\x1b[2J </pre>"}]


def test_the_server_of_a_split_run_at_work_is_there_and_no_other_that_its_config_names(tmp_path):
    with FakeOpenAI() as server, FakeOpenAI() as foreign:
        for name, more in (("own", ""), ("named", f'[orchestrator.client]\nbase_url = "{foreign.url}"\n')):
            (tmp_path / name).mkdir()
            write_json(tmp_path / name / "run.json", INFO | {"status": "running", "id": name})
            config = f'max_steps = 2\nmode = "split"\n[inference]\nport = {server.port}\n'
            (tmp_path / name / "config.toml").write_text(config + more)
            (tmp_path / name / "metrics.jsonl").touch()
        page = client(tmp_path)
        asked = question(server.url, "a", model="toy")
        assert "hone view --chat" in page.get("/chat/").text
        assert page.post("/chat/", json=asked).status_code == 400
        with held(tmp_path / "own"), held(tmp_path / "named"):
            shown = page.get("/chat/").text
            assert "<h2>own</h2>" in shown and "<h2>named</h2>" not in shown and foreign.lists == 0
            assert '<a href="../../chat/">chat</a>' in page.get("/run/own/").text
            assert page.post("/chat/", json=asked).status_code == 200
            assert page.post("/chat/", json=asked | {"server": foreign.url}).status_code == 400
    assert len(server.bodies) == 1 and foreign.bodies == []


def test_a_server_that_is_not_there_is_a_sentence_on_the_page(tmp_path):
    with FakeOpenAI() as server:
        pass
    assert "is gone, or fails" in client(tmp_path, **{server.url: None}).get("/chat/").text
