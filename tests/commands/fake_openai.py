"""A server that speaks OpenAI's chat protocol over real sockets, and misbehaves as a test says."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Status:
    """Refuse with this status, in OpenAI's form of errors."""

    code: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    error_code: str | None = None


@dataclass
class Raw:
    """Status 200 with a body that may be anything."""

    text: str
    content_type: str = "application/json"


@dataclass
class Drop:
    """Close the connection without an answer, or after half of one."""

    midway: bool = False


@dataclass
class Say:
    """A completion."""

    text: str | None
    finish_reason: str = "stop"
    usage: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that left before its answer
            super().handle_error(request, client_address)


class FakeOpenAI:
    """`script(body)` decides each answer; `bodies` and `headers` hold what came in, `most_at_once` how many at once."""

    def __init__(
        self,
        script: Callable[[dict[str, Any]], Any] = lambda body: Say("hello"),
        models: tuple[str, ...] | Status | Raw = ("toy",),
        key: str | None = None,
        owner: str = "somebody",
    ) -> None:
        self.script, self.models, self.key, self.owner = script, models, key, owner
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = self._at_once = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FakeOpenAI:
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, body: dict[str, Any], headers: dict[str, str]) -> Any:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            assert "prompt" in body or (isinstance(body["messages"], list) and body["messages"])
            if isinstance(self.models, tuple) and body["model"] not in self.models:
                return Status(404, f"The model `{body['model']}` does not exist.", error_code="model_not_found")
            return self.script(body)
        finally:
            with self._lock:
                self._at_once -= 1

    def _list(self) -> Any:
        if not isinstance(self.models, tuple):
            return self.models
        data = [{"id": name, "object": "model", "created": 0, "owned_by": self.owner} for name in self.models]
        return Raw(json.dumps({"object": "list", "data": data}))

    def _handler(fake) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._send(fake._list() if self.path == "/v1/models" else Status(404, "Not Found"))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                known = self.path.partition("?")[0] in ("/v1/chat/completions", "/v1/completions")
                self._send(fake._answer(body, dict(self.headers)) if known else Status(404, "Not Found"))

            def _send(self, answer: Any) -> None:
                if fake.key is not None and self.headers["authorization"] != f"Bearer {fake.key}":
                    answer = Status(401, "Incorrect API key provided.")
                code, headers = 200, {"content-type": "application/json"}
                if isinstance(answer, Drop):
                    if answer.midway:
                        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                        self.wfile.write(b'content-length: 500\r\n\r\n{"id": "x", "choi')
                    self.close_connection = True
                    return
                if isinstance(answer, Status):
                    code, headers = answer.code, headers | answer.headers
                    error = {"message": answer.message, "type": "error", "param": None, "code": answer.error_code}
                    text = json.dumps({"error": error})
                elif isinstance(answer, Raw):
                    headers["content-type"], text = answer.content_type, answer.text
                else:
                    text = json.dumps(completion(answer))
                data = text.encode()
                self.send_response(code)
                for name, value in (headers | {"content-length": str(len(data))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

        return Handler


def completion(shown: Say) -> dict[str, Any]:
    """The answer of /v1/chat/completions. Tokens are counted as characters; the prompt has 11."""
    message = {"role": "assistant", "content": shown.text} | shown.extra
    body: dict[str, Any] = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "toy",
        "choices": [{"index": 0, "message": message, "finish_reason": shown.finish_reason, "logprobs": None}],
    }
    if shown.usage:
        count = len(shown.text or "")
        body["usage"] = {"prompt_tokens": 11, "completion_tokens": count, "total_tokens": 11 + count}
    return body
