"""The scripts of examples/cloud, as far as they run without a cloud."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.runs import Run

ROOT = Path(__file__).resolve().parents[1]
CLOUD = ROOT / "examples" / "cloud"
TINY = (
    "rl --model.name hone/tiny --orchestrator.env.id reverse-text --orchestrator.batch-size 8 --no-orchestrator.eval "
)
TINY += "--orchestrator.rollouts-per-example 4 --orchestrator.sampling.max-tokens 4 --no-audit --output-dir out"


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """A clean environment with SLURM's commands: they write down their words; `srun` runs them, but for `ray`."""
    for name in ("srun", "scontrol", "ray"):
        script = f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/called\n' + 'exec "$@"\n' * (name == "srun")
        script += "echo node1\n" * (name == "scontrol")
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    own = {"HONE_ENV": str(Path(sys.executable).parents[1]), "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "1"}
    return {"PATH": path, "HOME": str(tmp_path), "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", **own}


def test_a_slurm_job_that_is_ended_is_queued_again_and_goes_on(tmp_path: Path, slurm: dict[str, str]):
    job = ["bash", str(CLOUD / "slurm.sh"), *TINY.split(), "--ckpt", "--max-steps"]
    with subprocess.Popen([*job, "1000"], cwd=tmp_path, env=slurm, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert any(line.startswith("step  ") for line in first.stdout)
        first.send_signal(signal.SIGUSR1)
        first.stdout.read()
    assert first.returncode == 0 and "scontrol requeue 7" in (tmp_path / "called").read_text()
    steps = len(Run(tmp_path / "out").metrics())
    again = subprocess.run([*job, str(steps + 1)], cwd=tmp_path, env=slurm, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert Run(tmp_path / "out").info["status"] == "done" and len(Run(tmp_path / "out").info["resumes"]) == 1


def test_a_slurm_job_on_several_nodes_starts_ray_with_a_token(tmp_path: Path, slurm: dict[str, str]):
    env = {**slurm, "HONE_ENV": str(tmp_path)}  # whose ray is not the real one
    subprocess.run(["bash", str(CLOUD / "slurm_ray.sh"), "rl", "@", "x.toml"], cwd=tmp_path, env=env, check=True)
    ray = (tmp_path / "called").read_text().splitlines()[-1]
    assert ray == "ray symmetric-run --address node1:6379 --min-nodes 2 -- rl @ x.toml --cluster.address auto --resume"


@pytest.mark.parametrize(("files", "message"), [((), "there is no wheel"), (("hone.whl",), "")])
def test_setup_names_what_is_missing_and_installs_with_the_constraints(tmp_path: Path, files, message):
    """With a Python that writes down its words: `make test-wheel` installs a real wheel."""
    (tmp_path / "setup.sh").write_text((CLOUD / "setup.sh").read_text())
    for name in files:
        (tmp_path / name).touch()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in (".venv/bin/python", ".venv/bin/hone"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n')
        (tmp_path / name).chmod(0o755)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / ".venv/bin/python")}
    done = subprocess.run(["bash", "setup.sh"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert message in done.stderr and done.returncode == (2 if message else 0)
    called = (tmp_path / "called").read_text()
    assert ("--constraint constraints.txt hone.whl\ndoctor\n" in called) == (not message)


def test_the_modal_app_is_what_modal_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    modal = pytest.importorskip("modal", reason="pip install modal")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dist").mkdir()
    for name in ("dist/hone_rl-0-py3-none-any.whl", "constraints.txt"):
        (tmp_path / name).touch()
    help_text = subprocess.run(
        [sys.executable, "-m", "modal", "run", str(CLOUD / "modal_app.py"), "--help"], capture_output=True, text=True
    )
    flags = {"--command", "--name", "--usd", "--usd-per-hour", "--gpu", "--files"}
    assert help_text.returncode == 0 and flags <= set(help_text.stdout.split()), help_text.stderr
    monkeypatch.syspath_prepend(str(CLOUD))
    import modal_app

    assert isinstance(modal_app.train, modal.Function) and modal_app.wheel.name.startswith("hone_rl")
    _, *words = modal_app.words("rl @ rl.toml --ckpt.interval 10", "mine", 5, 2.5)
    (tmp_path / "rl.toml").write_text("max_steps = 5")
    config = parse(RLConfig, words, "rl")
    assert (config.budget.usd, config.budget.usd_per_hour, config.ckpt.interval) == (5, 2.5, 10) and config.resume
    assert config.output_dir == Path("/outputs/mine")
