"""How settings of sampling reach the engine, and a server that can't honour them."""

from __future__ import annotations

import pytest

from hone.client import Endpoint
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.loops import sampling
from hone.loops.reach import Server

CUT = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.05}


@pytest.mark.needs("vllm")
@pytest.mark.parametrize("name", ["top_p", "top_k", "min_p"])
def test_rollouts_by_a_vllm_that_is_up_are_not_cut(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def config(**settings) -> RLConfig:
        return RLConfig(orchestrator={"client": {"base_url": "http://localhost:8000/v1"}, "sampling": settings})

    def up(backend) -> None:
        server = Server(Endpoint("http://localhost:8000/v1"), backend, "m")
        monkeypatch.setattr(sampling, "connect_to_server", lambda *_: server)

    up("vllm")
    with pytest.raises(UserError, match="vLLM does not return each token"):
        sampling.other_sampler(config(**{name: CUT[name]}), None, 1)  # pyright: ignore[reportArgumentType]
    assert sampling.other_sampler(config(stop=["a"]), None, 1) is not None  # pyright: ignore[reportArgumentType]
    up("hone")
    assert sampling.other_sampler(config(**{name: CUT[name]}), None, 1) is not None  # pyright: ignore[reportArgumentType]
