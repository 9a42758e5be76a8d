"""Each extension can be deleted: without its folder hone helps and trains as with it, to the byte."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from circles import imports

from hone.extension import extensions, required

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hone"
EXTENSIONS = sorted(path.parent.name for path in SOURCE.glob("extensions/*/extension.py"))
TRAIN = """
import sys
from hone.cli import call

words = "--model.name hone/tiny --model.init.layers 1 --max-steps 2 --ckpt --display none --output-dir".split()
sft = "--data.env.id reverse-text --data.batch-size 2 --data.seq-len 256".split()
rl = "--orchestrator.env.id reverse-text --orchestrator.batch-size 8 --orchestrator.rollouts-per-example 4".split()
rl += "--orchestrator.seq-len 128 --orchestrator.eval.num-examples 4 --orchestrator.eval.interval 1".split()
sys.exit(call("sft", [*words, "sft", *sft], "hone sft") or call("rl", [*words, "rl", *rl], "hone rl"))
"""


def without(folder: Path, *names: str) -> dict[str, str]:
    """Copy hone without these extensions; return the environment of a process that imports it."""
    shutil.copytree(SOURCE, folder / "hone")
    for name in names:
        shutil.rmtree(folder / "hone" / "extensions" / name)
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT / "environments")))}


def commands_in(env: Mapping[str, str], folder: Path) -> list[str]:
    """Return the commands that `hone --help` lists."""
    help_ = subprocess.run(
        [sys.executable, "-m", "hone.cli", "--help"], env=env, cwd=folder, capture_output=True, text=True, check=True
    )
    return re.findall(r"^  (\S+) ", help_.stdout, re.MULTILINE)


def trained(env: Mapping[str, str], folder: Path) -> dict[str, list[str]]:
    """Train in the folder; return the lines that say what was computed: of metrics, samples and weights."""
    done = subprocess.run([sys.executable, "-c", TRAIN], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [f"{run}/{log}.jsonl" for run in ("sft", "rl") for log in ("metrics", "hashes")]
    return {name: (folder / name).read_text().splitlines() for name in names}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, list[str]], Path]:
    folder = tmp_path_factory.mktemp("whole")
    env = without(folder)
    return commands_in(env, folder), trained(env, folder), folder


def gone_with(name: str) -> set[str]:
    """Return an extension and those that require it, by way of others too."""
    gone = {name}
    while more := {other for other, module in extensions().items() if required(module) & gone} - gone:
        gone |= more
    return gone


@pytest.mark.deletable
def test_the_tests_of_the_core_pass_without_any_extension(tmp_path: Path) -> None:
    """First, as it takes long. Left out: what a mark leaves out, and what needs an extension."""
    ignored = shutil.ignore_patterns(".*", "__pycache__", "outputs", "extensions")
    tree = shutil.copytree(ROOT, tmp_path / "tree", ignore=ignored, ignore_dangling_symlinks=True)
    (tree / "src/hone/extensions").mkdir()
    shutil.copy(SOURCE / "extensions" / "__init__.py", tree / "src/hone/extensions")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree / "src"), str(tree / "environments")])}
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=short", "tests"]
    done = subprocess.run([sys.executable, "-m", "pytest", *words], env=env, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.deletable
@pytest.mark.parametrize("name", [*EXTENSIONS, "all"])
def test_hone_trains_the_same_without(
    name: str, whole: tuple[list[str], dict[str, list[str]], Path], tmp_path: Path
) -> None:
    env = without(tmp_path, *(EXTENSIONS if name == "all" else [name]))
    lost = set(EXTENSIONS) if name == "all" else gone_with(name)
    theirs = {word.split()[0] for one in lost for word in getattr(extensions()[one], "COMMANDS", {})} - {"runs"}
    assert commands_in(env, tmp_path) == [command for command in whole[0] if command not in theirs]
    assert trained(env, tmp_path) == whole[1]


@pytest.mark.deletable
def test_what_needs_another_extension_says_which_one_is_missing(tmp_path: Path) -> None:
    env = without(tmp_path, "audit")
    for words, why in (
        (["view"], "it comes with the extension viewer, which needs the missing extension audit"),
        (["rl", "--no-report"], "it comes with the extension viewer, which needs the missing extension audit"),
        (["rl", "--no-audit"], "--no-audit: it comes with the extension audit of hone, which is not installed"),
    ):
        said = subprocess.run([sys.executable, "-m", "hone.cli", *words], env=env, capture_output=True, text=True)
        assert (said.returncode, why in said.stderr) == (2, True), said.stderr


def test_extensions_import_those_that_they_require() -> None:
    imported: dict[str, set[str]] = {}
    for file, others in imports().items():
        if file.startswith("extensions/"):
            owner = file.split("/")[1]
            imported.setdefault(owner, set()).update(
                other.split("/")[1] for other in others if other.startswith("extensions/")
            )
    for name, module in extensions().items():
        assert imported.get(name, set()) - {name, "__init__.py"} <= required(module), name
