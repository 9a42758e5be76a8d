"""`data.template`, `orchestrator.env.template` and `hone eval --template` at the command line."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from hone.cli import main
from hone.runs import Run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tasks.md"
SECTION = PAGE.read_text().split("## Data with other columns")[1].split("\n## ")[0]


@pytest.fixture(autouse=True)
def problems(here: Path) -> Path:
    """The data set of the page: its own line, and more like it."""
    (shown,) = re.findall(r"```json\n(.*?)\n```", SECTION)
    row = {**json.loads(shown), "nil": None}
    rows = [
        row,
        *({**row, "id": i, "task": {"text": f"{i} + {i}?", "level": 1}, "gold": 2 * i, "nil": None} for i in range(20)),
    ]
    Path("problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sft, rl = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    Path("words_sft.toml").write_text(sft)
    Path("words_rl.toml").write_text(rl)
    return Path("problems.jsonl")


SHORT = ["--max-steps", "2", "--display", "plain"]
FEW = ["--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]


def test_the_section_on_other_columns(capsys):
    """Its commands, cut to two steps: what was trained on and asked is what the templates say."""
    (commands,) = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
    sft, rl, evaluate = (shlex.split(line) for line in commands.splitlines())
    assert main([*sft, *SHORT, "--data.batch-size", "4", "--no-data.pack"]) == 0
    Path("outputs/words-sft/weights/step_200").symlink_to("step_2")
    assert main([*rl, *SHORT, *FEW, "--orchestrator.sampling.max-tokens", "8"]) == 0
    noted = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(noted)[1:5] == evaluate[:4]
    prompts = Run("outputs/words-rl").rollouts(0).column("prompt").to_pylist()
    assert all(re.search(r"Think step by step\.(.|\n)*(\d+ \+ \d+|Mia has .*)\?", prompt) for prompt in prompts), (
        prompts
    )
    Path("outputs/words-rl/weights/step_100").symlink_to("step_2")
    assert main([*evaluate[1:], "-r", "1", "-t", "8"]) == 0
    assert "gsm8k has 2 held-out examples" in capsys.readouterr().out
    (metadata,) = Path("outputs/evals").rglob("metadata.json")
    asked = tomllib.loads(Path("words_rl.toml").read_text())["orchestrator"]["env"]["template"]
    assert json.loads(metadata.read_text())["template"] == asked
