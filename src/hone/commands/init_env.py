"""`hone init-env NAME`: writes a task to start from, a test of it, and recipes that train a tiny model on it.

hone init-env my-task
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path

from hone.config.init import InitEnvConfig
from hone.environments.task_files import is_taken
from hone.errors import UserError

RESERVED = {"environments", "tests", "examples", "outputs", "conftest", "setup"}
"""Folders that mean something to hone, and modules that pytest and installers run when they find them."""
MAX_NAME = 60
"""Characters of an id; file systems allow 255 bytes, `test_` and suffixes included."""
REPORT = """{id}: {task} (the task), {test} (its test), {recipes}/ (two recipes)
next: pytest {test}{pytest}
      sft @ {recipes}/tiny_sft.toml
      rl @ {recipes}/tiny.toml
      hone eval {id} -m outputs/{id}-rl/weights/step_150 -n 100 -a '{{"prompt": "{{letters}}", "format_hint": false}}'
Then make it yours: each place to change is marked CHANGE, in {task}, its test and the recipes."""


def run(config: InitEnvConfig) -> int:
    """Write the files and print what to run next; return the exit code. Raises UserError rather than overwrite.

    They go into `environments/`, `tests/` and `examples/` where there are such folders, as hone's own do, and else lie
    here: `my_task.py`, `test_my_task.py` and the folder `my_task` with the recipes.
    """
    module = _module_name(config.name)
    recipes = _folder("examples") / module
    task, test = _folder("environments") / f"{module}.py", _folder("tests") / f"test_{module}.py"
    paths = {"my_task.py": task, "test_my_task.py": test}
    paths |= {name: recipes / name for name in ("tiny_sft.toml", "tiny.toml")}
    if there := next((path for path in (*paths.values(), recipes) if path.exists()), None):
        raise UserError(f"{there} exists already, and nothing is overwritten: move it away, or choose another name")
    for name, path in paths.items():
        text = (files("hone.commands") / "scaffold" / name).read_text(encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_named(text, module, recipes), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} can't be written ({error.strerror}): run this in a folder of yours") from None
    install = "" if importlib.util.find_spec("pytest") else "        # after: pip install pytest"
    print(REPORT.format(id=module.replace("_", "-"), task=task, test=test, recipes=recipes, pytest=install))
    return 0


def _folder(name: str) -> Path:
    return Path(name) if Path(name).is_dir() else Path()


def _named(text: str, module: str, recipes: Path) -> str:
    """Return the scaffold's text for another name: in it the task is my-task, my_task and MyTask."""
    names = {
        "@ my_task/": f"@ {recipes.as_posix()}/",
        "my_task": module,
        "my-task": module.replace("_", "-"),
        "MyTask": "".join(word[0].upper() + word[1:] for word in module.split("_")),
    }
    return re.sub("|".join(names), lambda match: names[match.group()], text)


def _module_name(name: str) -> str:
    """Return the module of the task `name`. UserError if there can't be one."""
    module = name.replace("-", "_")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", module):
        why = "an id is made of English letters, digits and single dashes, and starts with a letter"
    elif len(module) > MAX_NAME:
        why = f"an id has at most {MAX_NAME} characters"
    elif module.lower() in RESERVED or keyword.iskeyword(module):
        why = "Python, pytest or hone has another use for that name"
    elif module in sys.stdlib_module_names:
        why = "that is a module of Python's standard library"
    elif (taken := is_taken(module)) is not None:
        why = f"there is a module of that name already ({taken})"
    else:
        return module
    raise UserError(f"a task can't be called {name!r}: {why}; choose another, such as my-{name}")
