"""The server of docs/scale.md: its commands and Python run as printed, on a local model and a free port."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from real_server import commanded

from hone.cli import main
from hone.processes import free_port

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "scale.md").read_text().split("\n## Serve a model\n")[1].split("\n## vLLM\n")[0]


def test_the_server_is_started_asked_and_trained_with_as_the_page_says(
    tmp_path: Path, tiny_model_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, training = re.findall(r"^```bash\n(.*?)\n```", PAGE, re.MULTILINE | re.DOTALL)
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    shutil.copytree(tiny_model_dir, tmp_path / "outputs/tiny-rl/weights/step_150")
    port = free_port()
    monkeypatch.setenv("KEY", "secret")
    server_command = shlex.split(command.removeprefix("export KEY=secret\n"))
    with commanded([*server_command, "--port", str(port)], tmp_path):
        exec(compile(program.replace(":8000", f":{port}"), "scale.md", "exec"), {})
        monkeypatch.chdir(tmp_path)
        shutil.copytree(ROOT / "examples", tmp_path / "examples")
        flags = ["--max-steps", "1", "--display", "plain", "--model.name", str(tiny_model_dir)]
        flags += ["--orchestrator.eval", "None", "--output-dir", "outputs/run"]
        assert main([*shlex.split(training.replace(":8000", f":{port}")), *flags]) == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"\[[\d, ]+\] \[[0, ]+\]$", printed, re.MULTILINE)) == 4
    assert "Done: 1 step. Weights: outputs/run/weights/step_1" in printed
