"""What extensions add to hone. Each says it in a module that imports nothing heavy, by names and dotted paths:

    COMMANDS = {"view": Command("look at runs in a browser", "ViewConfig", "view.run", __name__)}
    EXPORTS = {"study": "hone.extensions.studies.study"}
    KEYS = {"run.report": Key("bool", True, "At the end, write the run card.", __name__)}
    LOADERS = {"verifiers": Loader("verifiers.load", __name__)}
    OBSERVERS = {"card": Watch(50, "card.observer.observer", __name__)}

hone finds the modules `extension` in the folders of `hone.extensions`, and those that installed packages name under the
entry-point group `hone.extensions`; docs/extensions.md writes one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cache
from glob import escape, iglob
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

from hone.errors import UserError

GROUP = "hone.extensions"


class Command(NamedTuple):
    """A line of `hone --help`: the config's class, below `config` beside the `module` that says so; and the function,
    below `commands` there, that gets the config and returns the exit code.

    `bare`, below the same, gets the words of the command line where the packages that read a config are missing.
    """

    summary: str
    config_class: str
    function: str
    module: str = "hone.cli"
    bare: str = ""

    def config(self) -> Any:
        """Import the class of the config."""
        return self.load(f"config.{self.config_class}")

    def run(self, config: Any) -> int:
        """Import the function and call it; return the exit code."""
        return self.load(f"commands.{self.function}")(config)

    def load(self, path: str) -> Any:
        """Import what the path, beside the module, names."""
        return load(self.module, path)


class Watch(NamedTuple):
    """An observer of runs of `hone sft` and `hone rl`: a function beside the `module` that says so.

    It gets the config, and whether a program calls (`hone.rl`), and returns an Observer or None. Observers are told of
    a run by `place`: the core's display and alarms have 0, the first lines 30, what is done last 70. At the end they
    are told in reverse.
    """

    place: int
    function: str
    module: str

    def made(self, config: Any, by_program: bool) -> list[Any]:
        """Import the function and call it; return its observer, if it gives one."""
        observer = load(self.module, self.function)(config, by_program)
        return [] if observer is None else [observer]


class Key(NamedTuple):
    """A key of a config, by its place: `run.report` is one of `hone sft` and `hone rl`.

    `kind` is "bool", or the class of a section, in `config` beside the `module` that says so; one whose default is None
    is off unless it is given. `meta` are the arguments of the field's `hone.config.base.Meta`.
    """

    kind: str
    default: Any
    docstring: str
    module: str
    meta: Mapping[str, Any] = MappingProxyType({})


class Loader(NamedTuple):
    """What loads the tasks with ids `PREFIX:TASK`: a function beside the `module` that says so, which gets the task's
    name and arguments and returns an Environment.

    `names_code`: arguments can name code that is then imported, so that a task of an opened run has to be trusted.
    """

    function: str
    module: str
    names_code: bool = True


class Runner(NamedTuple):
    """What runs `hone rl` in another mode than this process's: a function beside the `module` that says so, which gets
    the config and returns the exit code.
    """

    function: str
    module: str


def load(module: str, path: str) -> Any:
    """Import what a dotted path beside the module names. Raises UserError if a package's can't be imported."""
    home, _, name = f"{module.rpartition('.')[0] or module}.{path}".rpartition(".")
    try:
        return getattr(import_module(home), name)
    except Exception as error:
        if home.startswith("hone."):
            raise
        raise _broken(f"{home}.{name} of the extension {module}", module.partition(".")[0], error) from error


@cache
def extensions() -> tuple[ModuleType, ...]:
    """Import the modules that say what extensions add. Raises UserError if that of a package can't be imported."""
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("extensions/*/extension.py"))
    return (*(import_module(f"hone.extensions.{name}.extension") for name in folders), *_installed())


def _installed() -> Iterator[ModuleType]:
    files = (file for folder in sys.path for file in iglob(f"{escape(folder) or '.'}/*-info/entry_points.txt"))
    if not any(f"[{GROUP}]" in Path(file).read_text(encoding="utf-8") for file in files):
        return
    from importlib.metadata import entry_points  # to import it takes 30 ms

    for entry in entry_points(group=GROUP):
        try:
            yield entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            raise _broken(f"the extension {entry.name} of hone", package, error) from error


def _broken(what: str, package: str, error: Exception) -> UserError:
    return UserError(f"{what} can't be imported ({type(error).__name__}: {error}): fix {package}, or uninstall it")


def exported(name: str) -> Any:
    """Import what an extension adds to `EXPORTS` under this name; None if there is none."""
    home = gathered("EXPORTS", {}).get(name)
    return home and getattr(import_module(home), name.rpartition(".")[2])


def gathered(table: str, core: dict[str, Any]) -> dict[str, Any]:
    """Return a table of the core and those of all extensions as one. Raises UserError if two add the same name."""
    found, owners = dict(core), dict.fromkeys(core, "hone")
    for module in extensions():
        for name, value in getattr(module, table, {}).items():
            if (owner := owners.setdefault(name, module.__name__)) != module.__name__:
                raise UserError(f"{owner} and {module.__name__} both add {name!r} to {table}: rename or uninstall one")
            found[name] = value
    return found
