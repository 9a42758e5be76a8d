"""The tables of extensions, and how hone finds extensions (docs/extensions.md).

An extension is a module `extension` in a folder of `hone.extensions`, or a module that an installed package names in
the entry-point group `hone.extensions`. To load fast, its tables hold dotted paths, relative to the package of
`module`. hone ignores an extension if another extension in its `REQUIRES` is missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hone.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from hone.config.eval import EvalConfig
    from hone.config.rl import RLConfig
    from hone.config.shared import GradingConfig
    from hone.environments import Environment
    from hone.inference.policy import Policy
    from hone.model.chat import ChatRenderer
    from hone.runs.writer import RunWriter
    from hone.trainer.step import Trainer

GROUP = "hone.extensions"


class Command(NamedTuple):
    """A command. In the package of `module`, the module `config` has the class `config_class`, and `commands` has
    `function`, which takes the config and returns the exit code.

    `bare`: a function in `commands` that takes the command line instead, if packages for reading configs are missing.
    """

    summary: str
    config_class: str
    function: str
    module: str = "hone.cli"
    bare: str = ""

    def load(self, path: str) -> Any:
        return load(self.module, path)

    def config(self) -> type[Any]:
        return self.load(f"config.{self.config_class}")


class Function(NamedTuple):
    """A function in the package of `module`, imported when it is called."""

    function: str
    module: str

    def __call__(self, *arguments: Any) -> Any:
        return load(self.module, self.function)(*arguments)


class Watch(NamedTuple):
    """An observer of runs. `function(config, by_program)` returns an observer, or None. `hone.rl` sets `by_program`.

    A run calls observers in ascending order of `place` (0: display, 30: printing the first lines, 70: moving to the
    background), and at its end in reverse order. `always`: use the observer even if a program passes its own observers.
    `early`: the observer checks the config before any process starts.
    """

    place: int
    function: str
    module: str
    always: bool = False
    early: bool = False


class Key(NamedTuple):
    """A config key, named PLACE.KEY in `KEYS`: `run.report` is the key `report` of `hone sft` and `hone rl`.

    `kind`: "bool", "int", "float", "str", "list[str]", or the class of a section in `config`, in the package of
    `module`. A section is off with the default None, and has its defaults with `{}`. `meta`: arguments of `Meta`.
    """

    kind: str
    default: Any
    docstring: str
    module: str
    meta: Mapping[str, Any] = MappingProxyType({})


class Fields(NamedTuple):
    """A class with config keys and checks, added to the config's base classes. Its name in `KEYS` is arbitrary."""

    fields_class: str
    module: str


class Record(NamedTuple):
    """A table that an extension writes to run.json, together with an event of the kind `event`.

    The module at `path` has the functions `problem` and `in_words`, which take run.json (`info`) and the run's folder.
    """

    event: str
    path: str
    module: str

    def problem(self, info: Mapping[str, Any], folder: Path) -> str:
        """Return the evidence that the table was edited, or ""."""
        return load(self.module, f"{self.path}.problem")(info, folder)

    def in_words(self, info: Mapping[str, Any], folder: Path) -> list[str]:
        """Return lines for people: the problem if there is one, else the table's content."""
        problem = self.problem(info, folder)
        return [problem] if problem else list(load(self.module, f"{self.path}.in_words")(info, folder))


class Loader(NamedTuple):
    """Loads tasks with ids `PREFIX:TASK`. `function` takes the task's name and arguments, and returns an Environment.

    `names_code`: the arguments can name code to import, so a run's task is loaded only if the user trusts the run.
    """

    function: str
    module: str
    names_code: bool = True


class Backend(NamedTuple):
    """A kind of sampling server; `name` is for messages.

    `sampler` takes the config of `hone rl` before the run begins, and returns a `MakePolicy`. `serve` takes the config
    of `hone inference`, and serves until it is stopped.
    """

    name: str
    sampler: Function
    serve: Function


class Column(NamedTuple):
    """A float32 number for each sampled token (0 for other tokens), such as a teacher's logprob. It is computed after
    grading, stored with the rollouts, and used in the tokens' advantages.

    `section`: the config section that turns the column on and names its time in logs. For messages, `giver` is the
    source of the numbers ("a teacher"), and `doing` the work ("asking the teacher").

    `connect(config, renderer, vocab_size)` returns an `AddColumn` and the source's name, or raises UserError.
    `advantages(config, advantage, logprobs_T, column_T)` returns the advantages `[T]` float32 of a completion's tokens.
    `advantage` is the advantage without this column. `metrics(scored)` takes a step's pairs (Segment, column).
    """

    section: str
    giver: str
    doing: str
    connect: Function
    advantages: Function
    metrics: Function


class MakePolicy(Protocol):
    """Make the policy of an open run; closing `stack` closes the policy."""

    def __call__(
        self, stack: ExitStack, config: RLConfig, run: RunWriter, trainer: Trainer, renderer: ChatRenderer
    ) -> Policy: ...


class Machines(Protocol):
    """The other machines that a config of `hone rl` or `hone eval` names.

    `place`, `process_place`: words for where the processes run, and where one process runs. `cores`: per machine.
    """

    place: str
    process_place: str
    cores: int
    graders: int

    def use_graders(self, env: Environment, grading: GradingConfig) -> GradingConfig:
        """If `graders` > 0, run a task's reward functions on these machines. Return the config of its workers."""
        ...

    def serve(self, config: EvalConfig) -> AbstractContextManager[EvalConfig]:
        """Serve an evaluation's model; the context yields the config with the server's URL."""
        ...

    def nodes(self, config: RLConfig, say: Callable[[str], None]) -> AbstractContextManager[Any]:
        """Connect a run's launcher to the machines; the context yields an object with `child` to start a process."""
        ...

    def join(self) -> None:
        """Connect the orchestrator to the machines of its launcher."""

    def carrier(self, servers: Sequence[str], memory: Path | None) -> Callable[[int, Path], None]:
        """Return a function of (server's index, folder) that copies the folder's weights to the server's machine."""
        ...


def load(module: str, path: str) -> Any:
    """Import `path`, relative to the package of `module`. UserError if it fails in a package other than hone."""
    home, _, name = f"{module.rpartition('.')[0] or module}.{path}".rpartition(".")
    try:
        return getattr(import_module(home), name)
    except Exception as error:
        if home.startswith("hone."):
            raise
        raise _broken(f"{home}.{name} of the extension {module}", module.partition(".")[0], error) from error


@cache
def extensions() -> Mapping[str, ModuleType]:
    """Return extension modules by name, without extensions that require a missing extension."""
    found = dict(_found())
    while alone := [name for name, module in found.items() if not required(module) <= found.keys()]:
        for name in alone:
            del found[name]
    return found


def required(module: ModuleType) -> set[str]:
    return set(getattr(module, "REQUIRES", ()))


def lacking(table: str, name: str) -> str:
    """Say which missing extensions are needed to add `name` to a table; "" if no ignored extension has `name`."""
    for extension, module in _found().items():
        if extension not in extensions() and name in getattr(module, table, {}):
            missing = ", ".join(sorted(required(module) - extensions().keys()))
            return f"it comes with the extension {extension}, which needs the missing extension {missing}"
    return ""


def _found() -> Mapping[str, ModuleType]:
    folder = os.path.join(os.path.dirname(__file__), "extensions")
    names = [name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, "extension.py"))]
    found = {name: import_module(f"hone.extensions.{name}.extension") for name in sorted(names)}
    for name, module in _installed():
        if name in found:
            raise UserError(f"{found[name].__name__} and {module.__name__} are both extensions {name!r}: uninstall one")
        found[name] = module
    return found


def _installed() -> Iterator[tuple[str, ModuleType]]:
    if not any(map(_declares, sys.path)):
        return
    from importlib.metadata import entry_points  # to import it takes 30 ms

    for entry in entry_points(group=GROUP):
        try:
            yield entry.name, entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            raise _broken(f"the extension {entry.name} of hone", package, error) from error


def _declares(folder: str) -> bool:
    with suppress(OSError):
        for info in os.listdir(folder or "."):
            if info.endswith("-info"):
                with suppress(OSError), open(os.path.join(folder, info, "entry_points.txt"), "rb") as file:
                    if f"[{GROUP}]".encode() in file.read():
                        return True
    return False


def _broken(what: str, package: str, error: Exception) -> UserError:
    return UserError(f"{what} can't be imported ({type(error).__name__}: {error}): fix {package}, or uninstall it")


def exported(name: str) -> Any:
    home = gathered("EXPORTS", {}).get(name)
    return home and getattr(import_module(home), name.rpartition(".")[2])


def token_columns(config: Any) -> dict[str, Column]:
    columns = gathered("COLUMNS", {}).items()
    return {name: column for name, column in columns if getattr(config, column.section, None) is not None}


def sampler_name(backend: str) -> str:
    found = gathered("SAMPLERS", {}).get(backend)
    return found.name if found else backend


def machines_of(config: Any) -> Machines | None:
    return next(filter(None, (function(config) for function in gathered("MACHINES", {}).values())), None)


def gathered(table: str, core: dict[Any, Any]) -> dict[Any, Any]:
    """Join the core's table with the tables of all extensions. Raises UserError if two of them add the same name."""
    found, owners = dict(core), dict.fromkeys(core, "hone")
    for module in extensions().values():
        for name, value in getattr(module, table, {}).items():
            if (owner := owners.setdefault(name, module.__name__)) != module.__name__:
                raise UserError(f"{owner} and {module.__name__} both add {name!r} to {table}: rename or uninstall one")
            found[name] = value
    return found
