"""docs/architecture.md names files, functions and extensions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from loaded import loaded

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hone"
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_what_one_step_goes_through_is_where_the_page_says() -> None:
    named = re.findall(r"`([\w/]+\.py)::([\w.]+)`", PAGE)
    assert len(named) > 20
    for file, name in named:
        body: list[ast.stmt] = ast.parse((SOURCE / file).read_text()).body
        for part in name.split("."):
            found = [one for one in body if isinstance(one, ast.ClassDef | ast.FunctionDef) and one.name == part]
            assert found, f"{file} has no {name}"
            body = found[0].body


def test_the_page_names_each_extension_and_each_optional_file() -> None:
    extensions, optional = PAGE.split("## Extensions")[1], PAGE.split("Optional files")[1].split("## One step")[0]
    there = {path.parent.name for path in SOURCE.glob("extensions/*/extension.py")}
    assert {name for name in there if f"`{name}`" in extensions} == there
    assert all((SOURCE / file).exists() for file in re.findall(r"`(\w+/\w+\.py)", optional))


def test_a_run_loads_no_optional_file_that_its_config_does_not_ask_for() -> None:
    optional = set(re.findall(r"`(\w+/\w+\.py)`", PAGE.split("Optional files")[1].split("## One step")[0]))
    used = {str(file.relative_to(SOURCE)) for file in loaded()}
    assert len(optional) == 10 and optional & used == {"trainer/optim.py", "trainer/parallel.py"}
