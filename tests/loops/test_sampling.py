"""How settings of sampling reach the engine, and a server that can't honour them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hone.client import Endpoint
from hone.config.rl import RLConfig
from hone.config.shared import SamplingConfig
from hone.errors import UserError
from hone.inference.types import SamplingParams, sampling_params
from hone.loops import sampling
from hone.loops.evaluating import local_sampling
from hone.loops.reach import Server

CUT = {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.05}


def test_a_section_and_flags_of_an_evaluation_become_the_engines_parameters() -> None:
    section = SamplingConfig(**CUT, stop=["</a>", "b"])
    expected = SamplingParams(**CUT, stop=("</a>", "b"))
    assert sampling_params(section) == expected and not expected.keeps_ids
    rollouts = sampling_params(section, return_kept_ids=True)
    assert rollouts == replace(expected, return_kept_ids=True) and rollouts.keeps_ids
    assert not sampling_params(SamplingConfig(), return_kept_ids=True).keeps_ids
    assert local_sampling({**CUT, "max_tokens": 128, "stop": ["</a>", "b"]}) == expected
    assert local_sampling({"stop": "x"}).stop == ("x",) and local_sampling({"stop": None}).stop == ()
    for wrong in (3, [3], {"a": "b"}):
        with pytest.raises(UserError, match="should be a text, or a list of texts"):
            local_sampling({"stop": wrong})


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
