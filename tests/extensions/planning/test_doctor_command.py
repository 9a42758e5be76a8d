"""`hone doctor` as it is typed: the page, JSON, exit codes, and what a run needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import patient

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.extensions.planning.config import DoctorConfig

ROOT = Path(__file__).resolve().parents[3]


def doctor(cwd: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, patient.__file__, "doctor", "--offline", *flags],
        capture_output=True, text=True, cwd=cwd, env=dict(os.environ) | env,
    )  # fmt: skip


def findings(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], dict[str, str]]:
    return {(one["area"], one["name"]): one for one in json.loads(done.stdout)["findings"]}


def test_a_page_that_ends_with_a_verdict(tmp_path) -> None:
    done = doctor(tmp_path, OMP_NUM_THREADS="4096")
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    areas = [line for line in lines[:-1] if line and not line.startswith(" ")]
    assert areas[:6] == ["python", "packages", "device", "threads", "memory", "disk"]
    assert areas[6:] == ["system", "ports", "sandbox", "hub", "wandb"]
    assert any(line.startswith("  warning  OMP_NUM_THREADS ") for line in lines)
    assert lines[-1].startswith("Ready, with ") and lines[-1].endswith("Next: hone plan @ FILE.toml")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_can_not_work(tmp_path) -> None:
    (tmp_path / "a.toml").write_text(
        '[model]\nname = "outputs/none/weights/step_3"\n[wandb]\nproject = "p"\n'
        '[orchestrator.env]\nid = "no-such-task"\n'
    )
    done = doctor(
        tmp_path, "--json", "@", "a.toml", WANDB_MODE="online", WANDB_API_KEY="", NETRC=str(tmp_path / "none")
    )
    found = findings(done)
    assert done.returncode == 1
    assert found["run", "model"]["text"].startswith("there is no model folder outputs/none/weights/step_3")
    assert "no environment 'no-such-task'" in found["run", "task"]["text"]
    assert found["wandb", "login"]["status"] == "error" and "wandb login" in found["wandb", "login"]["fix"]
    assert "3 errors" in json.loads(done.stdout)["verdict"]


def test_which_run_a_command_line_means() -> None:
    assert type(parse(DoctorConfig, ["--offline"], "hone doctor")) is DoctorConfig
    assert (
        type(parse(DoctorConfig, ["--orchestrator.env", "countdown", "--json"], "hone doctor")).__base__ is DoctorConfig
    )
    for name in ("tiny", "tiny_sft"):
        file = ROOT / "examples" / "reverse_text" / f"{name}.toml"
        config = parse(DoctorConfig, ["@", str(file), "--offline"], "hone doctor")
        assert isinstance(config, RLConfig if name == "tiny" else SFTConfig) and config.run is not None
        assert config.offline and config.run.max_steps == tomllib.loads(file.read_text())["max_steps"]
