"""The policy behind a server: what it samples, scores and takes is what an engine in this process does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_openai import FakeOpenAI, Raw, Status
from processes import until
from real_server import RENDERER, InThread, endpoint, random_model, requests, same, serving

from hone.client import Endpoint, ServerUnavailable
from hone.errors import Halt, UserError
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.loops.colocated import EnginePolicy
from hone.loops.reach import Server, connect_to_server
from hone.loops.remote import ServerPolicy
from hone.model.chat import load_renderer
from hone.model.decoder import Decoder
from hone.model.hf import save_model
from hone.trainer.export import Spool


def policy_of(url: str, model: Decoder, folder: Path, **settings: Any) -> ServerPolicy:
    asked = "hone/tiny", RENDERER, 64, folder / "spool", model.num_parameters
    server = connect_to_server(endpoint(url, **settings), *asked)
    return ServerPolicy([server], RENDERER, model.config.eos_token_ids, Spool(folder / "spool", model))


SAMPLINGS = {
    "temperature": SamplingParams(temperature=0.7),
    "stop": SamplingParams(top_k=5, stop=(7, "a")),
    "cut": SamplingParams(temperature=1.3, top_k=20, top_p=0.9, min_p=0.05, return_kept_ids=True),
    "uncut": SamplingParams(return_kept_ids=True),
    "greedy": SamplingParams(temperature=0, ignore_eos=True),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_it_samples_what_an_engine_here_does_version_by_version(tmp_path: Path, sampling: SamplingParams) -> None:
    model = random_model(seed=1)
    local = EnginePolicy(Engine(model, tokenizer=RENDERER.tokenizer), RENDERER, lambda: version)
    with serving(weights_root=tmp_path) as served:
        policy = policy_of(served.url, model, tmp_path)
        for version in (4, 5):
            policy.load(version)
            local.load(version)
            heard: dict[int, Any] = {}
            found = policy.sample(requests(), sampling, heard.__setitem__)
            assert [heard[index] for index in range(len(requests()))] == found
            same(found, local.sample(requests(), sampling))
            assert policy.version == version and {t.versions[-1] for t in found} == {version}
            for sequence in (list(range(40, 60)), [9, 8]):
                (mine,), (theirs,) = (one.score([sequence], sampling.temperature or 1.0) for one in (policy, local))
                assert mine == pytest.approx(theirs, abs=1e-5) and len(mine) == len(sequence) - 1
            with torch.no_grad():
                model.embed.mul_(1.5)
            model.refresh()


def test_a_server_of_two_runs_ends_both_at_equal_versions_too(tmp_path: Path) -> None:
    """In lock-step each publishes version 1; whose weights sample is told by where they came from."""
    with serving(weights_root=tmp_path) as served:
        one = policy_of(served.url, random_model(seed=1), tmp_path / "one")
        other = policy_of(served.url, random_model(seed=2), tmp_path / "other")
        one.load(1)
        assert one.sample(requests(), SamplingParams()) and one.score([[9, 8]], 1.0)
        other.load(1)
        words = r"version 1 of the weights \(.*/other/spool/step_1\), not 1 \(.*/one/spool/step_1\): another run"
        with pytest.raises(Halt, match=words):
            one.sample(requests(), SamplingParams())
        with pytest.raises(Halt, match=words):
            one.score([[9, 8]], 1.0)
        assert len(other.sample(requests(), SamplingParams())) == len(requests())


def saved(folder: Path, version: int) -> Path:
    """Weights of a version, as a trainer leaves them."""
    save_model(random_model(seed=version), folder / f"step_{version}")
    return folder / f"step_{version}"


def test_weights_change_while_it_samples_and_each_token_has_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve seconds of sampling, unless all has changed before."""
    long = [replace(request, max_tokens=240) for request in requests()]
    folder = tmp_path / "s1"
    for version in (3, 4, 5):
        saved(folder, version)
    with serving(weights_root=tmp_path) as served:
        policy = policy_of(served.url, random_model(), tmp_path)
        policy.load(3, folder / "step_3")
        before = policy.sample(long, SamplingParams(ignore_eos=True))
        quick = served.service.engine.step
        served.slow(monkeypatch, 0.05)
        sampling = InThread(lambda: policy.sample(long, SamplingParams(ignore_eos=True)))
        until(lambda: served.service.running == len(long), "all are there")
        for version in (4, 5):
            steps = served.service.steps
            until(lambda steps=steps: served.service.steps > steps + 10, "some tokens are there")
            policy.load(version, folder / f"step_{version}")
            assert policy.version == version
        monkeypatch.setattr(served.service.engine, "step", quick)
        found = sampling.result()
        assert served.service.cancelled == 0, "no request was dropped"
        after = policy.sample(long, SamplingParams(ignore_eos=True))
    assert len(found) == 7
    for trajectory, old in zip(found, before, strict=True):
        versions = trajectory.versions[trajectory.sampled_mask]
        assert versions.tolist() == sorted(versions) and set(versions) == {3, 4, 5}
        first = int((versions == 3).sum())
        ids = trajectory.token_ids[trajectory.sampled_mask]
        assert ids[:first].tolist() == old.token_ids[old.sampled_mask][:first].tolist()
        assert ids.tolist() != old.token_ids[old.sampled_mask].tolist()
    assert {v for t in after for v in t.versions[t.sampled_mask]} == {5}


def test_a_server_that_was_started_anew_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "s1"
    with serving(weights_root=tmp_path) as served:
        policy, port = policy_of(served.url, random_model(), tmp_path), served.port
        policy.load(3, saved(folder, 3))
        expected = policy.sample(requests(), SamplingParams())
    with pytest.raises(ServerUnavailable, match="is gone, or fails"):
        policy.sample(requests(), SamplingParams())
    with serving(weights_root=tmp_path, port=port):
        with pytest.raises(Halt, match=r"at http://.*/v1 was restarted and lacks this run's weights$"):
            policy.sample(requests(), SamplingParams())
        policy.load(3, folder / "step_3")
        same(policy.sample(requests(), SamplingParams()), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"token_ids": None}, "TypeError"),
        ({"logprobs": None}, "TypeError"),
        ({"finish_reason": "abort"}, "it ended by abort"),
        ({"logprobs": {"token_logprobs": [float("nan")]}}, "a logprob is not finite, or above 0"),
        ({"logprobs": {"token_logprobs": [0.5]}}, "a logprob is not finite, or above 0"),
        ({"token_ids": [-1]}, "a token has no id"),
    ],
)
def test_an_answer_that_cannot_be_trained_on_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    server = Server(Endpoint("http://127.0.0.1:9/v1"), "vllm", "m")
    policy = ServerPolicy([server], RENDERER, (), Spool(tmp_path, random_model()))
    choice = {"index": 0, "token_ids": [1], "prompt_token_ids": [1], "finish_reason": "stop"}
    choice |= {"logprobs": {"token_logprobs": [-1]}} | changes

    monkeypatch.setattr(policy.fleet, "ask", lambda bodies, on_answer: on_answer(0, {"choices": [choice]}, server, 0))
    with pytest.raises(Halt, match=f"without the ids and logprobs of its tokens .*{words}"):
        policy.sample(requests()[-1:], SamplingParams())


def test_what_cannot_be_sampled_from_is_told_before_anything_begins(tmp_path: Path) -> None:
    spool, parameters = tmp_path / "out" / "spool", random_model().num_parameters

    def error(url: str, tokens: int = 64, model: str = "hone/tiny", renderer: Any = RENDERER, **settings: Any) -> str:
        with pytest.raises(UserError) as caught:
            connect_to_server(endpoint(url, **settings), model, renderer, tokens, spool, parameters)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    other = load_renderer("hone/tiny")
    other.tokenizer.add_tokens(["cafe", "One"])
    with serving() as served:
        url = served.url
        assert "has room for 2048 tokens, but seq_len is 4096" in error(url, 4096)
        parameters += 1
        assert f"serves a model of {parameters - 1:,} parameters, not the run's {parameters:,}: start" in error(url)
        parameters -= 1
        assert "with another tokenizer than m: serve the model that is trained" in error(url, model="m", renderer=other)
        words = f"takes no weights: start it with --weights-root FOLDER; here --weights-root must be {spool.parent}"
        assert words in error(url)
    assert f"start a server with `inference --model.name hone/tiny --weights-root {spool.parent}`" in error(url)
    with pytest.raises(UserError) as caught:
        connect_to_server(endpoint(url), "hone/tiny", RENDERER, 64, spool, parameters, named=False)
    assert "--orchestrator.client.timeout" in str(caught.value) and "base-url" not in str(caught.value)
    with FakeOpenAI(models=Status(503, "an update of the weights failed")) as fake:
        shown = error(fake.url.removesuffix("/v1"))
        assert "(status 503: an update of the weights failed; 1 try): stop that server and start it anew" in shown
        assert "start one" not in shown
    (tmp_path / "elsewhere").mkdir()
    with serving(weights_root=tmp_path / "elsewhere", api_key="sesame") as served:
        assert "wrong: send it" in error(served.url) and "--orchestrator.client.api-key-var" in error(served.url)
        assert f"here --weights-root must be {spool.parent}" in error(served.url, api_key="sesame")
    with FakeOpenAI(models=("a", "b"), owner="acme") as fake:
        assert "serves a, b, not c: start a server of c" in error(fake.url.removesuffix("/v1"), model="c")
        assert "is a server of acme: rollouts need token ids" in error(fake.url.removesuffix("/v1"), model="a")
    with FakeOpenAI(owner="vllm") as fake:
        assert "takes no weights: start vLLM with `inference --backend vllm" in error(fake.url.removesuffix("/v1"))
    with FakeOpenAI(models=Raw("[]")) as fake:
        assert error(fake.url.removesuffix("/v1")).endswith("URL of an inference server, ending in /v1")
