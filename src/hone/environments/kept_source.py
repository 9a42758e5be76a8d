"""Writes a program's functions into a file that can be imported without the program.

A notebook's cells and a script's `__main__` are gone when the run is resumed, verified or read. So the file has the
functions and all that they use: imports, current values of constants, and functions and classes of the same module.
"""

from __future__ import annotations
import __future__

import functools
import inspect
import math
import pickle
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any

from hone.environments.rubric import component_name, unwrapped
from hone.environments.services import Service

HEAD = '"""Functions of this run and what they use, as they were when it began."""\n'


def standalone_name(function: Callable[..., Any]) -> str:
    """Return a function's name in the file. An object's name begins with `reward_`: its class has the bare name."""
    name = component_name(function)
    is_named = isinstance(function, Service) or isinstance(inspect.unwrap(function), FunctionType)
    return name if is_named else f"reward_{name}"


def standalone_source(functions: Sequence[Callable[..., Any]]) -> tuple[str, str]:
    """Return the text of a file that defines these functions, and why it can't be imported ("" if it can).

    An object is written as its class and attributes. A part that can't be written becomes a comment. Then the file
    raises an error when it is imported, so that it can't grade differently.
    """
    writer = _Writer()
    text = writer.write(functions)
    problem = "; ".join(writer.problems)
    if problem:
        text += f"\nraise ImportError({'only the program that began the run can go on with it: ' + problem!r})\n"
    return text, problem


class _Writer:
    """Collects pieces of source by the names that they define, dependencies first."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._imports: set[str] = set()
        self._future = ""
        self._defined: dict[str, Any] = {}
        self._pieces: list[str] = []

    def write(self, functions: Sequence[Callable[..., Any]]) -> str:
        for function in functions:
            self._define(standalone_name(function), function, _globals_of_home(function))
        head = "\n".join([HEAD, *([self._future] if self._future else []), *sorted(self._imports)])
        return "\n\n".join([head, *self._pieces]) + "\n"

    def _define(self, name: str, value: Any, module: Mapping[str, Any]) -> None:
        if name in self._defined:
            if self._defined[name] is not value:
                self._give_up(f"the functions use two different things named {name}: rename one of them")
            return
        self._defined[name] = value
        if isinstance(value, ModuleType):
            self._imports.add(f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else ""))
        elif isinstance(value, Service):
            self._imports.add("import hone")
            self._pieces.append(f"{name} = {value.source}")
        elif isinstance(value, functools.partial | MethodType):
            self._define_made(name, value, module)
        elif isinstance(value, re.Pattern):
            self._imports.add("import re")
            self._pieces.append(f"{name} = re.compile({value.pattern!r}, {value.flags})")
        elif (home := getattr(value, "__module__", None)) == module.get("__name__") and hasattr(value, "__qualname__"):
            self._define_code(name, value, module)
        elif home != module.get("__name__") and home and (known := _name_in(sys.modules.get(home), value, name)):
            self._imports.add(f"from {home} import {known}" + (f" as {name}" if known != name else ""))
        elif (source := _literal(value)) is not None:
            self._pieces.append(f"{name} = {source}")
        elif (pickled := _pickled(value)) is not None:
            self._imports.add("import pickle")
            self._pieces.append(f"{name} = pickle.loads({pickled!r})  # {value!r:.60}".splitlines()[0])
        elif home == module.get("__name__") and hasattr(value, "__dict__"):
            self._define_made(name, value, module)
        else:
            problem = f"{name} is a {type(value).__name__}, which has no source: make it inside a function"
            self._give_up(f"{problem}, or put the reward function into a module")

    def _define_made(self, name: str, value: Any, module: Mapping[str, Any]) -> None:
        if isinstance(value, functools.partial):
            self._imports.add("import functools")
            parts = [self._part(f"{name}_{i}", part, module) for i, part in enumerate((value.func, *value.args))]
            parts += [f"{key}={self._part(f'{name}_{key}', part, module)}" for key, part in value.keywords.items()]
            source = f"functools.partial({', '.join(parts)})"
        elif isinstance(value, MethodType):
            source = f"{self._part(f'{name}_object', value.__self__, module)}.{value.__name__}"
        else:
            kind = self._part(f"{name}_class", type(value), module)
            parts = [f"{key!r}: {self._part(f'{name}_{key}', part, module)}" for key, part in vars(value).items()]
            source = f"{kind}.__new__({kind})\nvars({name}).update({{{', '.join(parts)}}})"
        self._pieces.append(f"{name} = {source}")

    def _part(self, name: str, value: Any, module: Mapping[str, Any]) -> str:
        """Return an expression for a value. If it has no literal, first define it by its global name or `name`."""
        if (source := _literal(value)) is not None:
            return source
        known = next((key for key, one in [*module.items(), *self._defined.items()] if one is value), name)
        if known == name and isinstance(value, type | FunctionType):
            known = value.__name__
        self._define(known, value, module)
        return known

    def _define_code(self, name: str, value: Any, module: Mapping[str, Any]) -> None:
        function = inspect.unwrap(value)
        try:
            source = textwrap.dedent(inspect.getsource(value)).strip("\n")
            scope = symtable.symtable(source, name, "exec")
        except (OSError, TypeError, SyntaxError):
            self._give_up(f"there is no source of {name}")
            return
        if value.__name__ != name:
            self._give_up(f"{name} is not defined by `def {name}` or `class {name}`")
        if isinstance(module.get("annotations"), __future__._Feature):
            self._future = "from __future__ import annotations"
        closure = inspect.getclosurevars(function).nonlocals if isinstance(function, FunctionType) else {}
        known = {**module, **closure}
        for used in sorted(_globals_of(scope) - {name}):
            if used in known:
                self._define(used, known[used], module)
        self._pieces.append(source)

    def _give_up(self, problem: str) -> None:
        self.problems.append(problem)
        self._pieces.append(f"# {problem}")


def _globals_of_home(function: Callable[..., Any]) -> Mapping[str, Any]:
    if isinstance(function, Service):
        return {}
    function = unwrapped(function)
    found = inspect.unwrap(getattr(function, "__func__", function))
    return found.__globals__ if isinstance(found, FunctionType) else vars(sys.modules[type(function).__module__])


def _globals_of(scope: symtable.SymbolTable) -> set[str]:
    """Return the names that a piece of source uses but doesn't define, also in decorators and annotations."""
    at_top = scope.get_type() == "module"
    names = {s.get_name() for s in scope.get_symbols() if (s.is_referenced() if at_top else s.is_global())}
    return names.union(*map(_globals_of, scope.get_children()))


def _name_in(module: ModuleType | None, value: Any, name: str) -> str:
    names = (getattr(value, "__qualname__", None), name)
    return next((n for n in names if isinstance(n, str) and getattr(module, n, None) is value), "")


def _literal(value: Any) -> str | None:
    """Return the source of a value of plain types, the same in every process (sets sorted); None for other types."""
    kind = type(value)
    if kind in (bool, int, str, bytes, NoneType):
        return repr(value)
    if kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if kind not in (dict, list, tuple, set, frozenset):
        return None
    parts = [_literal(part) for part in ([*value, *value.values()] if kind is dict else value)]
    sources = [part for part in parts if part is not None]
    if len(sources) < len(parts):
        return None
    if kind is dict:
        half = len(sources) // 2
        return "{" + ", ".join(f"{k}: {v}" for k, v in zip(sources[:half], sources[half:], strict=True)) + "}"
    inside = ", ".join(sorted(sources) if kind in (set, frozenset) else sources)
    if kind is tuple:
        return f"({inside},)" if sources else "()"
    return f"[{inside}]" if kind is list else f"{kind.__name__}([{inside}])"


def _pickled(value: Any) -> bytes | None:
    try:
        pickled = pickle.dumps(value, protocol=4)
    except Exception:
        return None
    return None if b"__main__" in pickled else pickled
