"""Cores and threads: how many there are for this process, and whether OpenMP's busy wait would stall it."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from hone.planning.doctor import Finding, Subject
from hone.planning.doctor_torch import TorchChild

QUIET = {"GOMP_SPINCOUNT": "1000", "OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that soon give their core to others."""
LONGEST_SPIN = 10_000
"""A larger GOMP_SPINCOUNT costs more beside a busy process than it brings (see `hone.cli.prepare_process`)."""
COLLAPSE = 0.5
"""Beside a busy process, less than this share of what quiet threads do is the trap."""
_SECONDS = 0.4
_ADVICE = "export GOMP_SPINCOUNT=1000 OMP_WAIT_POLICY=PASSIVE"


def settings(subject: Subject) -> Iterator[Finding]:
    """Cores that there are and that this process may use, the load, and variables that choose threads."""
    affinity, quota = len(usable_cpus()), cpu_quota()
    machine = os.cpu_count() or affinity
    bound = f", of {machine} of the machine" if affinity < machine else ""
    if quota is not None and quota < affinity:
        share = max(1, math.floor(quota))
        text = (
            f"{affinity} are seen, but the container may use {quota:g}: with a thread on each they wait for each other"
        )
        yield Finding(
            "threads",
            "cores",
            "warning",
            text,
            f"--threads {share}   # for other programs: export OMP_NUM_THREADS={share}",
        )
    else:
        yield Finding("threads", "cores", "ok", f"{affinity} for this process{bound}")
    yield _load(machine)
    yield _number(subject.env, affinity)
    yield from _waits(subject.env)


def usable_cpus() -> list[int]:
    """Numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Processors that the cgroup may use at a time; None without a limit. Version 2, or version 1."""
    own = _own_cgroup()
    for folder in (root / own.lstrip("/"), root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            if quota != "max":
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    try:
        quota = int((root / "cpu/cpu.cfs_quota_us").read_text())
        return quota / int((root / "cpu/cpu.cfs_period_us").read_text()) if quota > 0 else None
    except (OSError, ValueError):
        return None


def _own_cgroup() -> str:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def _load(cores: int) -> Finding:
    """That of the whole machine, as the system counts it, against all its cores."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return Finding("threads", "load", "ok", "not told by this system")
    if load > 0.75 * cores:
        text = f"{load:.1f} processes were at work over the last minute, on {cores} core{'s' if cores > 1 else ''}"
        return Finding(
            "threads", "load", "warning", f"{text}: runs will be slower than they could be", "top   # who is it?"
        )
    return Finding("threads", "load", "ok", f"{load:.1f} over the last minute")


def _number(env: Mapping[str, str], cores: int) -> Finding:
    """OMP_NUM_THREADS."""
    text = env.get("OMP_NUM_THREADS")
    if text is None:
        return Finding("threads", "OMP_NUM_THREADS", "ok", "not set: hone chooses (1 for a model under 10M parameters)")
    first = text.split(",")[0].strip()
    if not first.isdigit() or int(first) < 1:
        return Finding(
            "threads", "OMP_NUM_THREADS", "warning", f"{text!r} is no number of threads", "unset OMP_NUM_THREADS"
        )
    if int(first) > cores:
        what = f"{first}, but this process has {cores} core{'s' if cores > 1 else ''}: threads wait for each other"
        return Finding("threads", "OMP_NUM_THREADS", "warning", what, f"export OMP_NUM_THREADS={cores}")
    return Finding("threads", "OMP_NUM_THREADS", "ok", f"{first}; in a run `threads` decides")


def _waits(env: Mapping[str, str]) -> Iterator[Finding]:
    """Variables that make idle threads keep their core."""
    spin = env.get("GOMP_SPINCOUNT", "")
    if spin.upper().startswith("INF") or (spin.isdigit() and int(spin) > LONGEST_SPIN):
        text = f"{spin}: idle threads keep their core for long; hone leaves it as you set it"
        yield Finding("threads", "GOMP_SPINCOUNT", "warning", text, "unset GOMP_SPINCOUNT   # then hone sets 3000")
    if env.get("OMP_WAIT_POLICY", "").upper() == "ACTIVE":
        text = "ACTIVE: idle threads keep their core"
        text += "; hone sets GOMP_SPINCOUNT, which comes first, but other programs suffer" if not spin else ""
        yield Finding("threads", "OMP_WAIT_POLICY", "warning", text, "export OMP_WAIT_POLICY=PASSIVE")
    block = env.get("KMP_BLOCKTIME", "")
    if block.lower().startswith("inf") or (block.isdigit() and int(block) > 200):
        text = f"{block}: with Intel's OpenMP idle threads keep their core for so many milliseconds"
        yield Finding("threads", "KMP_BLOCKTIME", "warning", text, "export KMP_BLOCKTIME=0")


def busy_wait(subject: Subject) -> Iterator[Finding]:
    """Measures it: products on two threads beside a busy process, as the shell has it set and with quiet threads."""
    cpus = usable_cpus()[:2]
    if len(cpus) < 2 or not hasattr(os, "sched_setaffinity"):
        text = "not measured: one core" if len(cpus) < 2 else "not measured: this system has no libgomp"
        yield Finding("threads", "busy wait", "ok", text)
        return
    as_set, quiet = TorchChild(subject.env), TorchChild({**subject.env, **QUIET})
    neighbour = None
    try:
        if "error" in as_set.facts or "error" in quiet.facts:
            yield Finding("threads", "busy wait", "ok", "not measured: torch can't be imported")
            return
        alone = as_set.gflops(cpus, _SECONDS)
        neighbour = _busy(cpus[0])
        slow, fast = as_set.gflops(cpus, 2 * _SECONDS), quiet.gflops(cpus, 2 * _SECONDS)
    finally:
        for child in (as_set, quiet):
            child.close()
        if neighbour is not None:
            neighbour.kill()
            neighbour.wait()
    yield judged(alone, slow, fast, subject.env)


def judged(alone: float, slow: float, fast: float, env: Mapping[str, str]) -> Finding:
    """What the measurement means: GFLOP/s alone, beside a busy process, and there with threads that wait quietly."""
    one, two, three = (f"{rate:.0f}" if rate >= 1 else f"{rate:.1g}" for rate in (alone, slow, fast))
    numbers = f"two threads do {one} GFLOP/s alone, {two} beside a busy process ({three} if they wait quietly)"
    if slow >= COLLAPSE * fast:
        if alone < slow:
            numbers += ": other processes kept the cores busy, so this says little; look again when they have ended"
        return Finding("threads", "busy wait", "ok", numbers)
    own = "GOMP_SPINCOUNT" in env
    if own:
        text = f"{numbers}: OpenMP's busy wait, for GOMP_SPINCOUNT={env['GOMP_SPINCOUNT']} is set and hone keeps it"
        return Finding("threads", "busy wait", "warning", text, _ADVICE)
    text = (
        f"{numbers}: OpenMP's busy wait. hone's commands set GOMP_SPINCOUNT=3000 by themselves; torchrun, scripts of "
    )
    text += "your own and notebooks do not"
    return Finding("threads", "busy wait", "ok", text, _ADVICE)


def _busy(cpu: int) -> subprocess.Popen[bytes]:
    """A process that keeps a core busy, until it is killed, this one ends, or 20 s are over."""
    code = f"import os, time\nos.sched_setaffinity(0, [{cpu}])\nend = time.monotonic() + 20\n"
    code += f"while time.monotonic() < end and os.getppid() == {os.getpid()}: pass"
    return subprocess.Popen([sys.executable, "-S", "-c", code], stdin=subprocess.DEVNULL)
