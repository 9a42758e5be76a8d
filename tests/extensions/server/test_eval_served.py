"""`hone eval -b URL` against the server of `hone inference`: the rows are those of an evaluation in process."""

from __future__ import annotations

import json
from pathlib import Path

from real_server import serving

from hone.cli import main
from hone.model.hf import load_model

ROWS = ("example_id", "completion", "turns", "prompt_tokens", "completion_tokens", "reward", "outcome", "components")


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ROWS if name in line} for line in lines]


def test_an_evaluation_over_http_gives_the_rows_of_one_in_process(guesser, tmp_path):
    """Also of conversations, each of which goes on by itself over HTTP, and in lock-step in process."""
    flags = ["-n", "4", "-r", "2", "-t", "12", "--seed", "3"]
    assert main(["eval", "guessing", "-m", str(guesser), *flags, "--output-dir", str(tmp_path / "local")]) == 0
    with serving(load_model(str(guesser), precision="bf16_linear")) as served:
        argv = ["eval", "guessing", "-m", "hone/tiny", "-b", f"{served.url}/v1", *flags]
        assert main([*argv, "--output-dir", str(tmp_path / "served")]) == 0
    assert rows(tmp_path / "served") == rows(tmp_path / "local") and len(rows(tmp_path / "local")) == 8
