"""A hub of one repository over real sockets, for the real client: whoami, create, list, preupload, LFS, commit."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_thisTokenMustBeNowhere"
WRITER = {"name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}}


class StubHub:
    """`commits` holds (message, files) of each commit, `files` the names in the repository, `created` what repositories
    were made with, `asked` all paths.

    A path that begins with `broken` is answered with `status`. `with StubHub() as hub: … hub.url`.
    """

    def __init__(self, me: dict[str, Any] = WRITER, broken: str | None = None, status: int = 403) -> None:
        self.me, self.broken, self.status = me, broken, status
        self.files: set[str] = set()
        self.commits: list[tuple[str, dict[str, bytes]]] = []
        self.created: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.stored: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubHub:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str, data: bytes) -> tuple[int, Any]:
        if self.broken is not None and path.startswith(self.broken):
            return self.status, {"error": "the quota of this namespace is used up"}
        if path == "/api/whoami-v2":
            return 200, self.me
        if path.startswith("/lfs/"):
            self.stored[path.removeprefix("/lfs/")] = data
            return 200, {}
        if path == "/api/repos/create":
            self.created.append(body := json.loads(data))
            repo = {"url": f"{self.url}/{body['organization']}/{body['name']}"}
            return (200, repo) if len(self.created) == 1 else (409, repo | {"error": "it is there already"})
        if path == "/api/models/me/model/tree/main":
            return 200, [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in sorted(self.files)]
        if path == "/api/validate-yaml":
            return 200, {"warnings": [], "errors": []}
        if path == "/api/models/me/model/preupload/main":
            files = [one["path"] for one in json.loads(data)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in files}
            return 200, {"files": [{"path": n, "uploadMode": m, "shouldIgnore": False} for n, m in modes.items()]}
        if path == "/me/model.git/info/lfs/objects/batch":
            found = json.loads(data)["objects"]
            upload = {one["oid"]: {"upload": {"href": f"{self.url}/lfs/{one['oid']}"}} for one in found}
            return 200, {"transfer": "basic", "objects": [one | {"actions": upload[one["oid"]]} for one in found]}
        if path == "/api/models/me/model/commit/main":
            header, *lines = [json.loads(line) for line in data.splitlines()]
            files = {}
            for line in lines:
                value = line["value"]
                if line["key"] == "deletedFile":
                    self.files.remove(value["path"])
                    continue
                is_lfs = line["key"] == "lfsFile"
                files[value["path"]] = self.stored[value["oid"]] if is_lfs else base64.b64decode(value["content"])
            self.commits.append((header["value"]["summary"], files))
            self.files |= files.keys()
            return 200, {"commitUrl": f"{self.url}/me/model/commit/0", "commitOid": "0" * 40}
        return 404, {"error": f"no {path}"}

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def _body(self) -> bytes:
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length") or 0))
                parts = b""
                while size := int(self.rfile.readline(), 16):
                    parts += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return parts

            def do_POST(self) -> None:
                data, path = self._body(), self.path.partition("?")[0]
                hub.asked.append(path)
                if not path.startswith("/lfs/") and self.headers["authorization"] != f"Bearer {TOKEN}":
                    self._send(401, {"error": "Invalid username or password."})
                else:
                    self._send(*hub.answer(path, data))

            do_GET = do_PUT = do_POST

            def _send(self, code: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler
