"""What the doctor finds on a machine that is broken for real: variables, ports, folders, packages, programs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import wait_until_gone

from hone.planning import doctor, doctor_machine, doctor_python, doctor_services, doctor_threads
from hone.planning.doctor import Finding, Subject, examine, lines, verdict
from hone.planning.doctor_device import _covered, _cuda_command, _gpus, _unused
from hone.planning.doctor_torch import TorchChild

ROOT = Path(__file__).resolve().parents[2]


def names(findings) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def subject(folder: Path, **env: str) -> Subject:
    return Subject(folder / "outputs", env=dict(os.environ) | env, offline=True)


def child(code: str, python: str = sys.executable, **env: str) -> list[Finding]:
    """The findings that `code` yields as `found`, in a process with these variables."""
    program = f"import json\nfrom hone.planning.doctor import *\nsubject = Subject(offline=True)\n{code}\n"
    program += "print(json.dumps([f.record() for f in found]))"
    path = os.pathsep.join([str(ROOT / "src"), *([env.pop("PYTHONPATH")] if "PYTHONPATH" in env else [])])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP", "OMP", "KMP"))}
    done = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, env=variables | {"PYTHONPATH": path} | env
    )
    assert done.returncode == 0, done.stderr
    return [Finding(**record) for record in json.loads(done.stdout.splitlines()[-1])]


def test_checks_that_fail_or_hang_are_told_and_the_rest_is_kept(tmp_path):
    def fails(_: Subject) -> Iterator[Finding]:
        yield Finding("a", "first", "ok", "fine")
        raise OSError("gone")

    def hangs(_: Subject) -> Iterator[Finding]:
        yield Finding("b", "begun", "ok", "fine")
        for_ever.wait()

    for_ever = threading.Event()
    found = examine(subject(tmp_path), {"a": fails, "b": hangs}, seconds=2)  # and it comes to an end
    for_ever.set()
    assert [(f.area, f.name, f.status) for f in found] == [
        ("a", "first", "ok"), ("a", "check", "warning"), ("b", "begun", "ok"), ("b", "check", "warning"),
    ]  # fmt: skip
    assert "OSError: gone" in found[1].text and "no answer within 2 s" in found[3].text


def test_verdict_and_lines():
    fine, warned = Finding("disk", "output", "ok", "much"), Finding("disk", "RAM", "warning", "little", "buy some")
    broken = Finding("python", "torch", "error", "word " * 30, "pip install 'torch>=2.11'")
    assert verdict([fine], "make quickstart") == "Ready. Next: make quickstart"
    assert verdict([fine, warned], "x") == "Ready, with 1 warning. Next: x"
    assert verdict([broken, broken, warned], "x").startswith("2 errors and 1 warning: mend what is an error")
    told = list(lines([fine, broken, warned], 60))
    assert [line for status, line in told if not status] == ["disk", "python"]
    assert max(len(line) for status, line in told if status != "fix") <= 60
    assert ("fix", "                   mend it: pip install 'torch>=2.11'") in told


def test_the_environment_is_that_of_the_shell():
    """What hone sets for itself is not what the user has set."""
    code = "import os; os.environ['GOMP_SPINCOUNT'] = '3000'; os.environ['OURS'] = '1'\nfound = []\n"
    code += "env = shell_environment(); assert 'OURS' not in env and env['THEIRS'] == 'a=b', env"
    assert child(code, THEIRS="a=b") == []


@pytest.mark.parametrize(
    ("variables", "name", "words", "fix"),
    [
        ({"OMP_NUM_THREADS": "4096"}, "OMP_NUM_THREADS", "4096, but this process has", "export OMP_NUM_THREADS="),
        ({"OMP_NUM_THREADS": "many"}, "OMP_NUM_THREADS", "'many' is no number", "unset OMP_NUM_THREADS"),
        ({"GOMP_SPINCOUNT": "300000"}, "GOMP_SPINCOUNT", "keep their core", "unset GOMP_SPINCOUNT"),
        ({"GOMP_SPINCOUNT": "INFINITY"}, "GOMP_SPINCOUNT", "keep their core", "unset GOMP_SPINCOUNT"),
        ({"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY", "keep their core; hone sets", "OMP_WAIT_POLICY=PASSIVE"),
        ({"KMP_BLOCKTIME": "infinite"}, "KMP_BLOCKTIME", "infinite", "KMP_BLOCKTIME=0"),
    ],
)
def test_variables_of_threads(variables, name, words, fix):
    found = names(child("from hone.planning.doctor_threads import settings\nfound = settings(subject)", **variables))
    assert found[name].status == "warning" and words in found[name].text and fix in found[name].fix


def test_no_variables_of_threads():
    found = names(child("from hone.planning.doctor_threads import settings\nfound = settings(subject)"))
    assert found["OMP_NUM_THREADS"].status == "ok" and "hone chooses" in found["OMP_NUM_THREADS"].text
    assert {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"}.isdisjoint(found)


def test_the_quota_of_a_container(tmp_path):
    """Both versions of the kernel's files."""
    assert doctor_threads.cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert doctor_threads.cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert doctor_threads.cpu_quota(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert doctor_threads.cpu_quota(tmp_path) == 1.5


def test_what_the_busy_wait_means():
    own = doctor_threads.judged(86, 3.3, 60, {"GOMP_SPINCOUNT": "300000"})
    assert own.status == "warning" and "86 GFLOP/s alone, 3 beside" in own.text and "GOMP_SPINCOUNT=1000" in own.fix
    other = doctor_threads.judged(86, 3.3, 60, {})
    assert other.status == "ok" and "torchrun" in other.text and other.fix.startswith("export GOMP_SPINCOUNT")
    fine = doctor_threads.judged(86, 50, 60, {})
    assert fine.status == "ok" and not fine.fix and "other processes" not in fine.text
    busy = doctor_threads.judged(0.31, 2.4, 2.2, {})
    assert "do 0.3 GFLOP/s alone, 2 beside" in busy.text and "other processes kept the cores busy" in busy.text


@pytest.mark.skipif(len(doctor_threads.usable_cpus()) < 2, reason="one core")
def test_the_busy_wait_is_measured(tmp_path):
    (found,) = doctor_threads.busy_wait(subject(tmp_path))
    assert found.name == "busy wait" and "GFLOP/s alone" in found.text


def test_a_torch_that_breaks_is_told(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12:\\n cannot open')\n")
    broken = TorchChild(dict(os.environ) | {"PYTHONPATH": str(tmp_path)})
    assert broken.facts["error"] == "ImportError: libcudart.so.12: cannot open"
    broken.close()
    (tmp_path / "torch.py").write_text("import os\nos._exit(7)\n")
    dead = TorchChild(dict(os.environ) | {"PYTHONPATH": str(tmp_path)})
    assert dead.facts["error"] == "the interpreter ended with exit code 7"
    dead.close()


def test_code_for_a_gpu():
    assert _covered("sm_90", ["sm_80", "sm_90"]) and _covered("sm_86", ["sm_80"]) and _covered("sm_90", ["compute_80"])
    assert not _covered("sm_70", ["sm_80", "sm_90"]) and not _covered("sm_120", ["sm_80", "sm_90"])


SMI = """#!/bin/sh
case "$*" in
  *index,uuid*) echo "0, GPU-aa"; echo "1, GPU-bb" ;;
  *"-i 0 "*compute-apps*) echo "77, 9000 MiB" ;;
  *compute-apps*) echo "88, 1 MiB" ;;
  *) echo "0, NVIDIA A100, 81920, 9000, 550.54" ;;
esac
"""


@pytest.fixture
def driver(tmp_path, monkeypatch) -> None:
    """An nvidia-smi that knows two GPUs, the first of them taken by process 77."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def gpu(uuid: str, taken: int, capability: tuple[int, int] = (8, 0)) -> dict:
    return {"name": "A100", "uuid": uuid, "total": 80 * 2**30, "free": (80 - taken) * 2**30, "capability": capability}


def test_who_has_a_gpu_is_asked_by_the_number_of_the_driver(driver):
    """torch's GPU 0 is another one where CUDA_VISIBLE_DEVICES names them in another order."""
    found = names(_gpus({"gpus": [gpu("bb", 0), gpu("aa", 9)], "archs": ["sm_80"], "hip": None}))
    assert found["GPU 0"].status == "ok" and found["GPU 1"].status == "warning"
    assert "9.0 GiB are taken, by process 77" in found["GPU 1"].text and "(nvidia-smi -i 0)" in found["GPU 1"].fix
    (unknown, *_) = _gpus({"gpus": [gpu("", 9)], "archs": ["sm_80"], "hip": None})
    assert unknown.text.endswith("taken by others") and "(nvidia-smi)" in unknown.fix


def test_a_gpu_of_amd_has_code_under_another_name():
    (found,) = _gpus({"gpus": [gpu("", 0, (9, 0))], "archs": ["gfx90a"], "hip": "6.2"})
    assert found.status == "ok", found


def test_why_a_gpu_is_not_used(driver):
    facts = {"cuda_build": "13.0", "warnings": []}
    named = _unused(facts, "7")
    assert "CUDA_VISIBLE_DEVICES=7" in named.text and named.fix.startswith("unset CUDA_VISIBLE_DEVICES")
    assert "it gives no reason" in _unused(facts, None).text
    old = _unused(facts | {"warnings": ["The NVIDIA driver on your system is too old (found version 11040)."]}, "0")
    assert "the driver is too old" in old.text and "whl/cu126" in old.fix
    cpu = _unused(facts | {"cuda_build": None}, None)
    assert cpu.status == "error" and "NVIDIA A100 is there, but this torch is a build for CPUs" in cpu.text
    assert "--no-deps" not in _cuda_command(), "a build for CUDA needs CUDA's libraries beside it"


def test_the_load_is_that_of_all_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (60.0, 60.0, 60.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(doctor_threads, "usable_cpus", lambda: [0, 1])
    assert names(doctor_threads.settings(subject(tmp_path)))["load"].status == "ok"
    monkeypatch.setattr(os, "getloadavg", lambda: (120.0, 60.0, 60.0))
    assert "on 128 cores" in names(doctor_threads.settings(subject(tmp_path)))["load"].text


def test_the_busy_process_ends_with_the_one_that_measures():
    code = "import os\nfrom hone.planning.doctor_threads import _busy\nprint(_busy(0).pid, flush=True)\nos._exit(0)"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=300)
    wait_until_gone({int(done.stdout)})


def test_an_old_python_is_all_that_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_python, "OLDEST", (9, 9))
    found = doctor.diagnose(subject(tmp_path))
    assert {finding.area for finding in found} == {"python"} and found[0].status == "error"


def test_each_check_has_its_place_in_the_report():
    assert {area for checks in doctor.all_checks() for area in checks} <= set(doctor.AREAS)


def test_where_the_hub_keeps_its_files(tmp_path):
    from huggingface_hub import constants

    ours = doctor.hub_cache(os.environ)
    assert str(ours) == constants.HF_HUB_CACHE
    assert doctor.hub_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert doctor.hub_cache({"XDG_CACHE_HOME": "/x", "HF_HOME": "/y"}) == Path("/y/hub")
    assert doctor.hub_cache({"HF_HOME": "/y", "HF_HUB_CACHE": "/z"}) == Path("/z")


@pytest.fixture
def fake_packages(tmp_path) -> Path:
    """A folder of packages in which transformers is of long ago."""
    info = tmp_path / "site" / "transformers-4.46.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.46.0\n")
    return tmp_path / "site"


PACKAGES = "from hone.planning.doctor_python import packages, imports\nfound = [*packages(subject)]"


def test_a_package_that_is_too_old(fake_packages):
    found = names(child(PACKAGES, PYTHONPATH=str(fake_packages)))
    assert found["transformers"].status == "error" and "required" not in found
    assert found["transformers"].text.startswith("4.46.0 is installed; ") and ">=5" in found["transformers"].text
    fix = found["transformers"].fix
    assert "install -c" in fix and str(ROOT / "constraints.txt") in fix and "'transformers>=5.17'" in fix


def test_an_environment_without_packages(tmp_path):
    """A virtual environment of its own, with hone's source on its path and nothing else."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = str(tmp_path / "venv" / "bin" / "python")
    found = child(PACKAGES + "\nfrom hone.planning.doctor_python import python\nfound += python(subject)", python)
    by_name = names(found)
    assert by_name["required"].status == "error" and "missing: torch, numpy, tokenizers" in by_name["required"].text
    assert "install --python" in by_name["required"].fix and "torch" in by_name["required"].fix
    assert by_name["environment"].text == f"virtual environment {tmp_path / 'venv'}"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": str(ROOT / "src")
    }
    command = [python, "-m", "hone.cli", "doctor", "--offline", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    errors = {finding["name"] for finding in told["findings"] if finding["status"] == "error"}
    assert {"required", "torch"} <= errors and "mend what is an error" in told["verdict"]


def test_a_package_that_can_not_be_imported(tmp_path):
    (tmp_path / "pyarrow.py").write_text("raise ImportError('numpy.core.multiarray failed to import')\n")
    (tmp_path / "datasets.py").write_text("import os\nos._exit(3)\n")
    code = "from hone.planning.doctor_python import imports\nfound = imports(subject)"
    found = names(child(code, PYTHONPATH=str(tmp_path)))
    assert set(found) == {"pyarrow", "datasets"} and all(f.status == "error" for f in found.values())
    assert "numpy.core.multiarray failed" in found["pyarrow"].text and "exit code 3" in found["datasets"].text
    assert "--force-reinstall --no-deps pyarrow" in found["pyarrow"].fix


def test_a_port_that_is_taken_and_by_whom(tmp_path):
    code = "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n"
    code += "print(s.getsockname()[1], flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        one = subject(tmp_path, MASTER_PORT=str(port))
        one.port = port
        found = names(doctor_services.ports(one))
        one.kind = "rl"
        assert names(doctor_services.ports(one))["server"].fix.startswith("--inference.port ")
        one.kind = "sft"
        assert "server" not in names(doctor_services.ports(one)), "it has none"
        one.kind = ""
        other.communicate("\n")
    for name in ("server", "torchrun"):
        assert found[name].status == "warning" and f"{port} can't be used" in found[name].text
        assert f"process {other.pid} listens there" in found[name].text
    assert found["server"].fix.startswith("--port ") and str(port) not in found["server"].fix
    assert names(doctor_services.ports(one))["server"].status == "ok"
    assert names(doctor_services.ports(subject(tmp_path, MASTER_PORT="http")))["MASTER_PORT"].fix == "unset MASTER_PORT"


def test_folders_that_can_not_be_used(tmp_path):
    (tmp_path / "file").write_text("")
    for folder, words in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "outputs", "is a file"),
        (Path("/proc/outputs"), "can't be written"),
    ):
        one = subject(tmp_path)
        one.output_dir = folder
        found = names(doctor_machine.disk(one))["output"]
        assert found.status == "error" and words in found.text and "--output-dir" in found.fix, found
    fine = names(doctor_machine.disk(subject(tmp_path)))
    assert " MB/s" in fine["output"].text and list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk(tmp_path):
    """A tmpfs of 1 MiB with a file that fills it, in a mount namespace of its own."""
    (tmp_path / "small").mkdir()
    code = "from pathlib import Path\nfrom hone.planning.doctor_machine import disk\n"
    code += f"subject.output_dir = Path({str(tmp_path / 'small')!r}) / 'outputs'\nfound = disk(subject)"
    script = tmp_path / "look.py"
    script.write_text(
        f"import json\nfrom hone.planning.doctor import *\nsubject = Subject(offline=True)\n{code}\n"
        "print(json.dumps([f.record() for f in found]))"
    )
    shell = f"mount -t tmpfs -o size=1m none {tmp_path}/small && {{ head -c 2000000 /dev/zero > {tmp_path}/small/full; "
    shell += f"{sys.executable} {script}; }}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", shell], capture_output=True, text=True,
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    found = names(Finding(**record) for record in json.loads(done.stdout))
    assert found["output"].status == "error" and "tmpfs" in found["output"].text


def test_limits_and_encoding():
    code = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 4096))\n"
    code += "from hone.planning.doctor_machine import system\nfound = system(subject)"
    found = names(child(code, LC_ALL="en_US.ISO-8859-1", PYTHONIOENCODING="latin-1"))
    assert found["open files"].status == "warning" and found["open files"].fix == "ulimit -n 4096"
    assert found["encoding"].status == "warning" and "en_US.ISO-8859-1" in found["encoding"].text


def test_no_bubblewrap(tmp_path):
    (found,) = doctor_services.sandbox(subject(tmp_path, PATH=str(tmp_path)))
    assert (
        found.status == "warning" and "no bwrap on the PATH" in found.text and "apt-get install bubblewrap" in found.fix
    )


def test_hub_and_wandb(tmp_path):
    home = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": "", "HF_TOKEN": "", "HF_HUB_OFFLINE": "", "WANDB_API_KEY": ""}
    blobs = tmp_path / "hub" / "models--some--model" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "a").write_bytes(b"x" * 2**20)
    found = names(doctor_services.hub(subject(tmp_path, **home)))
    assert found["cache"].text == f"{tmp_path / 'hub'}: 1 model, 1 MiB" and found["login"].fix == "hf auth login"
    assert found["access"].text == "not asked (--offline)"
    (tmp_path / "token").write_text("hf_x\n")
    found = names(doctor_services.hub(subject(tmp_path, **home | {"HF_HUB_OFFLINE": "1"})))
    assert "a token is there" in found["login"].text and "hf_x" not in str(found)
    assert found["access"].fix == "unset HF_HUB_OFFLINE"
    with_key = names(doctor_services.wandb(subject(tmp_path, WANDB_API_KEY="secret", WANDB_MODE="online")))
    assert with_key["login"].text == "a key is there (WANDB_API_KEY)"
    offline = names(doctor_services.wandb(subject(tmp_path, WANDB_MODE="offline")))
    assert offline["login"].text == "not needed: mode offline"


def test_a_server_that_does_not_answer_is_given_up():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        began = time.monotonic()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        assert doctor_services.unreachable(url)
        assert time.monotonic() - began < doctor.NETWORK_SECONDS + 60
    assert "refused" in doctor_services.unreachable(url)


def test_commands_that_install_never_name_torch_alone():
    assert "torch" not in doctor_python.install_command("wandb")
    assert "-c" in doctor_python.install_command("torch>=2.11")
