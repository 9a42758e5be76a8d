"""`hone doctor`: a line for each thing that was looked at, and the command that mends what is not well."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hone.planning.doctor import Finding, Subject, diagnose, lines, verdict

if TYPE_CHECKING:
    from hone.config.doctor import DoctorConfig

_OWN = ("--offline", "--no-offline", "--json", "--no-json", "--as-json")
_STYLES = {"": "bold", "ok": "", "warning": "yellow", "error": "bold red", "fix": "cyan"}


def run(config: DoctorConfig) -> int:
    """Print the findings; return the exit code: 1 if there is an error among them."""
    subject, settings = Subject(offline=config.offline), config.run
    if settings is not None:
        from hone.config.dump import to_toml
        from hone.config.rl import RLConfig

        rl = isinstance(settings, RLConfig)
        mode = settings.wandb and (settings.wandb.mode or "")
        port = settings.inference.port if rl else subject.port
        output, kind = str(settings.output_dir), "rl" if rl else "sft"
        subject = Subject(output, port, config.offline, kind, to_toml(settings), mode)
    return report(subject, config.as_json)


def run_without_config(argv: list[str]) -> int:
    """Do the same where the packages that read a config are missing, which is then among the findings."""
    return report(Subject(offline="--offline" in argv), "--json" in argv)


def report(subject: Subject, as_json: bool) -> int:
    """Look, print, and return the exit code."""
    findings, following = diagnose(subject), "hone plan @ FILE.toml"
    if subject.config:
        following = shlex.join(["hone", "plan", *(word for word in sys.argv[2:] if word not in _OWN)])
    elif Path("Makefile").is_file():
        following = "make quickstart"
    last = verdict(findings, following)
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings], "verdict": last}, indent=2))
    else:
        _show(findings, last)
    return int(any(finding.status == "error" for finding in findings))


def _show(findings: list[Finding], last: str) -> None:
    """Print the report, in colour on a terminal where rich is there."""
    width = min(shutil.get_terminal_size((120, 24)).columns, 140)
    try:
        from rich.console import Console
        from rich.text import Text

        console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
        show = lambda text, style: console.print(Text(text, style), soft_wrap=True)  # noqa: E731
    except Exception:  # it is what is broken
        show = lambda text, style: print(text)  # noqa: E731
    for status, line in (*lines(findings, width), ("ok", ""), ("", last)):
        show(line, _STYLES[status])
    sys.stdout.flush()
