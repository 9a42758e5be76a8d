"""Each extension can be deleted: without its folder hone helps and trains as with it, to the byte."""

from __future__ import annotations

import ast
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
OF_THE_CORE = {"alarms", "audit", "chat", "inference", "orchestrator", "server", "split", "trainer"}
"""Names that are words of the core too: alarms and audits in a run's log, a chat template, sections, a mode."""
NAMING = {
    "commands/detach.py": ("report", "key of what the process in the background reports"),
    "commands/eval.py": ("report", "a command, printed if it is there"),
    "commands/quickstart.py": ("report view", "commands, printed if they are there"),
    "commands/training.py": ("view", "a command, printed if it is there"),
    "config/retired.py": (
        "cluster predict report services teacher trackers trackio viewer vllm wandb",
        "keys that came with an extension, for when it is gone",
    ),
    "config/trl.py": ("report vllm wandb", "arguments of TRL, and keys that are hinted at if they are there"),
    "environments/loading.py": ("verifiers", "ids of an older version"),
    "grading/math.py": ("verify", "the package math_verify"),
    "runs/metrics.py": ("teacher", "metric of recorded runs"),
    "runs/opening.py": ("wandb", "key of run.json"),
    "runs/progress.py": ("report teacher", "a phase, and a metric of recorded runs"),
    "runs/summary.py": ("verify wandb", "a command, printed if it is there, and tags of recorded runs"),
    "runs/view.py": ("report trackio verify wandb", "files of recorded runs"),
    "terminal.py": ("trackio wandb", "packages that draw on the terminal"),
}
"""Names of extensions, and of their commands, keys and libraries, that core files hold, and why."""
PROMISED = {
    "commands/quickstart.py": ("view", "printed if it is there"),
    "loops/reach.py": ("inference", "what a server elsewhere is called"),
    "runs/summary.py": ("verify", "printed if it is there"),
    "runs/view.py": ("verify", "who writes a file"),
}
"""Commands of extensions that core files tell of as `hone COMMAND`, and why."""
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


@pytest.mark.deletable
def test_a_file_may_hold_the_defaults_of_keys_whose_extension_is_gone(
    whole: tuple[list[str], dict[str, list[str]], Path], tmp_path: Path
) -> None:
    env = without(tmp_path, *EXTENSIONS)
    defaults = subprocess.run(
        [sys.executable, "-c", "from hone.config.rl import RLConfig; from hone.config.dump import to_toml; "
         "print(to_toml(RLConfig(model={'name': 'hone/tiny'})))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / "all.toml").write_text(defaults.stdout)
    code = (
        "from hone.config.parse import parse; from hone.config.rl import RLConfig as C; parse(C, ['@', 'all.toml'], '')"
    )
    read = [sys.executable, "-c", code]
    assert subprocess.run(read, env=env, cwd=tmp_path, capture_output=True, text=True).stderr == ""
    for key, other in (("report = true", "report = false"), ("window = 10", "window = 11")):
        (tmp_path / "all.toml").write_text(defaults.stdout.replace(key, other))
        said = subprocess.run(read, env=env, cwd=tmp_path, capture_output=True, text=True)
        assert "in all.toml: it comes with the extension" in said.stderr
    run = shutil.copytree(whole[2] / "rl", tmp_path / "rl")
    words = [sys.executable, "-m", "hone.cli", "rl", "@", "rl/config.toml", "--resume", "--max-steps", "3"]
    subprocess.run(words, env=env, cwd=tmp_path, check=True)
    assert len((run / "hashes.jsonl").read_text().splitlines()) == 4


def allowed(table: Mapping[str, tuple[str, str]], names: set[str]) -> dict[str, set[str]]:
    """Return by file those of the table's words that are a name of an extension that is there."""
    return {file: found for file, (words, _) in table.items() if (found := {*words.split()} & names)}


def test_no_core_file_names_an_extension() -> None:
    tables = [getattr(one, of, {}) for one in extensions().values() for of in ("COMMANDS", "KEYS", "LOADERS")]
    names = {*EXTENSIONS, *(re.split("[ .]", name)[-1] for table in tables for name in table)} - OF_THE_CORE
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if name.startswith("extensions/"):
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
        imported = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        modules = {
            text for text in [*texts, *imported] if re.search(rf"hone\.extensions\.({'|'.join(EXTENSIONS)})\b", text)
        }
        words = {word for text in texts if not re.search(r"\s", text) for word in [text, *re.split("[^a-z]+", text)]}
        if named := modules | words & names:
            found[name] = named
    assert found == allowed(NAMING, names)


def test_no_core_file_promises_a_command_of_an_extension() -> None:
    """Strings other than docstrings of modules, classes and functions; a key's docstring is its help."""
    names = {name for module in extensions().values() for name in getattr(module, "COMMANDS", {})}
    found = {}
    for path in sorted({*SOURCE.rglob("*.py")} - {*SOURCE.glob("extensions/**/*.py")}):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {ast.get_docstring(node, clean=False) for node in nodes if isinstance(node, documented)}
        texts = {str(node.value) for node in nodes if isinstance(node, ast.Constant)} - docs
        if promised := {name for name in names for text in texts if re.search(rf"\bhone {name}\b", text)}:
            found[str(path.relative_to(SOURCE))] = promised
    assert found == allowed(PROMISED, names)


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
