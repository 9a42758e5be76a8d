"""The commands and the Python of docs/scale.md on vLLM: the server's parses, the Python is run as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.extensions.server.config import ServeConfig
from hone.model.hf import load_model, save_model
from hone.model.tokenizer import save_tokenizer

pytestmark = pytest.mark.vllm
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "scale.md").read_text()
SECTION = PAGE.split("\n## vLLM\n")[1].split("\n## ")[0]


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^inference (.*)$", SECTION, re.MULTILINE)
    (program,) = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    config = parse(ServeConfig, shlex.split(command), "inference")
    assert (config.backend, config.model.name) == ("vllm", "outputs/tiny-rl/weights/step_150")
    assert config.weights_root == Path("outputs/tiny-rl/weights")
    for step in (140, 150):
        folder = Path(f"outputs/tiny-rl/weights/step_{step}")
        save_model(load_model("hone/tiny", seed=step), folder)
        save_tokenizer(folder)
    exec(compile(program, "scale.md", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("140 [-") and second.startswith("150 [-")
    assert first.removeprefix("140 ") != second.removeprefix("150 ")
