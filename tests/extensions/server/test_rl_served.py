"""`hone rl` that samples from `hone inference`: the same steps and verdicts, and what happens when it goes away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import Served, serving
from recorded import Bench
from refusals import fails
from states import lines, steps

from hone.cli import main
from hone.model.hf import load_model
from hone.runs import Run
from hone.trainer.step import Trainer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    """An fp32 server that takes weights from anywhere below `tmp_path`. It begins with other weights than the run."""
    with serving(load_model("hone/tiny", seed=5), weights_root=tmp_path) as served:
        yield served


@pytest.fixture
def rl(tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs three steps of `hone rl` into this folder; later flags win."""
    monkeypatch.chdir(tmp_path)
    few = ["--max-steps", "3", "--display", "plain", "--ckpt", "None", "--orchestrator.eval.interval", "2"]
    bench = Bench(tmp_path, tiny_model_dir)
    return lambda name, *flags, code=0: bench.rl(name, *few, *flags, code=code)


def url(server: Served) -> list[str]:
    return ["--orchestrator.client.base-url", f"{server.url}/v1/", "--orchestrator.client.max-retries", "0"]


def test_a_run_through_a_server_takes_the_steps_of_one_in_process(rl, server, tmp_path, capsys):
    here, there = Run(rl("here")), Run(rl("there", *url(server)))
    for step in range(3):
        mine, theirs = here.rollouts(step).to_pylist(), there.rollouts(step).to_pylist()
        names = ("example_id", "sample_id", "versions", "token_ids", "reward", "stop_reason", "text")
        for name in names if step == 0 else names[:2]:
            assert [row[name] for row in mine] == [row[name] for row in theirs], (step, name)
    metrics = [lines(run.path / "metrics.jsonl") for run in (here, there)]
    for mine, theirs in zip(*metrics, strict=True):
        assert mine.keys() == theirs.keys()
        assert theirs["canary/verdict"] == 0 and theirs.get("logprob_gap/max", 0) <= 1e-5
    first, last = (of_run[0] for of_run in metrics)
    assert last["optimizer/skipped"] == 0, "nothing was learned, so no weights were new"
    assert [last[name] for name in first] == pytest.approx(list(first.values()), abs=1e-5)
    assert server.service.engine.version == 3 and server.service.updates == 4
    assert not (there.path / "spool").exists()
    cause = f"completions are sampled by the server at {server.url}/v1"
    assert (there.info["exact"], there.info["inexact"]) == (False, [{"step": 0, "cause": cause}])
    assert f"Another run of this config may differ from step 0 on: {cause}." in capsys.readouterr().out

    out = str(there.path)
    assert main(["verify", out, "--steps", "3"]) == 0
    shown = capsys.readouterr().out
    assert f"completions were sampled by the server at {server.url}/v1, which can't be asked again" in shown
    assert "3 steps came out equal from their recorded completions, bit for bit" in shown and "evaluation " not in shown
    assert main(["replay", out]) == 0
    assert "verdict       equal" in capsys.readouterr().out


def test_a_server_that_dies_costs_no_finished_step(rl, server, tmp_path, monkeypatch, capsys):
    step = Trainer.step

    def dying(self, batches):
        metrics = step(self, batches)
        if self.version == 2:
            server.stop()
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", dying)
        rl("out", *url(server), code=2)
        fails(capsys, 2, "is gone, or fails", "checkpoints/step_2; go on with: ", " --resume")
    out = tmp_path / "out"
    assert Run(out).info["status"] == "failed" and steps(out / "metrics.jsonl") == [0, 1]
    assert not (out / "spool").exists()
    with serving(load_model("hone/tiny", seed=6), weights_root=tmp_path) as other:
        assert main(["rl", "@", str(out / "config.toml"), "--resume", *url(other)]) == 0
    assert Run(out).info["status"] == "done" and other.service.engine.version == 3
    assert steps(out / "metrics.jsonl") == [0, 1, 2, 3]
    assert [line["canary/verdict"] for line in lines(out / "metrics.jsonl")] == [0, 0, 0, 0]
    assert main(["verify", str(out), "--steps", "3"]) == 0


ROWS = ("example_id", "completion", "turns", "prompt_tokens", "completion_tokens", "reward", "outcome", "components")


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ROWS if name in line} for line in lines]


def test_an_evaluation_over_http_gives_the_rows_of_one_in_process(guesser, tmp_path):
    """Also of conversations, each of which goes on by itself over HTTP, and in lock-step in process."""
    flags = ["-n", "4", "-r", "2", "-t", "12", "--seed", "3"]
    assert main(["eval", "guessing", "-m", str(guesser), *flags, "--output-dir", str(tmp_path / "local")]) == 0
    with serving(load_model(str(guesser), precision="bf16_linear")) as served:
        argv = ["eval", "guessing", "-m", "hone/tiny", "-b", f"{served.url}/v1", *flags]
        assert main([*argv, "--output-dir", str(tmp_path / "served")]) == 0
    assert rows(tmp_path / "served") == rows(tmp_path / "local") and len(rows(tmp_path / "local")) == 8
