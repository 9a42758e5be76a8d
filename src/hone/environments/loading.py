"""Finds an environment by its id: a module's name with dashes for underscores, or `LIBRARY:TASK`."""

from __future__ import annotations

import copy
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

import hone
from hone import trust
from hone.config.hoist import FUNCTIONS
from hone.environments.environment import Environment, Origin
from hone.environments.task_files import (
    check_task_file,
    find_file,
    folders,
    import_file,
    mistake,
    note_source,
    sources,
)
from hone.errors import UserError
from hone.extension import Loader, gathered, lacking, load


def load_environment(env_id: str, **kwargs: Any) -> Environment:
    """Return the environment with this id, built by its module's `load_environment(**kwargs)`.

    Looks for `<module>.py`, `<module>/__init__.py` or `<module>/<module>.py` in `./environments/`, in hone's checkout
    and in the current directory, then for an installed package. Reads no data and uses no network. `LIBRARY:TASK` is a
    task of a library that an extension can load.

    Raises UserError for an unknown id, an invalid module, wrong arguments, and code that `hone.trust` refuses.
    """
    given = copy.deepcopy(kwargs)
    env = _adapted(env_id, kwargs) if ":" in env_id else _built(env_id, kwargs)
    if env_id == FUNCTIONS:
        trust.note_digest("the task of functions", lambda: env.digests([])["environment"])
    env.loaded_by(Origin(env_id, given, os.getcwd(), list(sys.path), sources()))
    return env


def configured(env_id: str, args: Mapping[str, Any], template: Mapping[str, Any] | None, name: str) -> Environment:
    """Load the environment that a config describes. `name`: the template's config key, such as "data.env.template"."""
    env = load_environment(env_id, **args)
    if template is not None:
        env.use_template(template, name)
    return env


def _built(env_id: str, kwargs: dict[str, Any]) -> Environment:
    module = _find_module(env_id)
    build = getattr(module, "load_environment", None)
    if not callable(build):
        raise UserError(
            f"{env_id!r} is not an environment: {module.__file__ or module.__name__} has no function load_environment; "
            f"{_nearest(env_id)}"
        )
    _check_arguments(env_id, build, kwargs)
    try:
        env = build(**kwargs)
    except UserError:
        raise
    except Exception as error:
        raise mistake(Path(inspect.getfile(build)).resolve(), error) from error
    if not isinstance(env, Environment):
        raise UserError(
            f"load_environment of {env_id!r} returned a {type(env).__name__}; it must return an Environment"
        )
    env.id = env.id or env_id
    if env.module is None:
        file = Path(module.__file__ or inspect.getfile(build)).resolve()
        env.module = file.parent if file.name == "__init__.py" else file
        note_source(env.module)
    return env


def _adapted(env_id: str, kwargs: dict[str, Any]) -> Environment:
    library, _, task = env_id.partition(":")
    loaders: dict[str, Loader] = gathered("LOADERS", {})
    loader = loaders.get(name := library.replace("_", "-"))
    if loader is None and name == "verifiers-v0":
        raise UserError(
            f"{env_id}: hone no longer runs environments of verifiers v0; port it to v1: verifiers:TASKSET; or install "
            "the extension for v0 (`hone examples extension-verifiers-v0`)"
        )
    if loader is None or not task:
        known = f"write LIBRARY:TASK with a library of {' or '.join(loaders)}, or " if loaders else ""
        why = lacking("LOADERS", name) or f"{known}install the extension that brings it"
        raise UserError(f"{env_id!r} is not an environment id: {why}")
    if loader.names_code:
        trust.check_named(f"the task {env_id}")
    function = load(loader.module, loader.function)
    build = functools.partial(function, task)
    _check_arguments(env_id, build, kwargs)
    env = build(**kwargs)
    env.id, env.module = env.id or env_id, Path(inspect.getfile(function))
    return env


def _find_module(env_id: str) -> ModuleType:
    name = env_id.replace("-", "_")
    if not name.isidentifier():
        raise UserError(
            f"{env_id!r} is not an environment id: an id is a Python module's name with dashes; {_nearest(env_id)}"
        )
    if name in sys.stdlib_module_names:
        raise UserError(f"environment id {env_id!r} names a module of the standard library; rename the environment")
    try:
        if env_id == FUNCTIONS:
            return importlib.import_module("hone.environments.functions")
        if (path := find_file(name)) is not None:
            check_task_file(env_id, path)
            return import_file(name, path)
        if (home := gathered("TASKS", {}).get(name.replace("_", "-"))) is not None:
            return importlib.import_module(home)
        if name in sys.modules or importlib.util.find_spec(name) is not None:
            loaded = sys.modules.get(name)
            spec = getattr(loaded, "__spec__", None) if loaded else importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
                check_task_file(env_id, Path(spec.origin))
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"environment {env_id!r} could not be imported: {error}; install what it needs") from error
    raise UserError(f"no environment {env_id!r}: {_nearest(env_id)}")


def _check_arguments(env_id: str, build: Any, kwargs: dict[str, Any]) -> None:
    signature = inspect.signature(build)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        accepted = [p.name for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        names = ", ".join(accepted) or "none"
        near = [n for name in kwargs.keys() - {*accepted} for n in difflib.get_close_matches(name, accepted, n=1)]
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(f"environment {env_id!r} {error}{hint}; its arguments are {names}") from None
    for name, value in kwargs.items():
        try:
            hints = typing.get_type_hints(getattr(build, "func", build), include_extras=True)
            TypeAdapter(hints.get(name, Any)).validate_python(value, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise UserError(f"{env_id}: {name} is {value!r}: {reason[:1].lower()}{reason[1:]}") from None
        except (NameError, TypeError, AttributeError, PydanticUserError):
            pass  # a type hint for type checkers only: nothing to check against


def _nearest(env_id: str) -> str:
    places = {*folders(), Path(hone.__file__).resolve().parents[1]}  # installed, hone's tasks lie beside its package
    files = [file for folder in places for file in (*folder.glob("*.py"), *folder.glob("*/__init__.py"))]
    tasks = [
        f for f in files if f.is_file() and "def load_environment(" in f.read_text(encoding="utf-8", errors="replace")
    ]
    found = {(f.parent if f.stem == "__init__" else f).stem.replace("_", "-") for f in tasks}
    known = sorted({*found, *gathered("TASKS", {})})
    near = difflib.get_close_matches(env_id.replace("_", "-"), known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"the environments here are {', '.join(known)}" if known else "put its file into environments/"
