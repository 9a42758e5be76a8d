"""Memory, disk, limits of the system, encoding and clock."""

from __future__ import annotations

import locale
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hone.planning.devices import ram
from hone.planning.doctor import Finding, Subject, gib, hub_cache

LITTLE_MEMORY, LITTLE_SHM = 2 * 2**30, 64 * 2**20
LITTLE_DISK, VERY_LITTLE_DISK = 5 * 2**30, 256 * 2**20
_WRITTEN = 64 * 2**20
SLOW_DISK = 50e6
"""Bytes a second; a checkpoint of a model of 0.6B parameters (7 GB) then takes minutes."""
FEW_FILES, FEW_PROCESSES = 1024, 256
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "glusterfs", "9p", "fuse.sshfs", "beegfs", "efs"}


def memory(_: Subject) -> Iterator[Finding]:
    """RAM as this process may use it, swap, shared memory."""
    total, free = ram()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limited = f" (the container's limit; the machine has {gib(machine)})" if total < machine else ""
    text = f"{gib(free)} free of {gib(total)}{limited}"
    if free < LITTLE_MEMORY:
        what = f"{text}: the quickstart takes 0.8 GiB, a model of 0.6B parameters about 12"
        yield Finding("memory", "RAM", "warning", what, "ps aux --sort=-rss | head   # who has it?")
    else:
        yield Finding("memory", "RAM", "ok", text)
    swap = _swap()
    if swap is not None and swap[0] and swap[1] > 0.5 * swap[0] and swap[1] > 2**30:
        text = f"{gib(swap[1])} of {gib(swap[0])} are in use: what is swapped out is slow"
        yield Finding("memory", "swap", "warning", text, "ps aux --sort=-rss | head   # who has the memory?")
    shared = Path("/dev/shm")
    if shared.is_dir():
        size = shutil.disk_usage(shared)
        if size.free < LITTLE_SHM:
            text = f"{gib(size.free)} free of {gib(size.total)}: several GPUs (NCCL) and vLLM need more"
            yield Finding(
                "memory",
                "/dev/shm",
                "warning",
                text,
                "docker run --shm-size 8g …   # or: sudo mount -o remount,size=8G /dev/shm",
            )
        else:
            yield Finding("memory", "/dev/shm", "ok", f"{gib(size.free)} free of {gib(size.total)}")


def _swap() -> tuple[int, int] | None:
    """(bytes, of these in use)."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, free = (int(lines[name].split()[0]) * 1024 for name in ("SwapTotal", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None
    return total, total - free


def disk(subject: Subject) -> Iterator[Finding]:
    """Where runs, models and temporary files go: room, rights, speed."""
    folder = subject.output_dir
    yield from _place("output", folder, f"--output-dir ELSEWHERE   # {folder} can't be used", speed=True)
    yield from _place("hub cache", hub_cache(subject.env), "export HF_HOME=/somewhere/with/room", speed=False)
    yield from _place("temporary", Path(tempfile.gettempdir()), "export TMPDIR=/somewhere/with/room", speed=False)


def _place(name: str, folder: Path, elsewhere: str, speed: bool) -> Iterator[Finding]:
    try:
        there = _existing(folder)
    except OSError as error:
        yield Finding("disk", name, "error", f"{folder}: {error.strerror}", elsewhere)
        return
    if not there.is_dir():
        yield Finding("disk", name, "error", f"{there} is a file, where a folder is needed", elsewhere)
        return
    usage, kind = shutil.disk_usage(there), file_system(there)
    text = f"{folder}: {gib(usage.free)} free of {gib(usage.total)}{f', {kind}' if kind else ''}"
    try:
        rate = _write_speed(there, min(_WRITTEN, usage.free // 4) if speed else 1)
    except OSError as error:
        yield Finding("disk", name, "error", f"{text}: can't be written ({error.strerror})", elsewhere)
        return
    if speed:
        text += f", {rate / 1e6:.0f} MB/s"
    if (inodes := _free_inodes(there)) is not None and inodes < 10_000:
        yield Finding("disk", name, "error", f"{text}; only {inodes} files can be made (inodes)", elsewhere)
    elif usage.free < VERY_LITTLE_DISK:
        yield Finding("disk", name, "error", f"{text}: that is too little for a checkpoint", elsewhere)
    elif usage.free < LITTLE_DISK:
        yield Finding("disk", name, "warning", f"{text}: enough for tiny models only", elsewhere)
    elif speed and rate < SLOW_DISK:
        yield Finding("disk", name, "warning", f"{text}: slow, so checkpoints take long", elsewhere)
    elif speed and kind in _NETWORK:
        what = f"{text}: a file system of the network; checkpoints wait for it"
        yield Finding("disk", name, "warning", what, "--output-dir /a/local/disk   # copy runs afterwards")
    else:
        yield Finding("disk", name, "ok", text)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    folder = folder.absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    folder.stat()
    return folder


def _write_speed(folder: Path, count: int) -> float:
    """Bytes a second of writing and flushing so many bytes to a file, which is deleted."""
    began = time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        block = os.urandom(2**20)
        for start in range(0, count, len(block)):
            file.write(block[: count - start])
        file.flush()
        os.fsync(file.fileno())
    return count / (time.perf_counter() - began)


def _free_inodes(folder: Path) -> int | None:
    """None where the file system has no fixed number of them."""
    facts = os.statvfs(folder)
    return facts.f_favail if facts.f_files else None


def file_system(folder: Path) -> str:
    """The kind of file system that a folder lies in; "" where the system does not tell."""
    try:
        rows = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    path = folder.resolve()
    above = [(len(row[1]), row[2]) for row in rows if path.is_relative_to(row[1].replace("\\040", " "))]
    return max(above, key=lambda pair: pair[0])[1] if above else ""


def system(subject: Subject) -> Iterator[Finding]:
    """Limits of the user, encoding, clock."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files != resource.RLIM_INFINITY and files < FEW_FILES:
        text = f"{files}: a run with workers and a server opens more"
        yield Finding("system", "open files", "warning", text, f"ulimit -n {_limit(most, 65536)}")
    else:
        yield Finding("system", "open files", "ok", "no limit" if files == resource.RLIM_INFINITY else f"{files:,}")
    processes, most = resource.getrlimit(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and processes < FEW_PROCESSES:
        text = f"{processes} for this user, threads included: graders and roles are processes"
        yield Finding("system", "processes", "warning", text, f"ulimit -u {_limit(most, 4096)}")
    encoding = locale.getpreferredencoding(False)
    told = subject.env.get("LC_ALL") or subject.env.get("LC_CTYPE") or subject.env.get("LANG") or "not set"
    if (
        encoding.lower().replace("-", "") != "utf8"
        or (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    ):
        text = f"locale {told}, encoding {encoding}, output {sys.stdout.encoding}: completions hold any character"
        yield Finding("system", "encoding", "warning", text, "export LC_ALL=C.UTF-8 PYTHONUTF8=1")
    else:
        yield Finding("system", "encoding", "ok", f"UTF-8 (locale {told})")
    source = Path(__file__).stat().st_mtime
    if time.time() < min(source, 1.75e9):
        text = f"{time.strftime('%Y-%m-%d %H:%M')} is before hone's own files were made: certificates of servers fail"
        yield Finding("system", "clock", "warning", text, "sudo timedatectl set-ntp true")
    else:
        yield Finding("system", "clock", "ok", time.strftime("%Y-%m-%d %H:%M %Z"))


def _limit(most: int, wanted: int) -> int:
    return wanted if most == resource.RLIM_INFINITY else min(most, wanted)
