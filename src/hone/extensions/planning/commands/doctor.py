"""`hone doctor`: a line for each check, and the command that fixes a problem."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hone.extensions.planning.doctor import Subject, diagnose, lines, verdict
from hone.terminal import printable, raw

if TYPE_CHECKING:
    from hone.extensions.planning.config import DoctorConfig

OWN = ("--offline", "--no-offline", "--json", "--no-json", "--as-json")
COLOURS = {"": "1", "warning": "33", "error": "1;31", "fix": "36"}
"""Terminal codes for bold, yellow, bold red and cyan. They don't come from rich, which may be broken."""


def run(config: DoctorConfig) -> int:
    """Print the findings; return the exit code: 1 if there is an error among them."""
    return report(Subject(config.offline, config.run), config.as_json)


def run_without_config(argv: list[str]) -> int:
    """Report without a config, because packages that load configs are missing. The report lists the packages."""
    return report(Subject("--offline" in argv), "--json" in argv)


def report(subject: Subject, as_json: bool) -> int:
    """Check, print, and return the exit code. Output of libraries and tasks goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        findings = diagnose(subject)
    following = "make quickstart" if Path("Makefile").is_file() else "hone plan @ FILE.toml"
    if subject.config:
        following = shlex.join(["hone", "plan", *(word for word in sys.argv[2:] if word not in OWN)])
    last, code = verdict(findings, following), int(any(finding.status == "error" for finding in findings))
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings], "verdict": last}, indent=2))
        return code
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    for status, line in (*lines(findings, width), ("ok", ""), ("", last)):
        colour = COLOURS.get(status) if sys.stdout.isatty() else None
        print(f"\033[{colour}m{printable(line)}\033[0m" if colour else line, file=raw(sys.stdout) if colour else None)
    return code
