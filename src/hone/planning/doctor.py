"""`hone doctor`: looks at the machine for what breaks or slows runs, and names the command that mends it.

The checks are in `checks.py`. Each runs in a process of its own, with the variables of the user's shell: it may take
long, hang or crash in a library that is broken. So this module needs the standard library only.

    python -m hone.planning.doctor AREA SUBJECT     a line of JSON for each finding
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

OLDEST = (3, 11)
"""Version of Python."""
SECONDS = 40.0
"""The most that a check may take: importing torch from a slow disk, say."""
AREAS = (
    "python",
    "packages",
    "device",
    "threads",
    "memory",
    "disk",
    "system",
    "ports",
    "extras",
    "hub",
    "wandb",
    "run",
)
"""In the order of the report."""


@dataclass(frozen=True)
class Finding:
    """One line of the report: what was looked at, how it is (`status`: ok, warning, error), and what mends it."""

    area: str
    name: str
    status: str
    text: str
    fix: str = ""


def shell_environment() -> dict[str, str]:
    """Return the environment variables that this process was started with: hone sets some of its own later."""
    try:
        content = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (entry.partition("=") for entry in os.fsdecode(content).split("\0") if entry)
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True)
class Subject:
    """What is looked at: where a run would write and listen, whether other machines may be asked, and the run.

    `kind` is rl, sft, or "" without a run; `config` is the run's as TOML, `wandb` the mode in which it asks for W&B.
    """

    output_dir: str = "outputs"
    port: int = 8000
    offline: bool = False
    kind: str = ""
    config: str = ""
    wandb: str | None = None
    env: Mapping[str, str] = field(default_factory=shell_environment, hash=False)


def diagnose(subject: Subject) -> list[Finding]:
    """Return all findings, by area. What measures the disk runs when the others have ended."""
    if sys.version_info < OLDEST:  # the others would only find what follows from that
        return examine(subject, ["python"])
    found = examine(subject, [area for area in AREAS if area != "disk"]) + examine(subject, ["disk"])
    return sorted(found, key=lambda finding: AREAS.index(finding.area))


def examine(subject: Subject, areas: Iterable[str], seconds: float | None = None) -> list[Finding]:
    """Return the findings of these areas, whose checks run side by side. Of a name the last finding counts."""
    seconds = seconds or SECONDS
    record = {name: value for name, value in vars(subject).items() if name != "env"}
    env = {**subject.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    children = {
        area: subprocess.Popen(
            [sys.executable, "-m", "hone.planning.doctor", area, json.dumps(record)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for area in areas
    }
    deadline = time.monotonic() + seconds
    found: dict[tuple[str, str], Finding] = {}
    for area, child in children.items():
        problem = ""
        try:
            out, errors = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            if child.returncode:
                problem = f"could not be done ({(errors.strip().splitlines() or [child.returncode])[-1]})"
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
            problem = f"gave no answer within {seconds:.0f} s, and was left"
        findings = [Finding(**json.loads(line)) for line in out.splitlines()]
        if problem:
            findings.append(Finding(area, "check", "warning", problem))
        found |= {(finding.area, finding.name): finding for finding in findings}
    return [finding for finding in found.values() if finding.text]


def verdict(findings: Iterable[Finding], following: str) -> str:
    """Return the last line: how many errors and warnings, and what to do now."""
    findings = list(findings)
    counts = {status: sum(f.status == status for f in findings) for status in ("error", "warning")}
    words = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
    if counts["error"]:
        return f"{' and '.join(words)}: mend what is an error, then run `hone doctor` again."
    return f"{'Ready, with ' + words[0] if words else 'Ready'}. Next: {following}"


def lines(findings: Iterable[Finding], width: int) -> Iterator[tuple[str, str]]:
    """Yield (status, line) of the report, wrapped to `width`; a heading has the status ""."""
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


def main(area: str, record: str) -> None:
    """Run one check, and print what it finds; what libraries and tasks print goes to standard error."""
    from hone.planning.checks import CHECKS

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for finding in CHECKS[area](Subject(**json.loads(record), env=dict(os.environ))):
        print(json.dumps(asdict(Finding(area, *finding))), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
