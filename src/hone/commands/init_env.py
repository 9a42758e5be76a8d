"""`hone init-env NAME`: writes a template task, its test, and recipes that train a tiny model on the task."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path

from hone.config.init import InitEnvConfig
from hone.environments.task_files import is_taken
from hone.errors import UserError

RESERVED = {"environments", "tests", "examples", "outputs", "conftest", "setup"}
"""Forbidden ids: names of hone's folders, and of modules that pytest or installers run."""
REPORT = """{id}: {task} (the task), {test} (its test), {recipes}/ (two recipes)
next: pytest {test}        # after: pip install pytest
      sft @ {recipes}/tiny_sft.toml
      rl @ {recipes}/tiny.toml
      hone eval @ outputs/{id}-rl/config.toml -m outputs/{id}-rl/weights/step_150 -n 100
Then change the places marked CHANGE in {task}, its test and the recipes."""


def run(config: InitEnvConfig) -> int:
    """Write the files and print the next commands; return the exit code. Raises UserError if a file exists.

    The files go into `environments/`, `tests/` and `examples/` if these folders exist, else into the current folder.
    """
    module, why = config.name.replace("-", "_"), None
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", module) or len(module) > 60:
        why = "an id has at most 60 English letters, digits and single dashes, and starts with a letter"
    elif module.lower() in RESERVED or keyword.iskeyword(module) or is_taken(module) is not None:
        why = "Python, pytest, hone or an existing module uses this name"
    if why:
        other = "my-" + (re.sub(r"[^A-Za-z0-9]+", "-", config.name).strip("-") or "task")
        raise UserError(f"a task can't be called {config.name!r}: {why}; choose another name, such as {other}")
    environments, tests, examples = (
        Path(name) if Path(name).is_dir() else Path() for name in ("environments", "tests", "examples")
    )
    task, test, recipes = environments / f"{module}.py", tests / f"test_{module}.py", examples / module
    paths = {"my_task.py": task, "test_my_task.py": test}
    paths |= {name: recipes / name for name in ("tiny_sft.toml", "tiny.toml")}
    if there := next((path for path in (*paths.values(), recipes) if path.exists()), None):
        raise UserError(f"{there} exists already and is not overwritten: move it away, or choose another name")
    names = {  # in the scaffold
        "@ my_task/": f"@ {recipes.as_posix()}/",
        "my_task": module,
        "my-task": module.replace("_", "-"),
        "MyTask": "".join(word[0].upper() + word[1:] for word in module.split("_")),
    }
    for name, path in paths.items():
        text = (files("hone.commands") / "scaffold" / name).read_text(encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(re.sub("|".join(names), lambda match: names[match.group()], text), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{path} can't be written ({error.strerror}): run this in a writable folder") from None
    print(REPORT.format(id=module.replace("_", "-"), task=task, test=test, recipes=recipes))
    return 0
