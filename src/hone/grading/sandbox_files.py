"""The files of this machine that code in the sandbox may read: the interpreter, its standard library, the shared
libraries of these, and packages that were asked for.

They lie elsewhere in the sandbox than on the machine (`/python`, `/lib`, `/packages`), so the paths of a traceback tell
nothing about it.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hone.errors import UserError

LIBRARIES, PACKAGES = "/lib", "/packages"
_LEFT_OUT = ("_tkinter", "readline", "_curses", "_curses_panel", "nis", "_ssl")
"""Modules for a screen, a terminal or the network, which bring most of the libraries."""

# The libraries are found as the loader does it: by loading them. `dlopen` runs no Python code of a module.
_PROBE = """
import ctypes, json, os, sys
library = os.path.dirname(os.__file__)
modules = os.path.join(library, "lib-dynload")
paths = [os.path.join(modules, name) for name in sorted(os.listdir(modules))] if os.path.isdir(modules) else []
left_out = sys.argv[1].split(",")
paths = [path for path in paths if os.path.basename(path).split(".")[0] not in left_out]
for path in paths + sys.argv[2:]:
    if ".so" in path:
        try:
            ctypes.CDLL(path, mode=os.RTLD_LAZY)
        except OSError:
            pass
class Loaded(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Loaded), ctypes.c_size_t, ctypes.c_void_p)
collect = kind(lambda loaded, size, data: names.append(os.fsdecode(loaded.contents.name or b"")) or 0)
ctypes.CDLL(None).dl_iterate_phdr(collect, None)
print(json.dumps([library, sys.platlibdir, names]))
"""


@dataclass(frozen=True)
class Readable:
    """What is shown in the sandbox, and where."""

    binds: tuple[tuple[str, str], ...]
    """Path on this machine, path in the sandbox."""
    hidden: tuple[str, ...]
    """Folders of the sandbox that are shown empty."""
    executable: str
    """The interpreter's path in the sandbox."""


def base_executable() -> str:
    """The Python that a virtual environment was made from, links resolved; else this one."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def readable(packages: tuple[str, ...] = ()) -> Readable:
    """What the interpreter and `packages` (import names) need. Found once, in about 0.1 s.

    Raises UserError for a package that is not installed.
    """
    roots = package_roots(packages)
    extensions = [str(file) for root in roots for file in root.rglob("*.so*")] if roots else []
    executable = base_executable()
    command = [executable, "-I", "-S", "-B", "-c", _PROBE, ",".join(_LEFT_OUT), *extensions]
    said = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/")
    if said.returncode:
        raise UserError(f"the sandbox cannot use the interpreter {executable}: {said.stderr.strip()[-500:]}")
    library, folder, loaded = json.loads(said.stdout)
    inside = f"/python/{folder}/{Path(library).name}"
    binds = {inside: library, f"/python/bin/{Path(executable).name}": executable}
    binds |= {f"{PACKAGES}/{root.name}": str(root) for root in roots}
    if loader := _loader(executable):
        binds[loader] = loader
    shown = tuple(f"{os.path.realpath(path)}{os.sep}" for path in (library, *map(str, roots)))
    for name in loaded:
        if os.path.isfile(name) and name != loader and not os.path.realpath(name).startswith(shown):
            binds.setdefault(f"{LIBRARIES}/{Path(name).name}", name)
    hidden = [name for name in ("site-packages", "dist-packages") if Path(library, name).is_dir()]
    return Readable(
        tuple((os.path.realpath(source), target) for target, source in binds.items()),
        tuple(f"{inside}/{name}" for name in hidden),
        f"/python/bin/{Path(executable).name}",
    )


@functools.cache
def package_roots(packages: tuple[str, ...]) -> tuple[Path, ...]:
    """The folders and modules of the distributions that hold these import names, and of all they require."""
    if not packages:
        return ()
    from importlib.metadata import PackageNotFoundError, distribution, packages_distributions

    from packaging.requirements import Requirement

    holders = packages_distributions()
    for name in packages:
        if name not in holders:
            raise UserError(f'the sandbox cannot offer the package "{name}": it is not installed here')
    queue = [holder for name in packages for holder in holders[name]]
    seen: set[str] = set()
    roots: dict[Path, None] = {}
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:  # of a requirement that is met otherwise, or not needed on this machine
            continue
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in sorted(top for top in tops if not top.endswith((".dist-info", ".egg-info", ".pth"))):
            roots[Path(str(found.locate_file(top)))] = None
        for text in found.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return tuple(roots)


def _loader(executable: str) -> str | None:
    """The dynamic loader that a 64-bit ELF file asks for (its PT_INTERP); None for a static one."""
    with open(executable, "rb") as file:
        header = file.read(64)
        start, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
        for i in range(count):
            file.seek(start + i * size)
            entry = file.read(size)
            if struct.unpack_from("<I", entry)[0] == 3:
                offset, length = struct.unpack_from("<Q", entry, 8)[0], struct.unpack_from("<Q", entry, 32)[0]
                file.seek(offset)
                return os.fsdecode(file.read(length).rstrip(b"\0"))
    return None
