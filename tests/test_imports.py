"""Rooms import in one direction, heavy libraries are imported where they are used, and `import hone` is light."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from circles import CORE, against_the_order, imports

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hone"

# What these rooms may need when they are imported; anything else is imported inside the functions that use it.
LIGHT = {"torch", "numpy", "safetensors", "tokenizers"}
LIGHT_ROOMS = ("algorithms", "inference", "model", "trainer")


def modules(folder: Path = SOURCE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def room_of(module: Path) -> str:
    relative = module.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Full names of imported modules: `from hone.a import b` gives hone.a, `from hone import a` gives hone.a."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            if node.module == "hone":
                yield from (f"hone.{alias.name}" for alias in node.names)
            elif node.module:
                yield node.module


def nodes_of(module: Path) -> Iterator[ast.AST]:
    """All nodes, but those of a script's `if __name__ == "__main__"`."""
    queue: list[ast.AST] = [ast.parse(module.read_text())]
    while queue:
        node = queue.pop()
        yield node
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"):
            queue += ast.iter_child_nodes(node)


def test_rooms_import_those_before_them_only() -> None:
    """`trainer/sft.py` is a script that torchrun starts."""
    assert {room_of(module) for module in modules()} - {"__init__", "extensions"} == set(" ".join(CORE).split())
    assert against_the_order(imports()) == [("trainer/sft.py", "cli.py")]


def test_tasks_see_the_environment_layer_only() -> None:
    allowed = {"environments", "grading", "trust", "types", "errors", "rng"}
    for module in modules(ROOT / "environments"):
        for name in imported(nodes_of(module)):
            if name.startswith("hone."):
                assert name.split(".")[1] in allowed, f"{module.name} imports {name}"


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint('\\n'.join({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"torch", "transformers", "datasets", "pyarrow", "scipy", "matplotlib", "wandb", "renderers", "tokenizers"}


def test_importing_hone_loads_nothing_heavy() -> None:
    assert not loaded_after("import hone") & (HEAVY | {"numpy", "pydantic"})


def test_parsing_a_config_and_printing_help_load_nothing_heavy() -> None:
    argv = f"['sft', '@', {str(ROOT / 'examples/reverse_text/tiny_sft.toml')!r}, '--bogus', '1']"
    code = f"from hone.cli import main\nassert main({argv}) == 2"
    assert not loaded_after(code) & HEAVY
    names = "config.dump config.parse config.rl config.eval runs runs.writer runs.signals"
    assert not loaded_after("\n".join(f"import hone.{name}" for name in names.split())) & HEAVY


def test_the_light_rooms_load_no_heavy_library() -> None:
    names = ", ".join(f"hone.{room}" for room in LIGHT_ROOMS)
    assert not loaded_after(f"import {names}") & (HEAVY - LIGHT)


PART_OF = {"starlette": "fastapi", "pydantic_core": "pydantic", "typing_extensions": "pydantic", "markupsafe": "jinja2"}
PART_OF |= {"pydantic_config": "prime-pydantic-config", "sympy": "math-verify", "latex2sympy2_extended": "math-verify"}
"""Modules that a dependency needs itself, or is imported as."""


def test_what_hone_imports_is_a_dependency() -> None:
    """Also what comes along with another package today: openai once brought httpx, and then did not."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    declared = {re.split(r"[\[<>=]", one)[0].lower().replace("-", "_") for some in lists for one in some}
    tasks = {path.stem for path in (ROOT / "environments").glob("*.py")}
    used = {name.split(".")[0] for path in modules() for name in imported(nodes_of(path))} - {"hone"} - tasks
    used = {PART_OF.get(name, name).lower().replace("-", "_") for name in used - sys.stdlib_module_names}
    assert used <= declared, used - declared


@pytest.mark.needs("alarms", "audit", "planning", "reproduce", "server", "services", "split", "studies", "viewer")
def test_the_seeded_faults_fit_the_code():
    assert len(runpy.run_path(str(ROOT / "tests/faults/run.py"))["faults_of"]([])) > 50
