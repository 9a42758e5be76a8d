"""`/metrics` in Prometheus' text format."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hone.inference.server.service import Service


class Metrics:
    """Counts requests, and reads the service's own counters."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def counting(self, app: ASGIApp) -> ASGIApp:
        """`app`, with its requests counted. Seconds are those until the answer, for a stream until it begins."""

        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return await app(scope, receive, send)
            start = time.perf_counter()

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    path = getattr(scope.get("route"), "path", "other")
                    self._requests[path, message["status"]] += 1
                    self._seconds[path] += time.perf_counter() - start
                await send(message)

            await app(scope, receive, noting)

        return counted

    def text(self) -> str:
        s = self._service
        lines = []
        for name, kind, text, value in (
            ("prompt_tokens_total", "counter", "Prompt tokens of accepted samples.", s.prompt_tokens),
            ("sampled_tokens_total", "counter", "Tokens sampled.", s.sampled_tokens),
            ("steps_total", "counter", "Decode steps.", s.steps),
            ("step_seconds_total", "counter", "Seconds spent in decode steps.", s.seconds),
            ("idle_seconds_total", "counter", "Seconds without a sample to work at, pauses left out.", s.idle_seconds),
            ("samples_cancelled_total", "counter", "Samples that were dropped before their end.", s.cancelled),
            ("engine_failures_total", "counter", "Steps that failed.", s.failures),
            ("weight_updates_total", "counter", "Weight updates.", s.updates),
            ("samples_in_flight", "gauge", "Samples that wait or run.", s.running),
            ("prefix_cache_bytes", "gauge", "Keys and values kept of recent prompts.", s.engine.prefill.prefixes.bytes),
            ("policy_version", "gauge", "Version of the weights.", s.engine.version),
            ("paused", "gauge", "1 while paused.", int(s.paused)),
        ):
            lines += [f"# HELP hone_{name} {text}", f"# TYPE hone_{name} {kind}", f"hone_{name} {value}"]
        lines += ["# HELP hone_requests_total Requests by path and status.", "# TYPE hone_requests_total counter"]
        lines += [
            f'hone_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self._requests.items())
        ]
        lines += [
            "# HELP hone_request_seconds_total Seconds until the answer, for a stream until it begins.",
            "# TYPE hone_request_seconds_total counter",
        ]
        lines += [f'hone_request_seconds_total{{path="{path}"}} {x}' for path, x in sorted(self._seconds.items())]
        return "\n".join(lines) + "\n"
