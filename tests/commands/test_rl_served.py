"""`hone rl` that samples from `hone inference`: the same steps and verdicts, and what happens when it goes away."""

from __future__ import annotations

import json
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import tampering
from fake_vllm import fake_environment
from real_server import Served, serving, until
from recorded import PARITY
from refusals import fails

from hone.cli import main
from hone.commands import ask_server
from hone.composition import sampling
from hone.config.inference import ServeConfig
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.runs import Run
from hone.trainer.export import Spool
from hone.trainer.step import Trainer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """An fp32 server that takes weights from anywhere below `tmp_path`. It begins with other weights than the run."""
    with serving(load_model("hone/tiny", seed=5), weights_root=tmp_path) as served:
        yield served


@pytest.fixture
def rl(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs three steps of `hone rl` into this folder; later flags win."""
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "parity.py").write_text(PARITY)
    monkeypatch.chdir(tmp_path)

    def call(out: str, *flags: str) -> int:
        base = f"--model.name {tiny_model_dir} --max-steps 3 --seq-len 64 --precision fp32 --display plain --no-audit"
        base += " --orchestrator.env.id parity --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4"
        base += " --orchestrator.sampling.max-tokens 12 --orchestrator.eval.interval 2"
        base += f" --orchestrator.eval.num-examples 4 --trainer.optim.lr 1e-3 --output-dir {tmp_path / out}"
        return main(["rl", *base.split(), *flags])

    return call


def url(server: Served) -> list[str]:
    return ["--orchestrator.client.base-url", f"{server.url}/v1/", "--orchestrator.client.max-retries", "0"]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_through_a_server_takes_the_steps_of_one_in_process(rl, server, tmp_path, capsys):
    assert rl("here") == 0
    assert rl("there", *url(server)) == 0
    here, there = Run(tmp_path / "here"), Run(tmp_path / "there")
    for step in range(3):
        mine, theirs = here.rollouts(step).to_pylist(), there.rollouts(step).to_pylist()
        names = ("example_id", "sample_id", "versions", "token_ids", "reward", "stop_reason", "text")
        for name in names if step == 0 else names[:2]:
            assert [row[name] for row in mine] == [row[name] for row in theirs], (step, name)
    for mine, theirs in zip(lines(here.path), lines(there.path), strict=True):
        assert mine.keys() == theirs.keys()
        assert theirs["canary/verdict"] == 0 and theirs.get("logprob_gap/max", 0) <= 1e-5
    assert lines(there.path)[0]["optimizer/skipped"] == 0, "nothing was learned, so no weights were new"
    first, last = lines(here.path)[0], lines(there.path)[0]
    assert [last[name] for name in first] == pytest.approx(list(first.values()), abs=1e-5)
    assert server.service.engine.version == 3 and server.service.updates == 4
    assert not (there.path / "spool").exists()
    cause = f"completions are sampled by the server at {server.url}/v1"
    assert (there.info["exact"], there.info["inexact"]) == (False, [{"step": 0, "cause": cause}])
    assert f"Another run of this config may differ from step 0 on: {cause}." in capsys.readouterr().out


def test_what_a_server_sampled_is_trained_on_again_and_not_sampled_again(rl, server, tmp_path, capsys):
    assert rl("out", *url(server)) == 0
    out = str(tmp_path / "out")
    capsys.readouterr()
    assert main(["verify", out, "--steps", "3"]) == 0
    said = capsys.readouterr().out
    assert f"completions were sampled by the server at {server.url}/v1, which can't be asked again" in said
    assert "3 steps came out equal from their recorded completions, bit for bit" in said and "evaluation " not in said
    assert main(["replay", out]) == 0
    assert "verdict       equal" in capsys.readouterr().out
    metrics = tmp_path / "out" / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"canary/verdict": 0.0', '"canary/verdict": 1.0'))
    assert main(["verify", out]) == 1


@pytest.mark.parametrize("column", ["text", "prompt", "token_ids", "versions"])
def test_recorded_completions_that_were_edited_are_found(rl, server, tmp_path, capsys, column):
    """Consistently, with the hashes: the prompt in words and in ids, the text, and what it was graded on."""
    assert rl("out", "--max-steps", "1", *url(server)) == 0
    out = tmp_path / "out"
    row = Run(out).rollouts(0).to_pylist()[0]
    prompt = row["sampled_mask"].index(True)
    edited = {
        "text": row["text"] + " ",
        "prompt": row["prompt"].replace('"content": "', '"content": "!'),
        "token_ids": [row["token_ids"][0] + 1, *row["token_ids"][1:]],
        "versions": [*row["versions"][:prompt], 7, *row["versions"][prompt + 1 :]],
    }
    assert edited[column] != row[column]
    tampering.edit_rollouts(out, 0, lambda rows: rows[0].update({column: edited[column]}), fit_hashes=True)
    tampering.fit_advantages_and_metrics(out, 0)
    capsys.readouterr()
    assert main(["verify", str(out)]) == 1
    what = "token 0 of sample 0-0-0" if column == "token_ids" else f"the column {column} of sample 0-0-0"
    assert what in capsys.readouterr().out


def test_a_server_that_dies_costs_no_finished_step(rl, server, tmp_path, monkeypatch, capsys):
    step = Trainer.step

    def dying(self, batches):
        metrics = step(self, batches)
        if self.version == 2:
            server.stop()
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", dying)
        fails(capsys, rl("out", *url(server)), "is gone, or fails", "checkpoints/step_2; go on with: ", " --resume")
    out = tmp_path / "out"
    assert Run(out).info["status"] == "failed" and [line["step"] for line in lines(out)] == [0, 1]
    assert not (out / "spool").exists()
    with serving(load_model("hone/tiny", seed=6), weights_root=tmp_path) as other:
        assert main(["rl", "@", str(out / "config.toml"), "--resume", *url(other)]) == 0
    assert Run(out).info["status"] == "done" and other.service.engine.version == 3
    assert [line["step"] for line in lines(out)] == [0, 1, 2, 3]
    assert [line["canary/verdict"] for line in lines(out)] == [0, 0, 0, 0]
    assert main(["verify", str(out), "--steps", "3"]) == 0


def test_a_resume_with_a_server_makes_the_steps_before_it_no_less_exact(rl, server, tmp_path):
    assert rl("out", "--max-steps", "2", "--ckpt.interval", "1") == 0
    assert rl("out", *url(server), "--resume", "--allow-drift") == 0
    entries = Run(tmp_path / "out").info["inexact"]
    assert {"step": 2, "cause": f"completions are sampled by the server at {server.url}/v1"} in entries
    assert {entry["step"] for entry in entries} == {2}


def test_a_run_that_waits_for_its_server_ends_in_time(rl, server, tmp_path, capfd):
    """SIGTERM, while the server holds all requests: the state is saved, and what was asked for is cancelled."""
    server.service.pause().result()

    def terminate() -> None:
        until(lambda: server.service.running, "the run waits")
        os.kill(os.getpid(), signal.SIGTERM)

    impatient = threading.Thread(target=terminate)
    impatient.start()
    assert rl("out", *url(server), "--grace-seconds", "1.5") == 143
    impatient.join()
    server.service.resume().result()
    until(lambda: not server.service.running, "its requests are cancelled")
    assert server.service.cancelled > 0 and server.service.sampled_tokens <= 1
    assert (tmp_path / "out/checkpoints/step_0/COMPLETE").exists() and not (tmp_path / "out/spool").exists()
    assert f"Saved: {tmp_path / 'out/checkpoints/step_0'}" in capfd.readouterr().out


def test_a_server_in_another_precision_is_found_out(rl, tmp_path, tiny_model_dir, capsys):
    model = load_model(str(tiny_model_dir), precision="bf16_linear")
    with serving(model, weights_root=tmp_path) as served:
        flags = [*url(served), "--gap.stop", "1e-4"]
        fails(capsys, rl("out", *flags), "sampler and trainer disagree at version 0", "numerics", "step_0; go on with")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--orchestrator.client.base-url", "localhost:8000"], "is no URL of a server"),
        (["--orchestrator.client.base-url", "http://me:pw@h/v1"], "give the key with orchestrator.client.api_key_var"),
        (["--orchestrator.client.base-url", "http://127.0.0.1:9/v1", "--inference.backend", "vllm"], "leave out one"),
        (["--orchestrator.client.base-url", "http://127.0.0.1:9/v1"], "start one with `inference --model.name"),
        (["--inference.backend", "vllm", "--inference.vllm-python", "/nowhere/python"], "no Python at /nowhere/python"),
    ],
)
def test_what_can_not_be_sampled_from_touches_nothing(rl, tmp_path, capsys, flags, words):
    fails(capsys, rl("out", *flags), words)
    assert not (tmp_path / "out").exists()


def test_a_server_that_cannot_be_used_is_asked_before_anything_is_loaded(rl, tmp_path, monkeypatch, capsys):
    """With the command that starts one: it is run, and the server that it describes is asked again."""
    from hone.commands import rl as command
    from hone.commands import rl_split

    monkeypatch.setattr(command, "train", lambda run: SimpleNamespace(exit_code=77))
    monkeypatch.setattr(command, "watched", lambda config: None)
    monkeypatch.setattr(rl_split, "run", lambda config: 77)
    (tmp_path / "elsewhere").mkdir()
    tiny = load_model("hone/tiny", seed=5)
    split = ["--mode", "split"]
    for options, more, words in (
        ({}, [], "--weights-root"),
        ({}, split, "--output-dir"),
        ({"weights_root": tmp_path / "elsewhere"}, [], "--weights-root"),
        ({"weights_root": tmp_path / "elsewhere"}, [*split, "--transport.path", "t"], "--transport.path t"),
        ({"weights_root": tmp_path}, ["--seq-len", "4096"], "lower seq_len"),
        ({"weights_root": tmp_path}, ["--model.name", "hone/tiny", "--model.init.hidden", "64"], "parameters"),
        ({"weights_root": tmp_path, "api_key": "sesame"}, [], "--orchestrator.client.api-key-var"),
    ):
        with serving(tiny, **options) as served:
            fails(capsys, rl("out", *url(served), *more), words, "`inference --model.name ", f"--port {served.port}")
    with serving(tiny, weights_root=tmp_path) as served:
        assert rl("out", *url(served)) == rl("out", *url(served), *split) == 77
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("mode", ["split", "colocated"])
def test_the_command_for_a_server_starts_one_that_takes_the_weights_of_the_run(mode, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    argv = ["--mode", mode, "--orchestrator.env.id", "parity", "--orchestrator.client.base-url", "http://h:81/v1"]
    config = parse(RLConfig, [*argv, "--output-dir", "outputs/x"], "rl")
    command, *flags = shlex.split(ask_server._command(config, 81))
    serve = parse(ServeConfig, flags, command)
    spool = ask_server._weights_folder(config).resolve()
    assert command == "inference" and serve.port == 81 and serve.model == config.model
    assert serve.weights_folder is not None and spool.is_relative_to(serve.weights_folder.resolve())
    assert serve.weights_root is None or serve.weights_root.is_dir()


def fake_cuda(folder: Path) -> list[str]:
    """Flags for a vLLM that was built for CUDA, says what it is told, and has no room for the cache."""
    python = fake_environment(folder, "vllm", "0.32.0")
    module = folder / "packages/vllm/entrypoints/openai/api_server.py"
    module.parent.mkdir(parents=True)
    said = "ValueError: too little memory is available for the KV cache. Try more"
    module.write_text(f"import sys\nprint(*sys.argv)\nsys.exit({said!r})\n")
    return ["--inference.backend", "vllm", "--inference.vllm-python", str(python)]


def test_a_device_that_vllm_was_not_built_for_touches_nothing(rl, tmp_path, capsys):
    flags = [*fake_cuda(tmp_path / "fake"), "--model.device", "cpu"]
    fails(capsys, rl("out", *flags), "was built for cuda", "another vLLM with --inference.vllm-python")
    assert not (tmp_path / "out").exists()


def test_vllm_is_started_on_the_device_of_the_config(tmp_path, tiny_model_dir):
    """Made and not started, for there may be no such device here."""
    flags = ["--model.name", str(tiny_model_dir), "--model.device", "cuda:1", "--orchestrator.env.id", "parity"]
    config = parse(RLConfig, [*flags, *fake_cuda(tmp_path / "fake")], "rl")
    run = SimpleNamespace(folder=tmp_path, display=SimpleNamespace(message=print))
    model, renderer = load_model(str(tiny_model_dir)), load_renderer(str(tiny_model_dir))
    vllm = sampling._vllm(config, run, SimpleNamespace(model=model), renderer, Spool(tmp_path / "spool", model))
    assert vllm.described == "vLLM 0.32.0, dtype bfloat16, cuda:1"


def test_memory_for_vllm_on_a_gpu_and_what_gives_more(rl, tmp_path, capsys):
    flags = fake_cuda(tmp_path / "fake")
    remedy = "for the KV cache; raise inference.kv_gib, or lower seq_len (log: "
    fails(capsys, rl("out", *flags), remedy)
    told = (tmp_path / "out/logs/vllm.log").read_text()
    assert f"--kv-cache-memory-bytes {8 * 2**30} " in told and "--max-model-len 65 " in told
    fails(capsys, rl("more", *flags, "--inference.kv-gib", "20"), remedy)
    assert f"--kv-cache-memory-bytes {20 * 2**30} " in (tmp_path / "more/logs/vllm.log").read_text()
