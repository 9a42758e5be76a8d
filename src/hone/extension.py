"""The tables of extensions, and how hone finds them (docs/extensions.md).

An extension is a module `extension` in a folder of `hone.extensions`, or one that an installed package names under the
entry-point group `hone.extensions`. Its tables hold dotted paths beside the `module`, so that it imports nothing heavy.
Without the extensions in `REQUIRES` it adds nothing.
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
    """A line of `hone --help`. Beside the `module`, `config` has the config's class, and `commands` the function that
    gets the config and returns the exit code.

    `bare` is a function there that gets the command line if packages for reading a config are missing.
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
    """A function beside the `module`, which is imported when it is called."""

    function: str
    module: str

    def __call__(self, *arguments: Any) -> Any:
        return load(self.module, self.function)(*arguments)


class Watch(NamedTuple):
    """An observer of runs: a function of the config and `by_program` (True from `hone.rl`) returns it, or None.

    Runs call observers by `place` (display 0, first lines 30, handing over to the background 70), at the end in
    reverse. `always`: even if a program gives observers. `early`: checks the config before any process starts.
    """

    place: int
    function: str
    module: str
    always: bool = False
    early: bool = False


class Key(NamedTuple):
    """A key of a config, by its place: `run.report` is one of `hone sft` and `hone rl`.

    `kind` is "bool", "int", "float", "str", "list[str]", or the class of a section, in `config` beside the `module`.
    The default None leaves a section off, `{}` stands for its defaults. `meta` has the arguments of its `Meta`.
    """

    kind: str
    default: Any
    docstring: str
    module: str
    meta: Mapping[str, Any] = MappingProxyType({})


class Fields(NamedTuple):
    """Keys of a config with their checks, as a base class of the config's class. In `KEYS` under any name."""

    fields_class: str
    module: str


class Record(NamedTuple):
    """A table of an extension in run.json, by its key; an event of the kind `event` is written with it.

    The module at `path` has two functions of run.json (`info`) and the run's folder: `problem` and `in_words`.
    """

    event: str
    path: str
    module: str

    def problem(self, info: Mapping[str, Any], folder: Path) -> str:
        """Return the evidence that the table was edited; "" if there is none."""
        return load(self.module, f"{self.path}.problem")(info, folder)

    def in_words(self, info: Mapping[str, Any], folder: Path) -> list[str]:
        """Return lines for people: the problem, or the table's content."""
        problem = self.problem(info, folder)
        return [problem] if problem else list(load(self.module, f"{self.path}.in_words")(info, folder))


class Loader(NamedTuple):
    """Loads the tasks with ids `PREFIX:TASK`: a function of the task's name and arguments that returns an Environment.

    `names_code`: arguments can name code that is then imported, so that a task of an opened run has to be trusted.
    """

    function: str
    module: str
    names_code: bool = True


class Backend(NamedTuple):
    """A kind of server that samples, with its name in words.

    `sampler` gets the config of `hone rl` before the run begins, and returns a `MakePolicy`. `serve` gets the config of
    `hone inference`, and serves until it is stopped.
    """

    name: str
    sampler: Function
    serve: Function


class Column(NamedTuple):
    """Numbers of sampled tokens, float32, 0 for other tokens: computed after grading, stored with the rollouts, and
    trained on through the tokens' advantages.

    `section` of the config turns it on, and names the time it takes. `giver` and `doing` are words for messages.

    `connect(config, renderer, vocab_size)` returns an `AddColumn` and the name of the giver, or raises UserError.
    `advantages(config, advantage, logprobs_T, column_T)` returns the advantages `[T]` float32 of a completion's tokens;
    `advantage` is theirs without the column. `metrics(scored)` gets pairs of a Segment and its column for a step.
    """

    section: str
    giver: str
    doing: str
    connect: Function
    advantages: Function
    metrics: Function


class MakePolicy(Protocol):
    """Make the policy of an open run; `stack` closes it."""

    def __call__(
        self, stack: ExitStack, config: RLConfig, run: RunWriter, trainer: Trainer, renderer: ChatRenderer
    ) -> Policy: ...


class Machines(Protocol):
    """The other machines that a config of `hone rl` or `hone eval` names.

    `place` and `process_place` describe where its processes, or one of them, run; each machine has `cores`.
    """

    place: str
    process_place: str
    cores: int
    graders: int

    def use_graders(self, env: Environment, grading: GradingConfig) -> GradingConfig:
        """Have a task's functions run there, if it has graders; return the config of its workers."""
        ...

    def serve(self, config: EvalConfig) -> AbstractContextManager[EvalConfig]:
        """Serve the model of an evaluation; entering returns the config of the evaluation by URL."""
        ...

    def nodes(self, config: RLConfig, say: Callable[[str], None]) -> AbstractContextManager[Any]:
        """Connect a run's launcher to them; entering returns an object with `child`, which starts a process there."""
        ...

    def join(self) -> None:
        """Connect the orchestrator to its launcher's machines."""

    def carrier(self, servers: Sequence[str], memory: Path | None) -> Callable[[int, Path], None]:
        """Return a function that copies a folder of weights to the machine of a server, given by its number."""
        ...


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
def extensions() -> Mapping[str, ModuleType]:
    """Import the modules of extensions, by name. One that requires a missing extension is left out."""
    found = dict(_found())
    while alone := [name for name, module in found.items() if not required(module) <= found.keys()]:
        for name in alone:
            del found[name]
    return found


def required(module: ModuleType) -> set[str]:
    return set(getattr(module, "REQUIRES", ()))


def lacking(table: str, name: str) -> str:
    """Return why an extension's `name` in a table is missing: it needs another extension. "" if none adds it."""
    for extension, module in _found().items():
        if extension not in extensions() and name in getattr(module, table, {}):
            missing = ", ".join(sorted(required(module) - extensions().keys()))
            return f"it comes with the extension {extension}, which needs one that is not there: {missing}"
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
    """Return True if a package that is installed in a folder of `sys.path` names an extension."""
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
    """Join a table of the core with the tables of all extensions. Raises UserError if two add the same name."""
    found, owners = dict(core), dict.fromkeys(core, "hone")
    for module in extensions().values():
        for name, value in getattr(module, table, {}).items():
            if (owner := owners.setdefault(name, module.__name__)) != module.__name__:
                raise UserError(f"{owner} and {module.__name__} both add {name!r} to {table}: rename or uninstall one")
            found[name] = value
    return found
