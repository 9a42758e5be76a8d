"""A real server on 127.0.0.1, in a thread of the test process, so that a test can look at its engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import openai
import pytest
import torch
import uvicorn
from processes import until

from hone import rng
from hone.client import Endpoint
from hone.extensions.server.app import create_app
from hone.extensions.server.service import Service
from hone.inference.engine import Engine
from hone.inference.policy import Request
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import load_model
from hone.serving import listen, local_only, settings


def random_model(seed: int = 0) -> Decoder:
    """A random model whose tokens have clearly different logprobs."""
    model = load_model("hone/tiny", seed=seed)
    with torch.no_grad():
        model.embed.mul_(2)
    model.refresh()
    return model


def talking_model(seed: int = 0) -> Decoder:
    """A random model whose greedy answers are not one token over and over, and depend on the question and the seed."""
    model = load_model("hone/tiny", seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and parameter is not model.embed:
                parameter.mul_(4)
    model.refresh()
    return model


class Served:
    """A server that answers at `url`, until `stop()`."""

    def __init__(self, service: Service, renderer: ChatRenderer, port: int, stop: Callable[[], None]) -> None:
        self.service, self.renderer, self.port, self.stop = service, renderer, port, stop
        self.url = f"http://127.0.0.1:{port}"

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=300)

    def slow(self, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.005) -> None:
        """Makes each step take so many seconds at least, so that something can happen while a request runs."""
        step = self.service.engine.step
        monkeypatch.setattr(self.service.engine, "step", lambda: (time.sleep(seconds), step())[1])


@contextmanager
def serving(model: Decoder | None = None, port: int = 0, folder: str = "hone/tiny", **options: Any) -> Iterator[Served]:
    """A server of `model` (by default a random one) with the tokenizer of `folder`, by whose name it goes."""
    renderer = load_renderer(folder)
    service = Service(Engine(model or random_model(), tokenizer=renderer.tokenizer))
    app = create_app(service, renderer, folder, **options)
    listener = listen("127.0.0.1", port)
    server = uvicorn.Server(settings(local_only(app, listener), 1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()

    def stop() -> None:
        server.should_exit = True
        thread.join()
        listener.close()

    try:
        until(lambda: server.started or not thread.is_alive(), "the server has started")
        yield Served(service, renderer, listener.getsockname()[1], stop)
    finally:
        stop()


class InThread:
    """A function at work in a thread of its own; `result` waits for what it returns."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(work()))
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(300)
        return self._found[0]


RENDERER = load_renderer("hone/tiny")


def requests() -> list[Request]:
    """Two groups of three, and one completion alone that may be longer."""
    prompts = [tuple(RENDERER.tokenizer.encode(text).ids) for text in ("Hello", "abc abc", "Hello")]
    groups = [(0, 0, 12), (0, 1, 12), (0, 2, 12), (1, 0, 12), (1, 1, 12), (1, 2, 12), (2, 0, 20)]
    return [
        Request(prompts[d], [{"role": "user", "content": str(d)}], rng.key(3, "rollout", d, i), f"0-{d}-{i}", limit)
        for d, i, limit in groups
    ]


def endpoint(url: str, **settings: Any) -> Endpoint:
    return Endpoint(f"{url}/v1", **{"max_retries": 0} | settings)


def same(one: list[Any], other: list[Any]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert mine.token_ids.tolist() == theirs.token_ids.tolist()
        assert mine.sampled_mask.tolist() == theirs.sampled_mask.tolist()
        assert mine.versions.tolist() == theirs.versions.tolist()
        assert np.abs(mine.logprobs - theirs.logprobs).max() <= 1e-5
        assert mine.columns.keys() == theirs.columns.keys()
        for name, column in mine.columns.items():
            assert column.values.tolist() == theirs.columns[name].values.tolist()
            assert column.counts.tolist() == theirs.columns[name].counts.tolist()
        facts = ("messages", "stop_reason")
        assert [getattr(mine, name) for name in facts] == [getattr(theirs, name) for name in facts]
