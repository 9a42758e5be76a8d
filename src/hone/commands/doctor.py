"""`hone doctor`: a line for each thing that was looked at, and the command that mends what is not well."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.planning.doctor import Finding, Subject, diagnose, lines, verdict

if TYPE_CHECKING:
    from hone.config.doctor import DoctorConfig

_OWN = ("--offline", "--no-offline", "--json", "--no-json", "--as-json")
"""Flags that are not the run's."""
_STYLES = {"": "bold", "ok": "", "warning": "yellow", "error": "bold red", "fix": "cyan"}


def run(config: DoctorConfig) -> int:
    """Prints the findings. Returns the exit code: 1 if there is an error among them."""
    return report(subject_of(config.run, config.offline), config.as_json)


def run_without_config(argv: list[str]) -> int:
    """The same where the packages that read a config are missing, which is then among the findings."""
    return report(Subject(offline="--offline" in argv), "--json" in argv)


def report(subject: Subject, as_json: bool = False) -> int:
    """Looks, prints, and returns the exit code."""
    findings = diagnose(subject)
    last = verdict(findings, following(subject))
    if as_json:
        print(json.dumps({"findings": [finding.record() for finding in findings], "verdict": last}, indent=2))
    else:
        show(findings, last)
    return int(any(finding.status == "error" for finding in findings))


def subject_of(config: Any, offline: bool) -> Subject:
    """What is looked at for the run of this config, or without one."""
    if config is None:
        return Subject(offline=offline)
    is_rl = hasattr(config, "orchestrator")
    port = config.inference.port if is_rl else Subject.port
    return Subject(config.output_dir, port, offline, config, "rl" if is_rl else "sft")


def following(subject: Subject) -> str:
    """The command that comes next."""
    if subject.config is not None:
        words = [word for word in sys.argv[2:] if word not in _OWN]
        return shlex.join(["hone", "plan", *words])
    return "make quickstart" if Path("Makefile").is_file() else "hone plan @ FILE.toml"


def show(findings: list[Finding], last: str) -> None:
    """Prints the report, in colour on a terminal where rich is there."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    try:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
        say = lambda text, style: console.print(Text(text, style), soft_wrap=True)  # noqa: E731
    except Exception:  # it is what is broken
        say = lambda text, style: print(text)  # noqa: E731
    for status, line in lines(findings, width):
        say(line, _STYLES[status])
    say("", "")
    say(last, "bold")
    sys.stdout.flush()
