"""`hone eval -b URL` against `hone inference`: the rows are those of an evaluation in process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hone.cli import main

ROWS = ("example_id", "completion", "turns", "prompt_tokens", "completion_tokens", "reward", "outcome", "components")


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ROWS if name in line} for line in lines]


@pytest.mark.parametrize("task", ["reverse-text", "guessing"])
def test_an_evaluation_over_http_gives_the_rows_of_one_in_process(task, tiny_model_dir, guesser, tmp_path):
    """Also of conversations, each of which goes on by itself over HTTP, and in lock-step in process."""
    model = tiny_model_dir if task == "reverse-text" else guesser
    flags = ["-m", str(model), "-n", "4", "-r", "2", "-t", "12", "--seed", "3"]
    assert main(["eval", task, *flags, "--output-dir", str(tmp_path / "local")]) == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "hone.cli", "inference", "--model.name", str(model), "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("Serving "))
        url = line.rsplit(" at ", 1)[1].strip()
        assert main(["eval", task, "-b", url, *flags, "--output-dir", str(tmp_path / "served")]) == 0
    finally:
        server.terminate()
        server.wait(300)
    assert rows(tmp_path / "served") == rows(tmp_path / "local") and len(rows(tmp_path / "local")) == 8
