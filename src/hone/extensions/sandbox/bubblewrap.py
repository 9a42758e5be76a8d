"""Builds the bubblewrap command for a sandbox, finds the files that code needs there, and explains failures.

bubblewrap makes new namespaces and an empty file system. In it, code sees the interpreter, the standard library, the
requested packages, and the shared libraries of all three. Their paths in the sandbox (`/python`, `/lib`, `/packages`)
are not their paths outside, so a traceback tells nothing about this machine.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.errors import UserError

LIBRARIES, PACKAGES = "/lib", "/packages"
_LEFT_OUT = ("_tkinter", "readline", "_curses", "_curses_panel", "nis", "_ssl")
"""Standard modules for a screen, a terminal or the network. Their many shared libraries are left out."""

# Loads the libraries to learn their paths. `dlopen` runs no Python code of a module.
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
NOBODY = 65534
DEVICES = ("null", "zero", "full", "random", "urandom")
OVERRIDE = (
    'isolation = "none" runs the code as a plain process that can read and write all that you can; '
    "only for a machine that has nothing to lose"
)
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sudo sysctl user.max_user_namespaces=10000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
)
_FIRST_USER = int.from_bytes(os.urandom(4), "big")
"""Random start of the user ids: containers on one machine share user ids, and their process ids may be equal."""


@dataclass(frozen=True)
class Way:
    """A way to make the sandbox: in a user namespace or, as root, without a user namespace, because root may mount."""

    user_namespace: bool
    disable_userns: bool = False
    """If true, bubblewrap makes the kernel refuse user namespaces. The system call filter always refuses them."""
    become_nobody: bool = False
    """If true, root becomes the user nobody before bubblewrap starts."""


def ways() -> tuple[Way, ...]:
    as_user = (Way(True, True), Way(True, False))
    if os.geteuid() != 0:
        return as_user
    as_nobody = (Way(True, True, True), Way(True, False, True))
    is_machine_root = _uid_map()[:2] == [0, 0]  # and not a user's container
    return (Way(False), *as_nobody, *(() if is_machine_root else as_user))


def executable() -> str:
    """Return the path of bwrap. Raises UserError if it is not installed."""
    found = shutil.which("bwrap")
    if found is None:
        raise UserError(
            "the sandbox needs bubblewrap, and there is no bwrap on the PATH: install it (apt-get install bubblewrap, "
            f"or dnf install bubblewrap); {OVERRIDE}"
        )
    return os.path.abspath(found)


def command(
    bwrap: str, way: Way, mounts: Readable, scratch_bytes: int, filter_fd: int, status_fd: int, inside: Sequence[str]
) -> list[str]:
    # Root keeps its rights until `main.py` drops them by becoming another user. If bubblewrap dropped some, memory
    # addresses would not repeat.
    words = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if way.user_namespace:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
        words += ["--disable-userns"] if way.disable_userns else []
    # Not --die-with-parent: if bubblewrap is killed during setup, its child waits forever. `main.py`, as process 1,
    # notices when hone is gone.
    words += ["--as-pid-1", "--new-session", "--hostname", "sandbox", "--clearenv"]
    for name, value in environment("/scratch").items():
        words += ["--setenv", name, value]
    # bubblewrap would make the parents of private content private.
    above = {str(folder) for _, target in mounts.binds for folder in Path(target).parents} | {"/dev"}
    for folder in sorted(above - {"/"}):
        words += ["--perms", "0755", "--dir", folder]
    for source, target in mounts.binds:
        words += ["--ro-bind", source, target]
    for target in mounts.hidden:
        words += ["--size", "4096", "--tmpfs", target, "--remount-ro", target]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    words += ["--perms", "0777", "--size", str(scratch_bytes), "--tmpfs", "/scratch"]
    words += ["--symlink", "scratch", "/tmp", "--symlink", "../scratch", "/dev/shm"]
    words += ["--remount-ro", "/", "--chdir", "/scratch"]
    words += ["--seccomp", str(filter_fd), "--json-status-fd", str(status_fd), "--", mounts.executable]
    return [*words, *inside]


def environment(scratch: str) -> dict[str, str]:
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        "HOME": scratch,
        "TMPDIR": scratch,
        "USER": "nobody",
        "LANG": "C.UTF-8",
        "PATH": "/python/bin",
        "LD_LIBRARY_PATH": LIBRARIES,  # the loader's own folders differ between distributions
        "PYTHONHASHSEED": "0",  # a set prints in the same order each time
        "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of address space
        **dict.fromkeys(threads, "1"),
    }


def refusal(reasons: Sequence[str]) -> UserError:
    remedies = [remedy for name, value, remedy in _SYSCTLS if _sysctl(name) == value]
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        remedies.append("docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined")
    if os.geteuid() == 0 and any("Can't find source path" in text for text in reasons):
        remedies.append("a Python that every user may read (not in /root), since root may not mount here")
    if any("Unknown option" in text for text in reasons):
        remedies = ["bubblewrap 0.7 or newer"]
    remedy = ", ".join(remedies) or "allow user namespaces to this user (user_namespaces(7))"
    reason = next((text for text in reasons if text.startswith("bwrap: ")), reasons[0].splitlines()[-1])
    return UserError(f"the sandbox can't be made here: {reason!r}. Remedy: {remedy}. {OVERRIDE}")


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


@functools.cache
def _uid_map() -> list[int]:
    """Return the first user id of this namespace, its id outside, and the number of ids; if unknown, all ids."""
    try:
        return [int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3]]
    except OSError:
        return [0, 0, 2**32 - 1]


def own_user(number: int) -> int:
    """Return an unused user id, in the last quarter of all ids, for sandbox `number`; NOBODY if ids are too few."""
    first, _, count = _uid_map()
    if first != 0 or count < 2**16:
        return NOBODY
    last = count // 4
    return count - last + (_FIRST_USER + os.getpid() * 64 + number % 64) % last


@dataclass(frozen=True)
class Readable:
    binds: tuple[tuple[str, str], ...]
    """Path on this machine, path in the sandbox."""
    hidden: tuple[str, ...]
    """Folders of the sandbox that are shown empty."""
    executable: str
    """The interpreter's path in the sandbox."""


def base_executable() -> str:
    """Return the real path of the Python that this virtual environment is based on; without one, of this Python."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def readable(packages: tuple[str, ...] = ()) -> Readable:
    """Return the files of the interpreter and `packages` (import names). Raises UserError if a package is missing."""
    roots = package_roots(packages)
    extensions = [str(file) for root in roots for file in root.rglob("*.so*")] if roots else []
    executable = base_executable()
    command = [executable, "-I", "-S", "-B", "-c", _PROBE, ",".join(_LEFT_OUT), *extensions]
    done = subprocess.run(command, capture_output=True, text=True, env={}, cwd="/")
    if done.returncode:
        raise UserError(f"the sandbox cannot use the interpreter {executable}: {done.stderr.strip()[-500:]}")
    library, folder, loaded = json.loads(done.stdout)
    inside = f"/python/{folder}/{Path(library).name}"
    binds = {inside: library, f"/python/bin/{Path(executable).name}": executable}
    binds |= {f"{PACKAGES}/{root.name}": str(root) for root in roots}
    loader = next((name for name in loaded if Path(name).name.startswith("ld-")), "")  # as the interpreter names it
    if loader:
        binds[loader] = loader
    roots_below = tuple(f"{os.path.realpath(path)}{os.sep}" for path in (library, *map(str, roots)))
    for name in loaded:
        if os.path.isfile(name) and name != loader and not os.path.realpath(name).startswith(roots_below):
            binds.setdefault(f"{LIBRARIES}/{Path(name).name}", name)
    hidden = [name for name in ("site-packages", "dist-packages") if Path(library, name).is_dir()]
    return Readable(
        tuple((os.path.realpath(source), target) for target, source in binds.items()),
        tuple(f"{inside}/{name}" for name in hidden),
        f"/python/bin/{Path(executable).name}",
    )


@functools.cache
def package_roots(packages: tuple[str, ...]) -> tuple[Path, ...]:
    """Return the folders and modules of the distributions with these import names, and of their requirements."""
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
        except PackageNotFoundError:  # a requirement met otherwise, or not needed here
            continue
        tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
        for top in sorted(top for top in tops if not top.endswith((".dist-info", ".egg-info", ".pth"))):
            roots[Path(str(found.locate_file(top)))] = None
        for text in found.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                queue.append(requirement.name)
    return tuple(roots)
