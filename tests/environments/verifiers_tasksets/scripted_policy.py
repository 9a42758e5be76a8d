"""What tests of rollouts that verifiers makes share: a policy whose words are scripted, and a judge."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hone.environments.adapters.verifiers import Episodes
from hone.inference.types import Completion, SamplingParams
from hone.model.chat import load_renderer
from hone.orchestrator.colocated import segment_of
from hone.orchestrator.conversations import RolloutSettings, roll_out
from hone.orchestrator.types import Request
from hone.types import Rollout, Segment

RENDERER = load_renderer("hone/tiny")
Says = Callable[[list[dict[str, Any]]], str]


class Scripted:
    """A policy that says what `says` makes of a request's messages."""

    def __init__(self, says: Says) -> None:
        self.says = says

    def sample(self, requests: Sequence[Request], sampling: SamplingParams, finished: Any = None) -> list[Segment]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Segment:
        ids = [*RENDERER.tokenizer.encode(self.says(request.messages)).ids, RENDERER.stop_ids[0]]
        completion = Completion(token_ids=ids, logprobs=[-0.5] * len(ids), stop_reason="stop")
        return segment_of(request, completion, [0] * len(ids), RENDERER)


def played(env: Episodes, says: Says, rollouts: int = 1) -> list[Rollout]:
    settings = RolloutSettings(RENDERER, rollouts, 2048, 200, 0, "rollout")
    return roll_out(env, Scripted(says), settings, [env.example(index=0)], [0], 0, SamplingParams())  # type: ignore[arg-type]


class Judge(BaseHTTPRequestHandler):
    """A judge that says 0.25, or that it is busy."""

    busy = False

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        message = {"role": "assistant", "content": "0.25"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "usage": usage}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        content = json.dumps({**head, "choices": choices}).encode()
        self.send_response(503 if Judge.busy else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def judging() -> Iterator[str]:
    """Serve a judge; give its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
