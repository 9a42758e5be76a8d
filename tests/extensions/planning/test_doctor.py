"""What the doctor finds on a machine that is broken for real: variables, ports, folders, packages, programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import venv
from pathlib import Path

import pytest

from hone.cli import main
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.config.shared import DEFAULT_PRECISION
from hone.extensions.planning import doctor
from hone.extensions.planning.doctor import Finding, Subject, diagnose, lines, verdict
from hone.extensions.sandbox import sandbox
from hone.extensions.sandbox.bubblewrap import refusal

ROOT = Path(__file__).resolve().parents[3]
OFFLINE = Subject(offline=True)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 600.0)


def examined(area: str, subject: Subject = OFFLINE) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(subject, [area])}


def rl(*flags: object) -> Subject:
    return Subject(True, parse(RLConfig, [*map(str, flags)], "rl"))


def run_doctor(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str]:
    code = main(["doctor", "--offline", *flags])
    return code, capsys.readouterr().out


def test_a_page_that_ends_with_a_verdict(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4096")
    code, printed = run_doctor(capsys)
    lines = printed.splitlines()
    areas = [line for line in lines[:-1] if line and not line.startswith(" ")]
    assert areas[:6] == ["python", "packages", "device", "threads", "memory", "disk"]
    assert areas[6:] == ["system", "ports", "sandbox", "hub", "wandb"]
    assert any(line.startswith("  warning  OMP_NUM_THREADS ") for line in lines)
    assert code == 0 and lines[-1].startswith("Ready, with ") and list(here.iterdir()) == []


def test_a_run_that_can_not_work(here: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (here / "a.toml").write_text(
        '[model]\nname = "outputs/none/weights/step_3"\n[wandb]\nproject = "p"\n'
        '[orchestrator.env]\nid = "no-such-task"\n'
    )
    for name, value in (("WANDB_MODE", "online"), ("WANDB_API_KEY", ""), ("NETRC", str(here / "none"))):
        monkeypatch.setenv(name, value)
    code, printed = run_doctor(capsys, "--json", "@", "a.toml")
    found = {(one["area"], one["name"]): one for one in json.loads(printed)["findings"]}
    assert found["run", "model"]["text"].startswith("there is no model folder outputs/none/weights/step_3")
    assert "no environment 'no-such-task'" in found["run", "task"]["text"]
    assert found["wandb", "login"]["status"] == "error" and "wandb login" in found["wandb", "login"]["fix"]
    assert code == 1 and "3 errors" in json.loads(printed)["verdict"]


def test_verdict_and_lines() -> None:
    fine, warned = Finding("disk", "output", "ok", "much"), Finding("disk", "RAM", "warning", "little", "buy some")
    broken = Finding("python", "torch", "error", "word " * 30, "pip install 'torch>=2.11'")
    assert verdict([fine], "make quickstart") == "Ready. Next: make quickstart"
    assert verdict([fine, warned], "x") == "Ready, with 1 warning. Next: x"
    assert verdict([broken, broken, warned], "x").startswith("2 errors and 1 warning: fix the errors")
    page = list(lines([fine, broken, warned], 60))
    assert [line for status, line in page if not status] == ["disk", "python"]
    assert max(len(line) for status, line in page if status != "fix") <= 60
    assert ("fix", "                   fix it: pip install 'torch>=2.11'") in page


def test_a_check_that_fails_is_a_warning_and_an_old_python_is_all_that_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(doctor.CHECKS, "memory", lambda subject: iter([1 / 0]))
    (check,) = diagnose(OFFLINE, ["memory"])
    assert (check.name, check.status) == ("check", "warning") and "ZeroDivisionError" in check.text
    monkeypatch.setattr(doctor, "OLDEST", (9, 9))
    assert {finding.area for finding in diagnose(OFFLINE)} == {"python"}


def test_a_torch_that_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import os\nos._exit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    found = examined("device")["torch"]
    assert found.status == "error" and "it crashes the interpreter" in found.text and "torch>=2.11" in found.fix


GPU = ["A100", 80 * 2**30, 80 * 2**30]


@pytest.mark.parametrize(
    ("build", "gpus", "hidden", "name", "status", "words"),
    [
        ("13.0", [GPU, ["A100", 71 * 2**30, 80 * 2**30]], None, "GPU 1", "warning", "9.0 GiB are taken"),
        ("13.0", [], "", "GPU", "ok", "CUDA_VISIBLE_DEVICES hides all"),
        ("13.0", [], None, "GPU", "error", "(CUDA 13.0) can't use it"),
        (None, [], None, "GPU", "error", "this torch is a build for CPUs"),
    ],
)
def test_gpus(build, gpus, hidden, name, status, words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "run_apart", lambda program: (json.dumps(["2.13", build, gpus]), ""))
    monkeypatch.setattr(doctor, "has_gpu_driver", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = examined("device")[name]
    assert found.status == status and words in found.text


def test_packages_that_are_too_old_or_can_not_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "transformers-4.46.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.46.0\n")
    (tmp_path / "pyarrow.py").write_text("raise ImportError('numpy.core.multiarray failed to import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = examined("packages")
    assert found["required"].text.startswith("1 of ") and found["required"].status == "error"
    fix = found["required"].fix
    assert "install -c" in fix and str(ROOT / "constraints.txt") in fix and ">=5.17" in fix
    assert "numpy.core.multiarray failed" in found["pyarrow"].text
    assert "--force-reinstall --no-deps pyarrow" in found["pyarrow"].fix


def test_an_environment_without_packages(tmp_path: Path) -> None:
    """A virtual environment of its own, with hone's source on its path and nothing else."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    command = [str(tmp_path / "venv" / "bin" / "python"), "-m", "hone.cli", "doctor", "--offline", "--json"]
    env = dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in report["findings"]}
    assert {"required", "torch"} <= {name for name, finding in found.items() if finding["status"] == "error"}
    assert "install --python" in found["required"]["fix"] and "torch" in found["required"]["fix"]
    assert "free of" in found["hub cache"]["text"]
    assert found["environment"]["text"] == str(tmp_path / "venv")
    assert "fix the errors" in report["verdict"]


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = examined("ports", rl("--inference.port", port))["server"]
        assert f"{port} can't be used" in found.text and found.fix.startswith("--inference.port ")
        assert str(port) not in found.fix


def test_folders_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "outputs", "is a file"),
        (Path("/proc/outputs"), "can't be written"),
    ):
        found = examined("disk", rl("--output-dir", folder))["output"]
        assert found.status == "error" and words in found.text and "--output-dir" in found.fix, found
    assert examined("disk", rl("--output-dir", tmp_path))["output"].status != "error"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_no_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = examined("sandbox")["bubblewrap"]
    assert found.status == "warning" and "no bwrap on the PATH" in found.text
    assert "apt-get install bubblewrap" in found.fix
    monkeypatch.setattr(sandbox, "Sandbox", lambda: _raise(refusal(["bwrap: Unknown option --disable-userns"])))
    found = examined("sandbox")["bubblewrap"]
    reason = "the sandbox can't be made here: 'bwrap: Unknown option --disable-userns'"
    assert (found.text, found.fix) == (f"{reason}: only tasks that run code need it", "bubblewrap 0.7 or newer")


def _raise(error: Exception) -> None:
    raise error


def test_a_model_that_the_run_fetches_is_known_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("HONE_CACHE", str(tmp_path))
    flags = ["--model.name", "smollm2-135m", "--orchestrator.env.id", "reverse-text"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # which the check sets
    texts = [text for name, _, text, _ in doctor.check_run(rl(*flags)) if name == "model"]
    assert texts[0] == "smollm2-135m is not in hone's cache: the run fetches it"
    assert main(["plan", *flags]) == 0
    assert f"(135M parameters, {DEFAULT_PRECISION})" in capsys.readouterr().out and not list(tmp_path.iterdir())
