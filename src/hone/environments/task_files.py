"""Finds and imports the Python files of tasks and reward functions, and digests their source."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import importlib.util
import json
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import hone
from hone import digests, trust
from hone.config.hoist import FUNCTIONS
from hone.errors import UserError

_sources: dict[str, str] = {}
_beside: set[Path] = set()
"""Folders put on the path because a task file is in them."""


def check_task_file(env_id: str, path: Path) -> None:
    """Raise UserError if the task with this id is a local file that `hone.trust` refuses."""
    resolved = path.resolve()
    if resolved.parent not in _builtin_folders() and not any(map(resolved.is_relative_to, _installed_folders())):
        trust.check_file(f"the task {env_id}", path, source_digest(resolved))


def is_taken(name: str) -> str | None:
    """Return where a task or an installed package of this name is; None if the name is free."""
    if name == FUNCTIONS:
        return "hone's own task of reward functions"
    if (path := find_file(name)) is not None:
        return str(path)
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin or "an installed package"


def find_file(name: str) -> Path | None:
    for folder in folders():
        for path in (folder / f"{name}.py", folder / name / "__init__.py", folder / name / f"{name}.py"):
            if path.is_file():
                return path
    return None


def folders() -> list[Path]:
    """Return the folders where task files may lie; the first match wins."""
    here = Path.cwd()
    return [here / "environments", *_builtin_folders(), here]


def _builtin_folders() -> list[Path]:
    """Return the folder of hone's tasks in a source checkout; installed tasks are top-level modules."""
    checkout = Path(hone.__file__).resolve().parents[2]
    return [checkout / "environments"] if (checkout / "pyproject.toml").is_file() else []


def _installed_folders() -> list[Path]:
    paths = [*site.getsitepackages(), site.getusersitepackages(), *map(sysconfig.get_path, ("purelib", "platlib"))]
    return [Path(path).resolve() for path in paths]


def sources() -> dict[str, str]:
    """Return digests of the task files that this process imported, taken at import."""
    return dict(_sources)


def note_source(module: Path) -> None:
    """Store the digest of a module's source at its first import: later imports don't read the file again."""
    if module.exists():
        _sources.setdefault(str(module), digests.of_source(module))


def source_digest(path: Path) -> str:
    """Return SHA-256 of a package, or of a task file with the modules beside it that it imports."""
    path = path.parent if path.name == "__init__.py" else path
    if path.is_dir():
        return digests.of_source(path)
    return text_digest(path.read_bytes(), [path.resolve().parent])


def text_digest(source: bytes, beside: Sequence[Path]) -> str:
    """Return SHA-256 of a module's source and of the modules that it imports from the folders `beside`."""
    found = [[file.name, digests.of_source(file)] for file in neighbours(source, beside)]
    digest = hashlib.sha256(source)
    if found:
        digest.update(json.dumps(found).encode())
    return digest.hexdigest()


def neighbours(source: bytes, beside: Sequence[Path]) -> list[Path]:
    """Return the files in the folders `beside` that a source imports, directly or not, sorted.

    An installed package precedes a file of the same name. Installed tasks, and hone's tasks, have no neighbours.
    """
    folders = [folder for folder in beside if folder not in _builtin_folders() and "site-packages" not in folder.parts]
    found: set[Path] = set()
    queue = [source]
    while queue:
        for name in _imported(queue.pop()) - sys.stdlib_module_names:
            places = [folder / part for folder in folders for part in (f"{name}.py", f"{name}/__init__.py")]
            file = next((place for place in places if place.is_file()), None)
            if file is None or file in found:
                continue
            origin = _origin(name)
            if origin is None or origin == file.resolve():
                new = set(file.parent.rglob("*.py")) - found if file.name == "__init__.py" else {file}
                found |= new
                queue += [one.read_bytes() for one in sorted(new)]
            elif (origin.parent.parent if origin.name == "__init__.py" else origin.parent) in _beside:
                raise UserError(
                    f"{file} can't be imported: this process takes {name!r} from {origin}, beside another task; "
                    "rename one of the two"
                )
    return sorted(found)


def _imported(source: bytes) -> set[str]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in names}


def _origin(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def import_file(name: str, path: Path) -> ModuleType:
    """Import the module at `path`, once per file and process. It may import modules beside it.

    If an installed package has the same name, the module gets another name in `sys.modules`, so that a task file
    `datasets.py` does not replace the package. Nor do modules beside it, because their folder is last on the path.
    """
    path = path.resolve()
    for alias in (name, f"hone_environment_{name}"):
        loaded = sys.modules.get(alias)
        if loaded is not None and getattr(loaded, "__file__", None) and Path(str(loaded.__file__)).resolve() == path:
            return loaded
    alias = f"hone_environment_{name}" if name in sys.modules or _origin(name) not in (None, path) else name
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(alias, path, submodule_search_locations=search)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    beside = neighbours(path.read_bytes(), [path.parent])
    put_on_path(path.parent)
    sys.modules[alias] = module
    for file in (path.parent if path.name == "__init__.py" else path, *beside):
        _sources[str(file)] = digests.of_source(file)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[alias]
        if isinstance(error, Exception) and not isinstance(error, UserError | ModuleNotFoundError):
            raise mistake(path, error) from error
        raise
    return module


def put_on_path(folder: Path) -> None:
    _beside.add(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def mistake(path: Path, error: Exception) -> UserError:
    """Return the error for a task file, with the line at fault."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    what = str(error)
    if isinstance(error, SyntaxError) and error.filename == str(path):
        lines, what = [error.lineno], error.msg
    place = f"{path}, line {lines[-1]}" if lines else str(path)
    return UserError(f"{place}: {type(error).__name__}: {what}")


def find_function(place: str) -> tuple[Callable[..., Any], Path | None]:
    """Import the function of `MODULE:NAME` or `FILE.py:NAME`; return it and its file (None if unknown).

    Looks for modules in the current folder first. Raises UserError if there is no such function, its module can't be
    imported, or `hone.trust` refuses it.
    """
    trust.check_function(place)
    module_name, _, name = place.rpartition(":")
    if not module_name or not name.isidentifier():
        raise UserError(f"{place!r} names no function: write MODULE:FUNCTION or FILE.py:FUNCTION, as in rewards:exact")
    is_file = module_name.endswith(".py")
    path = trust.module_file(place)
    if is_file and not path.is_file():
        raise UserError(f"{place!r}: there is no file {path}")
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is not None and path.is_file() and Path(main).exists() and path.samefile(main):  # it may be <stdin>
        raise UserError(f"{place!r} names the script that is running: give the function itself, not its name")
    put_on_path(Path.cwd())
    try:
        by_file = path.is_file() and (is_file or "." not in module_name)
        module = import_file(path.stem, path) if by_file else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name in (module_name, module_name.partition(".")[0]):
            raise UserError(f"{place!r}: there is no module {module_name!r} here, and none is installed") from None
        raise UserError(f"{place!r} could not be imported: {error}; install what it needs") from error
    found = vars(module).get(name)
    if not callable(found):
        near = difflib.get_close_matches(name, [n for n, value in vars(module).items() if callable(value)], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"{place!r}: {module.__file__ or module_name} has no function {name}{hint}")
    file = None if module.__file__ is None else Path(module.__file__).resolve()
    if file is not None:
        note_source(file)
    return found, file
