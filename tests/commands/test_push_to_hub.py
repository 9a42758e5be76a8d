"""`--push-to-hub`: the real client of the hub against a hub on this machine, which checks the token and keeps bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants as constants
import pytest
from refusals import fails
from stub_hub import TOKEN, WRITER, StubHub

from hone.cli import main
from hone.runs.hub import refusal


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sends the client, with its token, to the hub at an address, and to it alone; large files by LFS."""
    from huggingface_hub.utils import close_session

    def connect(url: str) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)

    close_session()
    yield connect
    close_session()


def words(model: Path, out: Path, *more: str) -> list[str]:
    flags = f"--model.name {model} --data.env.id reverse-text --data.seq-len 64 --data.batch-size 4 --max-steps 3"
    return ["sft", *flags.split(), "--optim.lr", "1e-2", "--output-dir", str(out), "--display", "plain", *more]


def files(folder: Path) -> dict[str, bytes]:
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name not in ("COMPLETE", "README.md")}


def check_no_token(out: Path, *texts: str) -> None:
    held = [path for path in out.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert held == [] and not any(TOKEN in text for text in texts)


def test_saves_and_the_end_are_pushed_with_the_bytes_on_the_disk(online, tiny_model_dir, tmp_path, capsys):
    out = tmp_path / "run"
    more = ["--push-to-hub", "me/model", "--push-to-hub.strategy", "every_save", "--ckpt.interval", "1"]
    others = {"notes.txt", "model_card.md", "logs/model.safetensors", "tokenizer.json"}
    with StubHub() as hub:
        hub.files = others | {"model-00001-of-00002.safetensors", "model.safetensors.index.json", "adapter/old.bin"}
        online(hub.url)
        assert main(words(tiny_model_dir, out, *more, "--model.lora.rank", "2")) == 0
    assert hub.files == others | {"README.md"} | files(out / "weights/step_3").keys()
    printed = capsys.readouterr().out
    assert f"Pushed the weights of step 3: {hub.url}/me/model" in printed
    assert hub.created[0] == {"name": "model", "organization": "me", "visibility": "private"}
    messages = [message for message, _ in hub.commits]
    assert messages[-1] == "hone sft: weights of step 3" and len(messages) > 1
    for message, pushed in hub.commits:
        folder = out / "weights" / f"step_{message.split()[-1]}"
        card = pushed.pop("README.md").decode()
        assert pushed == files(folder) and "adapter/adapter_model.safetensors" in pushed
        assert card.startswith((folder / "README.md").read_text().replace("<this folder>", "me/model"))
        assert 'from_pretrained("me/model")' in card
    report = json.loads((out / "report.json").read_text())
    assert card.endswith("".join(f"- {one}\n" for one in report["caveats"])) and report["verdict"][0] in card
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["kind"] == "pushed"] == [int(m.split()[-1]) for m in messages]
    check_no_token(out, printed, card)


@pytest.mark.parametrize("broken", ["/api/repos", "/lfs/", "/api/models/me/model/commit"])
def test_a_push_that_fails_costs_the_run_nothing(online, tiny_model_dir, tmp_path, capsys, broken):
    out = tmp_path / "run"
    with StubHub(broken=broken) as hub:
        online(hub.url)
        assert main(words(tiny_model_dir, out, "--push-to-hub", "me/model", "--push-to-hub.no-private")) == 0
    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if "not pushed" in line]
    stale = "--delete 'model.safetensors*' --delete 'model-*-of-*.safetensors' --delete 'adapter/*'"
    assert (
        line.endswith(f"To push them: hf upload me/model {out}/weights/step_3 {stale}")
        and "Traceback" not in captured.err
    )
    assert hub.created == [] or hub.created[0]["visibility"] == "public"
    assert json.loads((out / "run.json").read_text())["status"] == "done" and hub.commits == []
    assert (out / "weights/step_3/model.safetensors").exists() and "Done: 3 steps" in captured.out
    check_no_token(out, captured.out, captured.err)


def test_a_run_without_permission_is_refused_before_anything_is_spent(
    online, tiny_model_dir, tmp_path, capsys, monkeypatch
):
    out = tmp_path / "run"

    def refused(*fragments: str, repo: str = "me/model") -> None:
        fails(capsys, main(words(tiny_model_dir, out, "--push-to-hub", repo)), *fragments)
        assert not out.exists()

    refused("push_to_hub.repo: 'model' is no name of a repository on the hub: write USER/NAME", repo="model")
    refused("HF_HUB_OFFLINE is set: unset it, or leave out --push-to-hub")
    with StubHub(WRITER | {"auth": {"accessToken": {"role": "read"}}}) as hub:
        online(hub.url)
        refused("the token of me can't write to me/model, for it only reads", "settings/tokens")
        monkeypatch.setenv("HF_TOKEN", "hf_another")
        refused("the hub does not take the token", "Invalid user token")
        monkeypatch.delenv("HF_TOKEN")
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        refused("needs a token with write access: `hf auth login`, or set HF_TOKEN")
        assert "/api/whoami-v2" in hub.asked and hub.created == []
    with StubHub(broken="/api/whoami-v2", status=503) as hub:
        online(hub.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        refused("the hub answers with status 503", "try again later, or leave out --push-to-hub")
    online("http://127.0.0.1:1")  # where nobody listens
    refused("the hub can't be reached", "check the network, and HF_ENDPOINT, or leave out --push-to-hub")
    rl = ["rl", "--model.name", "hone/tiny", "--mode", "split", "--push-to-hub", "me/model", "--output-dir", str(out)]
    fails(capsys, main(rl), "the hub can't be reached")
    assert not out.exists()


@pytest.mark.parametrize(
    "change, repo, problem",
    [
        ({}, "me/model", None),
        ({}, "you/model", "you is neither its user nor an organisation that it may write to: name a repository of me"),
        ({"orgs": [{"name": "us", "roleInOrg": "write"}]}, "us/model", None),
        ({"orgs": [{"name": "us", "roleInOrg": "read"}]}, "us/model", "us is neither"),
        ({"auth": {"accessToken": {"role": "read"}}}, "me/model", "it only reads"),
        ({"auth": {"type": "oauth"}}, "me/model", None),
    ],
)
def test_who_may_write_where(change: dict[str, Any], repo: str, problem: str | None):
    found = refusal(WRITER | change, repo)
    assert found is None if problem is None else found is not None and found.startswith(problem)


@pytest.mark.parametrize(
    "name, permissions, allowed",
    [
        ("me", ["repo.write"], True),
        ("me/model", ["repo.write"], True),
        ("me", ["repo.content.read"], False),
        ("me/other", ["repo.write"], False),
    ],
)
def test_a_fine_grained_token_needs_the_permission_for_the_repository(name, permissions, allowed):
    scoped = [{"entity": {"name": name}, "permissions": permissions}]
    me = WRITER | {"auth": {"accessToken": {"role": "fineGrained", "fineGrained": {"scoped": scoped}}}}
    assert (refusal(me, "me/model") is None) == allowed
