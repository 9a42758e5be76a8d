"""`hf upload USER/NAME outputs/weights/step_N`, with huggingface_hub's real client against a hub in this process.

Pins: the client accepts the folder as it is; every file arrives byte for byte (weights by LFS, the rest inline); the
model card's front matter is YAML that the hub's own schema for cards takes.
"""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from huggingface_hub import HfApi, ModelCard

from hone.cli import main


class Hub(ThreadingHTTPServer):
    """What the upload client asks of a hub: repositories, card check, pre-upload, LFS batch and storage, commit."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repos: set[str] = set()
        self.storage: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.cards: list[str] = []
        self.unknown: list[str] = []


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format, *args):
        pass

    def reply(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self):
        if self.path.startswith("/api/whoami-v2"):
            return self.reply({"type": "user", "name": "someone", "auth": {"type": "access_token"}})
        if self.path.startswith("/api/models/someone/warm-up"):
            return self.reply({"id": "someone/warm-up", "sha": "0" * 40, "siblings": [], "private": False})
        if self.path != "/api/agent-harnesses":  # the command line's own curiosity, no part of an upload
            self.server.unknown.append(f"GET {self.path}")
        self.reply({"error": "unknown"}, 404)

    def do_PUT(self):
        self.server.storage[self.path.removeprefix("/storage/")] = self.body()
        self.reply({})

    def do_POST(self):
        body = self.body()
        hub, path = self.server, self.path.split("?")[0]
        if path == "/api/repos/create":
            hub.repos.add(json.loads(body)["name"])
            return self.reply({"url": f"{hub.url}/someone/warm-up", "name": "someone/warm-up", "id": "someone/warm-up"})
        if path == "/api/validate-yaml":
            hub.cards.append(json.loads(body)["content"])
            return self.reply({"errors": [], "warnings": []})
        if "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for file in files
            ]
            return self.reply({"files": modes})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {
                    "oid": item["oid"],
                    "size": item["size"],
                    "actions": {"upload": {"href": f"{hub.url}/storage/{item['oid']}", "header": {}}},
                }
                for item in json.loads(body)["objects"]
            ]
            return self.reply({"transfer": "basic", "objects": objects})
        if "/commit/" in path:
            for line in body.decode().splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    hub.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                elif item["key"] == "lfsFile":
                    hub.files[item["value"]["path"]] = hub.storage[item["value"]["oid"]]
            url = f"{hub.url}/someone/warm-up/commit/{'1' * 40}"
            return self.reply({"commitUrl": url, "commitOid": "1" * 40, "success": True})
        hub.unknown.append(f"POST {self.path}")
        self.reply({"error": "unknown"}, 404)


@pytest.fixture(scope="module")
def weights_folder(tiny_model_dir, tmp_path_factory) -> Path:
    """What `hone sft` leaves in weights/step_1."""
    out = tmp_path_factory.mktemp("run")
    data = out.with_name("upload-data.jsonl")
    data.write_text(json.dumps({"prompt": "abc", "completion": "cba"}) + "\n")
    flags = f"--model.name {tiny_model_dir} --data.path {data} --max-steps 1 --output-dir {out} --display none"
    assert main(["sft", *flags.split()]) == 0
    return out / "weights" / "step_1"


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_received(hub: Hub, folder: Path) -> None:
    assert hub.unknown == []
    assert {name: hashlib.sha256(data).hexdigest() for name, data in hub.files.items()} == contents(folder)
    card = hub.files["README.md"].decode()
    assert set(hub.cards) == {card}
    front_matter = yaml.safe_load(card.split("---")[1])
    assert front_matter["library_name"] == "transformers" and front_matter["pipeline_tag"] == "text-generation"
    assert ModelCard(card).data.to_dict() == front_matter


def test_hf_upload_sends_the_weights_folder_as_it_is(hub, weights_folder, tmp_path):
    hf = Path(sys.executable).with_name("hf")
    environment = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": "hf_test",
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [str(hf), "upload", "someone/warm-up", str(weights_folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert hub.repos == {"warm-up"}
    check_received(hub, weights_folder)


def test_the_python_client_takes_the_folder_too(hub, weights_folder, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    api = HfApi(endpoint=hub.url, token="hf_test")
    api.create_repo("someone/warm-up")
    api.upload_folder(repo_id="someone/warm-up", folder_path=weights_folder)
    check_received(hub, weights_folder)
