"""What the loops in a program's own hands are compared with: `COMMAND` of a file with its `SETTINGS`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.cli import main


@pytest.fixture(scope="module")
def settings(request: pytest.FixtureRequest, tiny_model_dir: Path) -> dict:
    return request.module.SETTINGS | {"model.name": str(tiny_model_dir)}


@pytest.fixture(scope="module")
def by_command(request: pytest.FixtureRequest, settings: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("command") / "out"
    flags = [
        word
        for name, value in settings.items()
        for word in (f"--{name}", value if isinstance(value, str) else json.dumps(value))
    ]
    assert main([*request.module.COMMAND, *flags, "--output-dir", str(out), "--display", "none"]) == 0
    return out
