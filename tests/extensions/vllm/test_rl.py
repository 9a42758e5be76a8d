"""RL with vLLM as the sampler: started by the run, and one that was up before; whatever the server's config says."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import descendants
from recorded import PARITY

from hone.cli import main
from hone.client import Endpoint
from hone.config.shared import LoraConfig
from hone.errors import Halt, UserError
from hone.extensions.vllm.server import VllmServer
from hone.inference.engine import Engine
from hone.inference.policy import Request
from hone.inference.types import SamplingParams
from hone.loops.reach import connect_to_server
from hone.loops.remote import ServerPolicy
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.model.lora import start_adapter
from hone.processes import free_port
from hone.runs import Run
from hone.trainer.export import Spool

from .conftest import make_versions

pytestmark = pytest.mark.vllm
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, Path]]:
    """A server of an untied model in fp32, and the folder that the model and all weights are in."""
    folder = tmp_path_factory.mktemp("vllm")
    make_versions("llama, untied", folder)
    settings = {"dtype": "float32", "kv_gib": 1 / 16, "weights_root": folder, "max_model_len": 128}
    with VllmServer(folder / "v0", log=folder / "vllm.log", **settings) as started:
        yield started, folder


def add_parity(folder: Path) -> None:
    (folder / "environments").mkdir()
    (folder / "environments" / "parity.py").write_text(PARITY)


def run(folder: Path, model: Path, *argv: str) -> int:
    base = (
        f"--model.name {model} --max-steps 3 --seq-len 64 --precision fp32 --display plain --orchestrator.env.id parity"
    )
    base += " --orchestrator.batch-size 16 --orchestrator.rollouts-per-example 4 --orchestrator.sampling.max-tokens 12"
    base += f" --trainer.optim.lr 1e-3 --output-dir {folder} --no-audit"
    return main(["rl", *argv, *base.split()])


def check_run(folder: Path) -> None:
    """Every version was published, every step trained on what the trainer itself would have said of it."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["canary/verdict"] for line in lines] == [0, 0, 0, 0]
    assert max(line["canary/gap/max"] for line in lines) < 1e-4
    assert [line["optimizer/skipped"] for line in lines[:3]] == [0, 0, 0]
    assert max(line["logprob_gap/max"] for line in lines[:3]) < 1e-4
    rows = Run(folder).rollouts(2).to_pylist()
    assert len({tuple(row["token_ids"]) for row in rows}) > 8 and {row["versions"][-1] for row in rows} == {2}
    assert not (folder / "spool").exists()


def test_a_run_starts_vllm_gives_it_every_version_and_ends_it(tmp_path, tiny_model_dir, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    add_parity(tmp_path)
    before = descendants(os.getpid())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (command,) = re.findall(r"^rl (.*backend vllm)$", (ROOT / "docs/scale.md").read_text(), re.MULTILINE)
    argv = [*command.split(), "--orchestrator.eval.num-examples", "4", "--orchestrator.sampling.temperature", "0.7"]
    assert run(tmp_path / "out", tiny_model_dir, *argv) == 0
    assert descendants(os.getpid()) <= before
    check_run(tmp_path / "out")
    assert (tmp_path / "out/logs/vllm.log").stat().st_size > 0
    assert Run(tmp_path / "out").info["inexact"] == [{"step": 0, "cause": "completions are sampled by vLLM"}]
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "out"), "--steps", "3"]) == 0
    assert "completions were sampled by vLLM, which can't be asked again" in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("mode", ["colocated", "split"])
def test_vllm_is_given_the_adapter_alone(mode, tmp_path, monkeypatch, capsys):
    """So the model that it began with, with each version's adapter, is the trainer's, as `check_run` says."""
    monkeypatch.chdir(tmp_path)
    add_parity(tmp_path)
    make_versions("qwen3, tied", tmp_path)
    port = free_port()
    argv = ["--mode", mode, "--inference.port", str(port), "--inference.backend", "vllm"]
    argv += ["--inference.max-lora-rank", "8", "--model.lora.rank", "4", "--trainer.loss.kl-coef", "0.1"]
    argv += ["--orchestrator.max-async-level", "0", "--ckpt.interval", "1"]
    assert run(tmp_path / "out", tmp_path / "v0", *argv) == 0, capsys.readouterr()
    check_run(tmp_path / "out")
    log = "out/logs/vllm.log" if mode == "colocated" else f"outputs/vllm-{port}.log"
    assert "'max_lora_rank': 8" in (tmp_path / log).read_text()
    again = ["rl", "@", str(tmp_path / "out/config.toml"), "--resume.step", "2"]
    assert main(again) == 0, capsys.readouterr()
    check_run(tmp_path / "out")


def test_an_adapter_that_is_not_finite_or_does_not_fit_is_refused(tmp_path):
    make_versions("llama, untied", tmp_path)
    prompt, ids = tuple(range(40, 60)), list(range(40, 60)) + list(range(90, 100))
    settings = {"dtype": "float32", "kv_gib": 1 / 16, "weights_root": tmp_path, "max_lora_rank": 8}
    with VllmServer(tmp_path / "v0", log=tmp_path / "vllm.log", max_model_len=128, **settings) as vllm:
        renderer = load_renderer(tmp_path / "v0")
        reached = connect_to_server(Endpoint(vllm.url), str(tmp_path / "v0"), renderer, 64, tmp_path / "spool", None)
        for version in (1, 2):
            model = load_model(tmp_path / "v0", lora=LoraConfig(rank=4))
            start_adapter(model, version)
            for name, parameter in model.trained.items():
                generator = torch.Generator().manual_seed(version)
                parameter.data.add_(torch.randn(parameter.shape, generator=generator) / 10 * name.endswith("B"))
            spool = Spool(tmp_path / "spool", model, adapter_alone=True)
            policy = ServerPolicy([reached], renderer, (), spool)
            policy.load(version)
            folder = tmp_path / "spool" / f"step_{version}"
            assert [file.name for file in folder.iterdir()] == ["adapter"]
            expected = Engine(model).score([ids], 1.0)[0]
            assert policy.score([ids], 1.0)[0] == pytest.approx(expected, abs=1e-4)
        assert len(policy.sample([Request(prompt, [], 5, "0-0-0", 16)], SamplingParams())) == 1
        with pytest.raises(UserError, match=r"takes adapters .*has none"):
            vllm.update(tmp_path / "v1", 3)
        model.trained["layers.1.o_proj.lora_B"].data[3, 1] = torch.nan
        with pytest.raises(UserError, match=r"1 values of .*o_proj.lora_B.weight are not finite"):
            policy.load(3)
        assert policy.score([ids], 1.0)[0] == pytest.approx(expected, abs=1e-4)


def test_a_run_uses_a_vllm_that_is_up_and_resumes_with_it(server, monkeypatch, capsys):
    vllm, folder = server
    monkeypatch.chdir(folder)
    add_parity(folder)
    there = ["--orchestrator.client.base-url", vllm.url]
    assert run(folder / "out", folder / "v0", *there, "--ckpt.interval", "1") == 0
    check_run(folder / "out")
    straight = (folder / "out/metrics.jsonl").read_text()
    vllm.update(folder / "v1", 9)
    assert main(["rl", "@", str(folder / "out/config.toml"), "--resume.step", "2"]) == 0
    check_run(folder / "out")
    assert (folder / "out/metrics.jsonl").read_text().splitlines()[:2] == straight.splitlines()[:2]


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_samples_and_scores_are_what_the_weights_say(server, tmp_path, temperature):
    vllm, folder = server
    renderer, model = load_renderer(folder / "v0"), load_model(folder / "v1", precision="fp32")
    asked = str(folder / "v0"), renderer, 64, folder / "spool", model.num_parameters
    reached = connect_to_server(Endpoint(vllm.url), *asked)
    assert reached.backend == "vllm"
    policy = ServerPolicy([reached], renderer, model.config.eos_token_ids, Spool(folder / "spool", model))
    policy.load(4)
    assert policy.version == 4
    prompts = [tuple(range(40, 50)), tuple(range(60, 90))]
    requests = [Request(ids, [], 5 * p + i, f"0-{p}-{i}", 16) for p, ids in enumerate(prompts) for i in range(3)]
    found = policy.sample(requests, SamplingParams(temperature=temperature))
    for request, t in zip(requests, found, strict=True):
        assert tuple(t.token_ids[~t.sampled_mask].tolist()) == request.prompt_ids
        assert set(t.versions.tolist()) == {-1, 4} and t.num_sampled <= 16
        ended = t.token_ids[-1] in (*renderer.stop_ids, *model.config.eos_token_ids)
        assert t.stop_reason == ("stop" if ended else "length") and (ended or t.num_sampled == 16)
        (scores,) = Engine(model).score([t.token_ids.tolist()], temperature)
        assert t.logprobs[t.sampled_mask] == pytest.approx(np.array(scores)[t.sampled_mask[1:]], abs=1e-4)
    assert len({tuple(t.token_ids.tolist()) for t in found}) == (2 if temperature == 0 else 6)
    again = policy.sample(requests, SamplingParams(temperature=temperature))
    assert [t.token_ids.tolist() for t in again] == [t.token_ids.tolist() for t in found]

    scores = policy.score(prompts, temperature)
    assert [len(row) for row in scores] == [9, 29]
    if temperature == 1:
        for mine, theirs in zip(scores, Engine(model).score(prompts, 1.0), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)
    else:
        assert np.isnan(np.concatenate(scores)).all(), "vLLM scores prompts at temperature 1 only"

    vllm.update(folder / "v1", 4)
    with pytest.raises(Halt, match="another run uses this server"):
        policy.sample(requests, SamplingParams(temperature=temperature))
