"""The interpreter, and whether the packages that hone needs are there, new enough, and can be imported."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import hone
from hone.planning.doctor import Finding, Subject

CHECKOUT = Path(hone.__file__).resolve().parents[2]
OLDEST = (3, 11)
IMPORTED = ("numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "datasets", "scipy", "pydantic", "rich")
"""Packages with parts that are compiled, which break when versions are mixed; torch has a check of its own."""
_IMPORT_SECONDS = 30.0
_TORCH_CPU = "--extra-index-url https://download.pytorch.org/whl/cpu"


def python(_: Subject) -> Iterator[Finding]:
    """Its version, and whether it has packages of its own."""
    version = platform.python_version()
    if sys.version_info < OLDEST:
        yield Finding("python", "version", "error", f"{version}; hone needs 3.11 or newer", "python3.11 -m venv .venv")
    else:
        yield Finding("python", "version", "ok", f"{version}, {sys.executable}")
    conda = os.environ.get("CONDA_PREFIX")
    if sys.prefix != sys.base_prefix:
        yield Finding("python", "environment", "ok", f"virtual environment {sys.prefix}")
    elif conda and Path(conda).resolve() == Path(sys.prefix).resolve():
        yield Finding("python", "environment", "ok", f"conda environment {conda}")
    else:
        text = f"none: packages are those of {sys.prefix}, which others use and change"
        yield Finding("python", "environment", "warning", text, "make install   # makes .venv in a checkout of hone")
    origin = Path(hone.__file__).parent
    yield Finding("python", "hone", "ok", f"{hone.__version__}, from {origin}")


def install_command(*packages: str) -> str:
    """What installs these with the Python at work: within the pinned versions where hone's checkout has them."""
    program = ["uv", "pip"] if importlib.util.find_spec("pip") is None else [sys.executable, "-m", "pip"]
    constraints = CHECKOUT / "constraints.txt"
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    where = ["--python", sys.executable] if program[0] == "uv" else []
    torch = f" {_TORCH_CPU}" if any(p.partition(">")[0] == "torch" for p in packages) and not has_gpu_driver() else ""
    return shlex.join([*program, "install", *where, *pins, *packages]) + torch


def has_gpu_driver() -> bool:
    """Whether a driver of NVIDIA's is loaded."""
    return (
        Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists() or Path("/dev/nvidiactl").exists()
    )


def packages(_: Subject) -> Iterator[Finding]:
    """Every package that hone needs, and those that they need, against the versions that are asked for."""
    needed = requirements()
    if needed is None:
        text = "hone itself is not installed, so what it needs is not known"
        yield Finding("packages", "required", "warning", text, install_command("-e", str(CHECKOUT)))
        return
    parse = _requirement_parser()
    if parse is None:
        missing = [name for text in needed if not _installed(name := _name_of(text))]
        status = "error" if missing else "warning"
        text = (
            f"missing: {', '.join(missing)}" if missing else "versions can't be compared without the package packaging"
        )
        yield Finding("packages", "required", status, text, install_command(*(missing or ["packaging"])))
        return
    count, wrong = 0, []
    for requirement, parent, found in _walk(needed, parse):
        count += 1
        if found is None:
            wrong.append(requirement)
            text = f"is not installed; {parent} needs {_words(requirement)}"
            yield Finding("packages", requirement.name, "error", text, install_command(_short(requirement)))
        elif not requirement.specifier.contains(found, prereleases=True):
            wrong.append(requirement)
            text = f"{found} is installed; {parent} needs {requirement.specifier}"
            yield Finding("packages", requirement.name, "error", text, install_command(_short(requirement)))
    if not wrong:
        known = ((name, _installed(name)) for name in ("torch", "transformers", "datasets", "numpy"))
        shown = ", ".join(f"{name} {version}" for name, version in known if version)
        yield Finding("packages", "required", "ok", f"all {count} are there, in versions that go together ({shown})")
    elif len(wrong) > 1:
        text = f"{len(wrong)} of {count} are missing or of a wrong version"
        yield Finding("packages", "all of them", "error", text, install_command(*map(_short, wrong)))


def requirements() -> list[str] | None:
    """What hone requires, as it was installed; of a checkout that isn't, what its pyproject.toml says."""
    try:
        return [text for text in metadata.requires("hone-rl") or [] if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        pass
    try:
        import tomllib  # since Python 3.11, and to say that this one is older is part of the report

        return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    except (ImportError, OSError, KeyError, ValueError):
        return None


def _requirement_parser() -> Any:
    try:
        from packaging.requirements import Requirement
    except ImportError:
        try:
            from pip._vendor.packaging.requirements import Requirement
        except ImportError:
            return None
    return Requirement


def _walk(needed: list[str], parse: Any) -> Iterator[tuple[Any, str, str | None]]:
    """(requirement, who has it, the version that is installed) of hone's requirements and of theirs; each once."""
    queue = [(parse(text), "hone") for text in needed]
    seen: set[tuple[str, str]] = set()
    while queue:
        requirement, parent = queue.pop(0)
        if (requirement.name, str(requirement.specifier)) in seen or not _applies(requirement, ""):
            continue
        seen.add((requirement.name, str(requirement.specifier)))
        found = _installed(requirement.name)
        yield requirement, parent, found
        for text in (metadata.requires(requirement.name) or []) if found else []:
            inner = parse(text)
            if any(_applies(inner, extra) for extra in ("", *requirement.extras)):
                inner.marker = None
                queue.append((inner, requirement.name))


def _applies(requirement: Any, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _name_of(text: str) -> str:
    return next((text[:i] for i, c in enumerate(text) if not (c.isalnum() or c in "-_.")), text)


def _short(requirement: Any) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _words(requirement: Any) -> str:
    return f"{requirement.name} {requirement.specifier}" if str(requirement.specifier) else "it"


_PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"{name}\\t{text}", flush=True)
    else:
        print(f"{name}\\t", flush=True)
"""


def imports(_: Subject) -> Iterator[Finding]:
    """Whether packages that are there can be imported; in a child, which they may bring down."""
    names = [name for name in IMPORTED if importlib.util.find_spec(name) is not None]
    command = [sys.executable, "-P", "-c", _PROGRAM, *names]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        yield Finding(
            "packages", "imports", "warning", f"importing {', '.join(names)} took over {_IMPORT_SECONDS:.0f} s"
        )
        return
    told: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if "\t" in line:
            name, problem = line.split("\t", 1)
            told[name] = problem
    for name, problem in told.items():
        if problem:
            again = install_command("--force-reinstall", "--no-deps", name)
            yield Finding("packages", name, "error", f"is installed, but can't be imported: {problem[:200]}", again)
    if len(told) < len(names):
        name = names[len(told)]
        text = f"ended the interpreter when it was imported (exit code {done.returncode})"
        yield Finding("packages", name, "error", text, install_command("--force-reinstall", "--no-deps", name))
