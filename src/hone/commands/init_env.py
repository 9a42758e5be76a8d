"""`hone init-env NAME`: writes a task to start from, a test of it, and recipes that train a tiny model on it.

hone init-env my-task
"""

from __future__ import annotations

import importlib.util
import itertools
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

from hone.config.init_env import InitEnvConfig
from hone.environments.task_files import is_taken
from hone.errors import UserError

MODEL = "outputs/{id}-rl/weights/step_150"
"""What the recipe of the scaffold makes."""
FOLDERS = {"environments", "tests", "examples", "outputs"}
"""Folders that mean something to hone, where recipes must not lie."""
TOOLS = {"conftest", "setup"}
"""Modules that pytest and installers run when they find them."""
MAX_NAME = 60
"""Characters of an id; file systems allow 255 bytes, `test_` and suffixes included."""


def run(config: InitEnvConfig) -> int:
    """Writes the files and prints what to run next; returns the exit code. Raises UserError rather than overwrite."""
    module = _module_name(config.name)
    texts = scaffold(module)
    if there := _in_the_way(texts):
        raise UserError(f"{there} exists already, and nothing is overwritten: move it away, or choose another name")
    for path, text in texts.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise UserError(f"{path} can't be written ({error.strerror}): run this in a folder of yours") from None
    print(_report(module, list(texts)))
    return 0


def scaffold(module: str) -> dict[Path, str]:
    """The files of a task named `module`, with their texts, for the current directory.

    They go into `environments/`, `tests/` and `examples/` where there are such folders, as hone's own do, and else lie
    here: `my_task.py`, `test_my_task.py` and the folder `my_task` with the recipes.
    """
    recipes = _folder("examples") / module
    places = {
        "my_task.py": _folder("environments") / f"{module}.py",
        "test_my_task.py": _folder("tests") / f"test_{module}.py",
        "tiny_sft.toml": recipes / "tiny_sft.toml",
        "tiny.toml": recipes / "tiny.toml",
    }
    folder = files("hone.commands") / "scaffold"
    texts = {places[name]: (folder / name).read_text(encoding="utf-8") for name in places}
    return {path: _named(text, module, recipes) for path, text in texts.items()}


def _in_the_way(texts: dict[Path, str]) -> Path | None:
    """What is there of the files, or of the folder of recipes, which is the task's alone."""
    recipes = next(path.parent for path in texts if path.suffix == ".toml")
    return next((path for path in (*texts, recipes) if path.exists()), None)


def _folder(name: str) -> Path:
    return Path(name) if Path(name).is_dir() else Path()


def _named(text: str, module: str, recipes: Path) -> str:
    """The scaffold's text for another name: in it the task is my-task, my_task and MyTask, its recipes in my_task/."""
    names = {
        "@ my_task/": f"@ {recipes.as_posix()}/",
        "my_task": module,
        "my-task": module.replace("_", "-"),
        "MyTask": "".join(word[0].upper() + word[1:] for word in module.split("_")),
    }
    return re.sub("|".join(names), lambda match: names[match.group()], text)


def _module_name(name: str) -> str:
    """The module of the task `name`. UserError if there can't be one, naming an id that would do."""
    module = name.replace("-", "_")
    why = ""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", module):
        why = "an id is made of English letters, digits and single dashes, and starts with a letter"
    elif len(module) > MAX_NAME:
        why = f"an id has at most {MAX_NAME} characters"
    elif module.lower() in FOLDERS | TOOLS:
        why = "hone has a folder of that name" if module.lower() in FOLDERS else "pytest or pip would run such a file"
    elif keyword.iskeyword(module):
        why = "that is a word of the Python language"
    elif module in sys.stdlib_module_names:
        why = "that is a module of Python's standard library"
    elif (taken := is_taken(module)) is not None:
        why = f"there is a module of that name already ({taken})"
    if why:
        raise UserError(f"a task can't be called {name!r}: {why}; `hone init-env {_instead(module)}` would do")
    return module


def _instead(module: str) -> str:
    """An id like `module` that is free."""
    words = re.findall(r"[a-z0-9]+", module.lower()[: MAX_NAME - 10])
    plain = "_".join(words) if words and words[0][0].isalpha() else "_".join(["task", *words])
    candidates = itertools.chain([plain, f"my_{plain}"], (f"my_{plain}_{i}" for i in itertools.count(2)))
    return next(c for c in candidates if _is_free(c)).replace("_", "-")


def _is_free(module: str) -> bool:
    reserved = keyword.iskeyword(module) or module in sys.stdlib_module_names or module in FOLDERS | TOOLS
    return not reserved and is_taken(module) is None and _in_the_way(scaffold(module)) is None


def _report(module: str, written: list[Path]) -> str:
    env_id = module.replace("_", "-")
    task, test, sft, rl = written
    has_pytest = importlib.util.find_spec("pytest") is not None
    flags = """-n 100 -a '{"prompt": "{letters}", "format_hint": false}'"""
    return "\n".join(
        [
            f"{env_id}: {task} (the task), {test} (its test), {sft.parent}/ (two recipes)",
            f"next: pytest {test}" + ("" if has_pytest else "        # after: pip install pytest"),
            f"      sft @ {sft}",
            f"      rl @ {rl}",
            f"      hone eval {env_id} -m {MODEL.format(id=env_id)} {flags}",
            f"Then make it yours: each place to change is marked CHANGE, in {task}, its test and the recipes.",
        ]
    )
