"""`hone sft` under torchrun: one run directory, written by rank 0, whatever the number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from rank_launcher import ROOT, TORCHRUN

from hone.cli import main

pytestmark = pytest.mark.split

SCRIPT = "src/hone/trainer/sft.py"


def flags(model: Path, out: Path, *more: str) -> list[str]:
    words = f"--model.name {model} --data.env.id reverse-text --data.seq-len 64 --data.batch-size 6 --data.no-pack"
    words += " --max-steps 4 --val.interval 3 --val.max-examples 5 --optim.lr 1e-3 --ckpt.interval 2 --display plain"
    return [*words.split(), "--output-dir", str(out), *more]


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "environments")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def torchrun(world: int, *words: str) -> subprocess.CompletedProcess:
    command = [*TORCHRUN, "--nproc-per-node", str(world), SCRIPT, *words]
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=900)


def trained(world: int, *words: str) -> str:
    done = torchrun(world, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def lines(out: Path, name: str = "metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (out / name).read_text().splitlines()]


def info(out: Path) -> dict:
    return json.loads((out / "run.json").read_text())


@pytest.fixture(scope="module")
def one(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    assert main(["sft", *flags(tiny_model_dir, out)]) == 0
    return out


@pytest.fixture(scope="module")
def two(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two") / "out"
    shown = trained(2, *flags(tiny_model_dir, out))
    assert shown.count("SFT: ") == shown.count("Done: 4 steps") == 1 and "2 ranks" in shown
    return out


def assert_close(mine: list[dict], theirs: list[dict]) -> None:
    """The same data, to the example; losses within what rounding does."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert a.keys() == b.keys()
        for name in ("step", "epoch", "examples/total", "tokens/total", "lr"):
            assert a.get(name) == b.get(name)
        for name in ("loss", "val/loss", "grad_norm"):
            assert a.get(name, 0.0) == pytest.approx(b.get(name, 0.0), rel=1e-3), name


def test_two_ranks_read_and_learn_what_one_does(one: Path, two: Path) -> None:
    assert_close(lines(one), lines(two))
    assert info(two)["ranks"] == 2 and info(two)["exact"] is True and "ranks" not in info(one)
    assert not list((two / "logs").iterdir()), "no warning of any rank"


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_it_goes_on_from_a_checkpoint_on_another_number_of_ranks(
    first: int, then: int, one: Path, two: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    source, out = (one if first == 1 else two), tmp_path / "out"
    words = flags(tiny_model_dir, out, "--resume.dir", str(source), "--resume.step", "2")
    assert main(["sft", *words]) == 0 if then == 1 else trained(then, *words)
    assert_close(lines(out), lines(source))
    assert lines(out, "hashes.jsonl")[2]["weights"] == lines(source, "hashes.jsonl")[2]["weights"], "restored exactly"
    causes = [entry["cause"] for entry in info(out)["inexact"]]
    assert causes == [f"resumed with other ranks ({first}, now {then})"]


def test_a_resume_on_as_many_ranks_is_the_unbroken_run_byte_for_byte(
    two: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    words = flags(tiny_model_dir, tmp_path / "out", "--resume.dir", str(two), "--resume.step", "2")
    assert "Going on from step 2" in trained(2, *words)
    names = ["metrics.jsonl", "hashes.jsonl", "weights/step_4/model.safetensors"]
    names += [f"checkpoints/step_4/trainer/__{rank}_0.distcp" for rank in range(2)]
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (two / name).read_bytes(), name
    assert info(tmp_path / "out")["exact"] is True
