"""`hone doctor`: looks at the machine for what breaks or slows runs, and names the command that mends it.

A check yields findings. It may take long, raise, or hang in a library that is broken: each runs in a thread of its own,
is given up after a while, and what may bring the process down is done by a child. So this room imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["ok", "warning", "error"]
NETWORK_SECONDS = 3.0
"""The most that a question to another machine may take."""
SECONDS = 40.0
"""The most that a check may take: importing torch from a slow disk, say."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it is, and the command that mends it, if it is not well."""

    area: str
    name: str
    status: Status
    text: str
    fix: str = ""

    def record(self) -> dict[str, str]:
        """For `--json`."""
        return asdict(self)


def shell_environment() -> dict[str, str]:
    """The environment variables that this process was started with: hone sets some of its own later."""
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (entry.partition("=") for entry in os.fsdecode(content).split("\0") if entry)
    return {name: value for name, _, value in pairs}


def hub_home(env: Mapping[str, str]) -> Path:
    """Where the hub's client keeps its token and, unless it is told otherwise, its cache."""
    caches = Path(env.get("XDG_CACHE_HOME") or "~/.cache")
    return Path(env.get("HF_HOME") or caches / "huggingface").expanduser()


def hub_cache(env: Mapping[str, str]) -> Path:
    """Where the hub's models and data are."""
    return Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or hub_home(env) / "hub").expanduser()


@dataclass
class Subject:
    """What is looked at: where a run would write and listen, whether other machines are asked, and the run's config."""

    output_dir: Path = Path("outputs")
    port: int = 8000
    offline: bool = False
    config: Any = None
    kind: str = ""
    env: Mapping[str, str] = field(default_factory=shell_environment)


Check = Callable[[Subject], Iterable[Finding]]


def examine(subject: Subject, checks: Mapping[str, Check], seconds: float = SECONDS) -> list[Finding]:
    """The findings of all checks, in their order; they run side by side. `checks` are by area."""
    running = [(area, _Running(check, subject)) for area, check in checks.items()]
    deadline = time.monotonic() + seconds
    found: list[Finding] = []
    for area, one in running:
        one.thread.join(max(0.0, deadline - time.monotonic()))
        found += one.found  # also of a check that did not end
        if one.thread.is_alive():
            found.append(Finding(area, "check", "warning", f"gave no answer within {seconds:.0f} s, and was left"))
        elif one.error is not None:
            text = f"{type(one.error).__name__}: {one.error}".splitlines()[0]
            found.append(Finding(area, "check", "warning", f"could not be done ({text})"))
    return found


class _Running:
    """A check in a thread, which does not keep the process from ending."""

    def __init__(self, check: Check, subject: Subject) -> None:
        self.found: list[Finding] = []
        self.error: BaseException | None = None
        self._check, self._subject = check, subject
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for finding in self._check(self._subject):
                self.found.append(finding)
        except Exception as error:
            self.error = error


def all_checks() -> list[dict[str, Check]]:
    """Checks by area: first those that run side by side, then, each alone, those that measure."""
    from hone.planning import doctor_device, doctor_machine, doctor_python, doctor_run, doctor_services, doctor_threads

    first: dict[str, Check] = {
        "python": doctor_python.python,
        "packages": doctor_python.packages,
        "imports": doctor_python.imports,
        "device": doctor_device.device,
        "threads": doctor_threads.settings,
        "memory": doctor_machine.memory,
        "system": doctor_machine.system,
        "ports": doctor_services.ports,
        "extras": doctor_services.extras,
        "sandbox": doctor_services.sandbox,
        "hub": doctor_services.hub,
        "wandb": doctor_services.wandb,
        "run": doctor_run.of_config,
    }
    if sys.version_info < doctor_python.OLDEST:  # the others would only find what follows from that
        return [{"python": doctor_python.python}]
    return [first, {"disk": doctor_machine.disk}, {"threads": doctor_threads.busy_wait}]


AREAS = [
    "python",
    "packages",
    "imports",
    "device",
    "threads",
    "memory",
    "disk",
    "system",
    "ports",
    "extras",
    "sandbox",
    "hub",
    "wandb",
    "run",
]
"""In the order of the report."""


def diagnose(subject: Subject) -> list[Finding]:
    """All findings, by area."""
    found = [finding for checks in all_checks() for finding in examine(subject, checks)]
    return sorted(found, key=lambda finding: AREAS.index(finding.area))


def verdict(findings: Iterable[Finding], following: str) -> str:
    """The last line: how many errors and warnings, and what to do now."""
    counts = {status: sum(f.status == status for f in findings) for status in ("error", "warning")}
    words = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
    if counts["error"]:
        return f"{' and '.join(words)}: mend what is an error, then run `hone doctor` again."
    return f"{'Ready, with ' + words[0] if words else 'Ready'}. Next: {following}"


def gib(count: float) -> str:
    """`23.5 GiB`, `512 MiB`"""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def lines(findings: Iterable[Finding], width: int) -> Iterator[tuple[str, str]]:
    """(status, line) of the report, wrapped to `width`; a heading has the status ""."""
    import textwrap

    findings = list(findings)
    names = max((len(f.name) for f in findings), default=0)
    indent = " " * (2 + 9 + names + 2)
    for area in dict.fromkeys(f.area for f in findings):
        yield "", area
        for f in (f for f in findings if f.area == area):
            head = f"  {f.status:<9}{f.name:<{names}}  "
            wrapped = textwrap.wrap(f.text, max(width - len(indent), 40), break_on_hyphens=False) or [""]
            yield f.status, head + wrapped[0]
            yield from ((f.status, indent + line) for line in wrapped[1:])
            if f.fix:  # not wrapped: it is there to be pasted
                yield "fix", f"{indent}{'mend it' if f.status != 'ok' else 'if wanted'}: {f.fix}"
