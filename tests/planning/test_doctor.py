"""What the doctor finds on a machine that is broken for real: variables, ports, folders, packages, programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from hone.planning import checks, doctor
from hone.planning.doctor import Finding, Subject, examine, lines, verdict

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 600.0


def subject(folder: Path, **env: str) -> Subject:
    return Subject(str(folder / "outputs"), offline=True, env=dict(os.environ) | env)


def named(found: Iterable[tuple[str, ...]]) -> dict[str, Finding]:
    """What a check of this process yields, by name."""
    return {name: Finding("", name, *rest) for name, *rest in found}


def examined(area: str, *path: Path, **env: str) -> dict[str, Finding]:
    """The findings of a check in its process, with these variables, and packages that are on `path` first."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP", "KMP"))}
    before = sys.path[:]
    sys.path[:0] = map(str, path)
    try:
        found = examine(Subject(offline=True, env=variables | env), [area], SECONDS)
    finally:
        sys.path[:] = before
    return {finding.name: finding for finding in found}


def test_a_check_that_fails_or_hangs_keeps_what_it_found(tmp_path: Path) -> None:
    """A port that there can't be makes a check fail, a library that sleeps when it is imported lets one hang."""
    (check,) = examine(Subject(port=10**6, offline=True), ["ports"], SECONDS)
    assert (check.area, check.name, check.status) == ("ports", "check", "warning") and "could not be done" in check.text
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(600)\n")
    sys.path.insert(0, str(tmp_path))
    try:
        found = examine(Subject(offline=True), ["device"], 3.0)
    finally:
        sys.path.remove(str(tmp_path))
    assert found[-1].name == "check" and "gave no answer within 3 s" in found[-1].text


def test_verdict_and_lines() -> None:
    fine, warned = Finding("disk", "output", "ok", "much"), Finding("disk", "RAM", "warning", "little", "buy some")
    broken = Finding("python", "torch", "error", "word " * 30, "pip install 'torch>=2.11'")
    assert verdict([fine], "make quickstart") == "Ready. Next: make quickstart"
    assert verdict([fine, warned], "x") == "Ready, with 1 warning. Next: x"
    assert verdict([broken, broken, warned], "x").startswith("2 errors and 1 warning: mend what is an error")
    page = list(lines([fine, broken, warned], 60))
    assert [line for status, line in page if not status] == ["disk", "python"]
    assert max(len(line) for status, line in page if status != "fix") <= 60
    assert ("fix", "                   mend it: pip install 'torch>=2.11'") in page


def test_the_environment_is_that_of_the_shell() -> None:
    """What hone sets for itself is not what the user has set."""
    code = "import os; os.environ['GOMP_SPINCOUNT'] = '3000'; os.environ['OURS'] = '1'\n"
    code += "from hone.planning.doctor import shell_environment\nenv = shell_environment()\n"
    code += "assert 'OURS' not in env and env['THEIRS'] == 'a=b', env"
    subprocess.run([sys.executable, "-c", code], env=dict(os.environ) | {"THEIRS": "a=b"}, check=True)


@pytest.mark.parametrize(
    ("variables", "words", "fix"),
    [
        ({"OMP_NUM_THREADS": "4096"}, "4096, but this process has", "export OMP_NUM_THREADS="),
        ({"OMP_NUM_THREADS": "many"}, "'many' is no number", "unset OMP_NUM_THREADS"),
        ({"GOMP_SPINCOUNT": "300000"}, "keep their core", "unset GOMP_SPINCOUNT"),
        ({"GOMP_SPINCOUNT": "INFINITY"}, "keep their core", "unset GOMP_SPINCOUNT"),
        ({"OMP_WAIT_POLICY": "active"}, "keep their core", "OMP_WAIT_POLICY=PASSIVE"),
        ({"KMP_BLOCKTIME": "infinite"}, "keep their core", "KMP_BLOCKTIME=0"),
    ],
)
def test_variables_of_threads(tmp_path: Path, variables: dict[str, str], words: str, fix: str) -> None:
    found = named(checks.threads(Subject(env=variables)))[next(iter(variables))]
    assert found.status == "warning" and words in found.text and fix in found.fix
    quiet = named(checks.threads(Subject(env={})))
    assert "hone chooses" in quiet["OMP_NUM_THREADS"].text and {"GOMP_SPINCOUNT", "KMP_BLOCKTIME"}.isdisjoint(quiet)


def test_the_quota_of_a_container_in_both_versions(tmp_path: Path) -> None:
    assert checks.cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert checks.cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert checks.cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert checks.cpu_quota(tmp_path) == 1.5


def test_a_torch_that_breaks(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12:\\n cannot open')\n")
    assert "ImportError: libcudart.so.12: cannot open" in examined("device", tmp_path)["torch"].text
    (tmp_path / "torch.py").write_text("import os\nos._exit(7)\n")
    dead = examined("device", tmp_path)["torch"]
    assert dead.status == "error" and "ends the interpreter" in dead.text and "torch>=2.11" in dead.fix


GIB = 2**30


@pytest.mark.parametrize(
    ("capability", "taken", "archs", "status", "words"),
    [
        ((9, 0), 0, ["sm_80", "sm_90"], "ok", "compute capability 9.0"),
        ((8, 6), 0, ["sm_80"], "ok", "80.0 GiB free"),
        ((9, 0), 0, ["compute_80"], "ok", "A100"),
        ((9, 0), 0, [], "ok", "A100"),  # ROCm, whose code has other names
        ((12, 0), 0, ["sm_80", "sm_90"], "error", "has no code for it"),
        ((7, 0), 0, ["sm_70"], "warning", "no bf16"),
        ((8, 0), 9, ["sm_80"], "warning", "9.0 GiB are taken"),
    ],
)
def test_gpus(capability: tuple[int, int], taken: int, archs: list[str], status: str, words: str) -> None:
    found = Finding("", *checks.look_at_gpu("GPU 0", "A100", capability, (80 - taken) * GIB, 80 * GIB, archs))
    assert found.status == status and words in found.text


@pytest.mark.parametrize(
    ("build", "caught", "visible", "words", "fix"),
    [
        ("13.0", [], "7", "CUDA_VISIBLE_DEVICES=7", "unset CUDA_VISIBLE_DEVICES"),
        ("13.0", [], None, "it gives no reason", "nvidia-smi"),
        ("13.0", ["The NVIDIA driver on your system is too old (found 11040)."], "0", "is too old", "whl/cu126"),
        (None, [], None, "this torch is a build for CPUs", "torch>=2.11"),
    ],
)
def test_why_a_gpu_is_not_used(build: str | None, caught: list[str], visible: str, words: str, fix: str) -> None:
    found = Finding("", *checks.unused_gpu(build, caught, visible))
    assert found.status == "error" and words in found.text and fix in found.fix and "--no-deps" not in found.fix


def test_an_old_python_is_all_that_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OLDEST", (9, 9))
    assert {finding.area for finding in doctor.diagnose(subject(tmp_path))} == {"python"}
    assert set(checks.CHECKS) == set(doctor.AREAS)


def test_where_the_hub_keeps_its_files() -> None:
    from huggingface_hub import constants

    assert str(checks.hub_cache(os.environ)) == constants.HF_HUB_CACHE
    assert checks.hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert checks.hub_cache({"XDG_CACHE_HOME": "/x", "HF_HOME": "/y"}) == Path("/y/hub")
    assert checks.hub_cache({"HF_HOME": "/y", "HF_HUB_CACHE": "/z"}) == Path("/z")


def test_packages_that_are_too_old_or_can_not_be_imported(tmp_path: Path) -> None:
    info = tmp_path / "transformers-4.46.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.46.0\n")
    (tmp_path / "pyarrow.py").write_text("raise ImportError('numpy.core.multiarray failed to import')\n")
    (tmp_path / "datasets.py").write_text("import os\nos._exit(3)\n")
    found = examined("packages", tmp_path)
    assert found["required"].text.startswith("1 of ") and found["required"].status == "error"
    fix = found["required"].fix
    assert "install -c" in fix and str(ROOT / "constraints.txt") in fix and "'transformers>=5.17" in fix
    assert "numpy.core.multiarray failed" in found["pyarrow"].text
    assert "--force-reinstall --no-deps pyarrow" in found["pyarrow"].fix
    assert found["datasets"].status == "error" and "ends the interpreter" in found["datasets"].text


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
    assert found["environment"]["text"] == f"virtual environment {tmp_path / 'venv'}"
    assert "mend what is an error" in report["verdict"]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for kind, server in (("", "--port "), ("rl", "--inference.port "), ("sft", None)):
            one = Subject(port=port, kind=kind, env={"MASTER_PORT": str(port)})
            found = named(checks.ports(one))
            assert f"{port} can't be used" in found["torchrun"].text
            assert "server" not in found if server is None else found["server"].fix.startswith(server)
            assert server is None or str(port) not in found["server"].fix
    assert named(checks.ports(one))["torchrun"].status == "ok"
    assert named(checks.ports(subject(tmp_path, MASTER_PORT="http")))["MASTER_PORT"].fix == "unset MASTER_PORT"


def test_folders_that_can_not_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, words in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "outputs", "is a file"),
        (Path("/proc/outputs"), "can't be written"),
    ):
        found = named(checks.disk(Subject(str(folder), env={})))["output"]
        assert found.status == "error" and words in found.text and "--output-dir" in found.fix, found
    fine = named(checks.disk(subject(tmp_path)))
    assert " MB/s" in fine["output"].text and list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_limits_and_encoding() -> None:
    code = "import resource, os, json\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))\n"
    code += "from hone.planning.checks import system\nfrom hone.planning.doctor import Subject\n"
    code += "print(json.dumps(list(system(Subject(env=dict(os.environ))))))"
    env = dict(os.environ) | {"LC_ALL": "en_US.ISO-8859-1", "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    found = named(json.loads(done.stdout))
    assert found["open files"].status == "warning" and found["open files"].fix == "ulimit -n 4096"
    assert found["encoding"].status == "warning" and "en_US.ISO-8859-1" in found["encoding"].text


def test_no_bubblewrap(tmp_path: Path) -> None:
    found = examined("extras", PATH=str(tmp_path))["sandbox"]
    assert found.status == "warning" and "no bwrap on the PATH" in found.text
    assert "apt-get install bubblewrap" in found.fix


def test_hub_and_wandb(tmp_path: Path) -> None:
    home = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "WANDB_API_KEY": ""}
    blobs = tmp_path / "hub" / "models--some--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a").write_bytes(b"x" * 2**20)
    found = named(checks.hub(subject(tmp_path, **home)))
    assert found["cache"].text == f"{tmp_path / 'hub'}: 1 model, 1 MiB" and found["login"].fix == "hf auth login"
    assert found["access"].text == "not asked (--offline)"
    (tmp_path / "token").write_text("hf_x\n")
    found = named(checks.hub(subject(tmp_path, **home | {"HF_HUB_OFFLINE": "1"})))
    assert "a token is there" in found["login"].text and "hf_x" not in str(list(map(asdict, found.values())))
    assert found["access"].fix == "unset HF_HUB_OFFLINE"
    for env, text in (
        ({"WANDB_API_KEY": "secret", "WANDB_MODE": "online"}, "a key is there (WANDB_API_KEY)"),
        ({"WANDB_MODE": "offline"}, "not needed: mode offline"),
    ):
        assert named(checks.wandb(subject(tmp_path, **env)))["login"].text == text


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url, began = f"http://127.0.0.1:{deaf.getsockname()[1]}", time.monotonic()
        assert checks.unreachable(url)
        assert time.monotonic() - began < checks.NETWORK_SECONDS + 60
    assert "refused" in checks.unreachable(url)
