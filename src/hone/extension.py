"""What extensions add to hone. Each says it in a module that imports nothing heavy, by names and dotted paths:

    COMMANDS = {"view": Command("look at runs in a browser", "ViewConfig", "view.run", __name__)}
    EXPORTS = {"study": "hone.extensions.studies.study"}
    KEYS = {"run.report": Key("bool", True, "At the end, write the run card.", __name__)}
    LOADERS = {"verifiers": Loader("verifiers.load", __name__)}
    OBSERVERS = {"card": Watch(50, "card.observer.observer", __name__)}
    RECORDS = {"predictions": Record("predicted", "predictions", __name__)}
    CHOICES = {"rl.mode": {"cluster": "on those of a Ray cluster."}}
    MODES = {"split": Function("launcher.run_split", __name__)}
    MACHINES = {"cluster": Function("machines.of_config", __name__)}
    SAMPLERS = {"vllm": Backend("vLLM", "sampling.sampler", "serving.serve", __name__)}
    BANDS = {("vllm", "fp32"): {4: (1e-4, 1e-4, 1e-3)}}
    COLUMNS = {"teacher_logprobs": Column("teacher", "a teacher", "asking the teacher", "teacher", __name__)}

`CHOICES` are values of a core key, in words. A mode of `hone rl` gets the config and returns the exit code. Machines
get the config of `hone rl` or `hone eval` and return its `Machines`, or None. Samplers are values of
`inference.backend`, and owners of models that servers list; `BANDS` are more of `hone.algorithms.gap.BANDS`.

hone finds the modules `extension` in the folders of `hone.extensions`, and those that installed packages name under the
entry-point group `hone.extensions`; docs/extensions.md writes one. `REQUIRES` names the extensions that one imports;
without them it adds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from glob import escape, iglob
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hone.errors import UserError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager, ExitStack

    import numpy as np

    from hone.config.eval import EvalConfig
    from hone.config.rl import RLConfig
    from hone.config.shared import GradingConfig
    from hone.environments import Environment
    from hone.inference.policy import Policy
    from hone.loops.steps import AddColumn
    from hone.model.chat import ChatRenderer
    from hone.runs.writer import RunWriter
    from hone.trainer.step import Trainer
    from hone.types import Segment

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
    a run by `place`: the core's display has 0, the first lines 30, what is done last 70. At the end they are told in
    reverse.
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

    `kind` is "bool", "list[str]", or the class of a section, in `config` beside the `module` that says so. A section
    whose default is None is off unless it is given; `{}` stands for its own defaults. `meta` are the arguments of the
    field's `hone.config.base.Meta`.
    """

    kind: str
    default: Any
    docstring: str
    module: str
    meta: Mapping[str, Any] = MappingProxyType({})


class Record(NamedTuple):
    """A table that an extension has in run.json, by its key; an event of the kind `event` is written with it.

    A `path` beside the `module` that says so has two functions of run.json (`info`) and the run's folder: `problem`
    returns what shows that it was edited, "" if nothing does; `in_words` yields lines for people.
    """

    event: str
    path: str
    module: str

    def problem(self, info: Mapping[str, Any], folder: Path) -> str:
        """Return what shows that it was edited after it was made; "" if nothing does."""
        return load(self.module, f"{self.path}.problem")(info, folder)

    def in_words(self, info: Mapping[str, Any], folder: Path) -> list[str]:
        """Return lines for people: what shows that it was edited, else what it says; none without it."""
        problem = self.problem(info, folder)
        return [problem] if problem else list(load(self.module, f"{self.path}.in_words")(info, folder))


class Loader(NamedTuple):
    """What loads the tasks with ids `PREFIX:TASK`: a function beside the `module` that says so, which gets the task's
    name and arguments and returns an Environment.

    `names_code`: arguments can name code that is then imported, so that a task of an opened run has to be trusted.
    """

    function: str
    module: str
    names_code: bool = True


class Fields(NamedTuple):
    """Keys of a config together with what checks them: a class in `config` beside the `module` that says so, which the
    config's class inherits. In `KEYS` under the config's place and any name: `eval.cluster`.
    """

    fields_class: str
    module: str


class Function(NamedTuple):
    """A function beside the `module` that says so."""

    function: str
    module: str

    def __call__(self, *arguments: Any) -> Any:
        """Import the function and call it."""
        return load(self.module, self.function)(*arguments)


class Backend(NamedTuple):
    """A server that samples, but for hone's: its name in words, and functions beside the `module` that says so.

    `sampler` gets the config of `hone rl` before the run begins, and returns what makes the policy. `serve` gets the
    config of `hone inference`, and serves until it is stopped.
    """

    name: str
    sampler: str
    serve: str
    module: str

    def sampler_of(self, config: RLConfig) -> MakePolicy:
        """Import `sampler` and call it."""
        return load(self.module, self.sampler)(config)

    def serve_until_stopped(self, config: Any) -> None:
        """Import `serve` and call it."""
        load(self.module, self.serve)(config)


class Column(NamedTuple):
    """Numbers of the tokens that a policy sampled, float32, 0 for the others: computed once completions are graded,
    kept with the rollouts under their name, and trained on by way of the tokens' advantages.

    `section` of the config turns it on, and names the time it takes; `giver` says who gives it, `doing` what is waited
    for. `path`, below the `module` that says so, has the functions of the methods.
    """

    section: str
    giver: str
    doing: str
    path: str
    module: str

    def connect(self, config: RLConfig, renderer: ChatRenderer, vocab_size: int) -> tuple[AddColumn, str]:
        """Return what adds the column to groups, and in words who gives it. Raises UserError if it can't be had."""
        return load(self.module, f"{self.path}.connect")(config, renderer, vocab_size)

    def advantages(self, config: RLConfig, advantage: Any, logprobs_T: np.ndarray, column_T: np.ndarray) -> np.ndarray:
        """Return the advantages `[T]` float32 of a completion's tokens; `advantage` is what they have without it."""
        return load(self.module, f"{self.path}.advantages")(config, advantage, logprobs_T, column_T)

    def metrics(self, scored: Sequence[tuple[Segment, Any]]) -> dict[str, float]:
        """Compute metrics of a step, of completions with their columns."""
        return load(self.module, f"{self.path}.metrics")(scored)


class MakePolicy(Protocol):
    """Makes the policy of an open run; `stack` closes it."""

    def __call__(
        self, stack: ExitStack, config: RLConfig, run: RunWriter, trainer: Trainer, renderer: ChatRenderer
    ) -> Policy: ...


class Machines(Protocol):
    """Other machines than this one, which a config of `hone rl` or `hone eval` names.

    `place` and `process_place` say in words where its processes are and where one is, `cores` how many each has;
    `graders` is the number of grading processes there.
    """

    place: str
    process_place: str
    cores: int
    graders: int

    def use_graders(self, env: Environment, grading: GradingConfig) -> GradingConfig:
        """Have a task's functions run there, if it has graders; return the config of its workers."""
        ...

    def serve(self, config: EvalConfig) -> AbstractContextManager[EvalConfig]:
        """Serve the model of an evaluation; entering gives the config of the evaluation by URL."""
        ...

    def nodes(self, config: RLConfig, say: Callable[[str], None]) -> AbstractContextManager[Any]:
        """Connect the launcher of a run to them; `child` of what entering gives starts a process there."""
        ...

    def join(self) -> None:
        """Connect the orchestrator to those of its launcher."""
        ...

    def carrier(self, servers: Sequence[str], memory: Path | None) -> Callable[[int, Path], None]:
        """Return what brings a folder of weights to the machine of a server, by its number."""
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
    """Import the modules that say what extensions add, by name; without those that require one that is not there.

    Raises UserError if that of a package can't be imported.
    """
    found = dict(_found())
    while alone := [name for name, module in found.items() if not required(module) <= found.keys()]:
        for name in alone:
            del found[name]
    return found


def required(module: ModuleType) -> set[str]:
    """Return the names of the extensions that one imports, as its `REQUIRES` says."""
    return set(getattr(module, "REQUIRES", ()))


def lacking(table: str, name: str) -> str:
    """Return why `name` of a table of an extension is not there: another one is missing. "" if no extension adds it."""
    for extension, module in _found().items():
        if extension not in extensions() and name in getattr(module, table, {}):
            missing = ", ".join(sorted(required(module) - extensions().keys()))
            return f"it comes with the extension {extension}, which needs one that is not there: {missing}"
    return ""


@cache
def _found() -> Mapping[str, ModuleType]:
    folders = sorted(path.parent.name for path in Path(__file__).parent.glob("extensions/*/extension.py"))
    found = {name: import_module(f"hone.extensions.{name}.extension") for name in folders}
    for name, module in _installed():
        if name in found:
            raise UserError(f"{found[name].__name__} and {module.__name__} are both extensions {name!r}: uninstall one")
        found[name] = module
    return found


def _installed() -> Iterator[tuple[str, ModuleType]]:
    files = (file for folder in sys.path for file in iglob(f"{escape(folder) or '.'}/*-info/entry_points.txt"))
    if not any(f"[{GROUP}]" in Path(file).read_text(encoding="utf-8") for file in files):
        return
    from importlib.metadata import entry_points  # to import it takes 30 ms

    for entry in entry_points(group=GROUP):
        try:
            yield entry.name, entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else entry.value
            raise _broken(f"the extension {entry.name} of hone", package, error) from error


def _broken(what: str, package: str, error: Exception) -> UserError:
    return UserError(f"{what} can't be imported ({type(error).__name__}: {error}): fix {package}, or uninstall it")


def exported(name: str) -> Any:
    """Import what an extension adds to `EXPORTS` under this name; None if there is none."""
    home = gathered("EXPORTS", {}).get(name)
    return home and getattr(import_module(home), name.rpartition(".")[2])


def token_columns(config: Any) -> dict[str, Column]:
    """Return the columns of extensions that a config turns on, by name."""
    columns = gathered("COLUMNS", {}).items()
    return {name: column for name, column in columns if getattr(config, column.section, None) is not None}


def sampler_name(backend: str) -> str:
    """Return the name of a kind of server, in words."""
    found = gathered("SAMPLERS", {}).get(backend)
    return found.name if found else backend


def machines_of(config: Any) -> Machines | None:
    """Return the other machines that a config names, None if it names none."""
    found = (function(config) for function in gathered("MACHINES", {}).values())
    return next((machines for machines in found if machines is not None), None)


def gathered(table: str, core: dict[Any, Any]) -> dict[Any, Any]:
    """Return a table of the core and those of all extensions as one. Raises UserError if two add the same name."""
    found, owners = dict(core), dict.fromkeys(core, "hone")
    for module in extensions().values():
        for name, value in getattr(module, table, {}).items():
            if (owner := owners.setdefault(name, module.__name__)) != module.__name__:
                raise UserError(f"{owner} and {module.__name__} both add {name!r} to {table}: rename or uninstall one")
            found[name] = value
    return found
