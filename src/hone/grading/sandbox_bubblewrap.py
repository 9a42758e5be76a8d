"""bubblewrap: the command that makes a sandbox of namespaces and an empty file system, and why it may not work here."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.errors import UserError
from hone.grading.sandbox_files import LIBRARIES, Readable

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
"""Containers of one machine count users together, and have the same process ids."""


@dataclass(frozen=True)
class Way:
    """How the sandbox is made: by root, who can mount without a user namespace, or in one of the user's own."""

    user_namespace: bool
    disable_userns: bool = False
    """Whether bubblewrap has the kernel refuse further user namespaces; the filter of system calls does in any case."""
    become_nobody: bool = False
    """Whether root becomes nobody before bubblewrap starts."""


def ways() -> tuple[Way, ...]:
    """The ways to try here, best first."""
    own = (Way(True, True), Way(True, False))
    if os.geteuid() != 0:
        return own
    as_nobody = (Way(True, True, True), Way(True, False, True))
    return (Way(False), *as_nobody, *(() if _is_machine_root() else own))


def executable() -> str:
    """The path of bwrap. Raises UserError where it is not installed."""
    found = shutil.which("bwrap")
    if found is None:
        raise UserError(
            "the sandbox needs bubblewrap, and there is no bwrap on the PATH: install it (apt-get install bubblewrap, "
            f"or dnf install bubblewrap); {OVERRIDE}"
        )
    return os.path.abspath(found)


def command(
    bwrap: str, way: Way, shown: Readable, scratch_bytes: int, filter_fd: int, status_fd: int, inside: Sequence[str]
) -> list[str]:
    """The command line that runs `inside` (arguments of the interpreter) in a fresh sandbox."""
    # Root keeps its rights up to `sandbox_main.py`, which gives them all up by becoming another user: where bubblewrap
    # takes some of them, the kernel also forgets that addresses are to be the same each time.
    words = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if way.user_namespace:
        words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), "--cap-drop", "ALL"]
        words += ["--disable-userns"] if way.disable_userns else []
    # Not --die-with-parent: killed while it sets up, bubblewrap leaves its child waiting for ever. `sandbox_main.py`,
    # as process 1, sees by itself when hone is gone.
    words += ["--as-pid-1", "--new-session", "--hostname", "sandbox", "--clearenv"]
    for name, value in environment("/scratch").items():
        words += ["--setenv", name, value]
    # bubblewrap makes the folders above for their owner alone where what is shown is.
    above = {str(folder) for _, target in shown.binds for folder in Path(target).parents} | {"/dev"}
    for folder in sorted(above - {"/"}):
        words += ["--perms", "0755", "--dir", folder]
    for source, target in shown.binds:
        words += ["--ro-bind", source, target]
    for target in shown.hidden:
        words += ["--size", "4096", "--tmpfs", target, "--remount-ro", target]
    for name in DEVICES:
        words += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    words += ["--perms", "0777", "--size", str(scratch_bytes), "--tmpfs", "/scratch"]
    words += ["--symlink", "scratch", "/tmp", "--symlink", "../scratch", "/dev/shm"]
    words += ["--remount-ro", "/", "--chdir", "/scratch"]
    words += ["--seccomp", str(filter_fd), "--json-status-fd", str(status_fd), "--", shown.executable]
    return [*words, *inside]


def environment(scratch: str) -> dict[str, str]:
    """All that the code finds in its environment."""
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


def refusal(said: Sequence[str]) -> UserError:
    """Why no sandbox can be made here, by what was said to each way and how the kernel is set, and the remedy."""
    remedies = [remedy for name, value, remedy in _SYSCTLS if _sysctl(name) == value]
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        remedies.append("docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined")
    if os.geteuid() == 0 and any("Can't find source path" in text for text in said):
        remedies.append("a Python that every user may read (not in /root), since root may not mount here")
    if any("Unknown option" in text for text in said):
        remedies = ["bubblewrap 0.7 or newer"]
    remedy = ", ".join(remedies) or "allow user namespaces to this user (user_namespaces(7))"
    reason = next((text for text in said if text.startswith("bwrap: ")), said[0].splitlines()[-1])
    return UserError(f"the sandbox can't be made here: {reason!r}. Remedy: {remedy}. {OVERRIDE}")


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return None


def _is_machine_root() -> bool:
    """Whether root here is root of the whole machine, not that of a container of some user's."""
    return _uid_map()[:2] == [0, 0]


@functools.cache
def _uid_map() -> list[int]:
    """First user id here, what it is outside, how many follow it; all of them where there is no such file."""
    try:
        return [int(word) for word in Path("/proc/self/uid_map").read_text().split()[:3]]
    except OSError:
        return [0, 0, 2**32 - 1]


def own_user(number: int) -> int:
    """The user id of sandbox `number` of this process: of the last quarter, which nobody has and no two share at a
    time; nobody's where there are but a few.
    """
    first, _, count = _uid_map()
    if first != 0 or count < 2**16:
        return NOBODY
    last = count // 4
    return count - last + (_FIRST_USER + os.getpid() * 64 + number % 64) % last
