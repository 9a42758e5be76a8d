"""`hone report RUN`: writes the run card, and says what is in it.

hone report outputs                          # report.html, card.md and report.json in the run's directory
hone report outputs --output cards/today     # elsewhere: nothing is written into the run
hone report outputs --json                   # print the facts
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

from hone.config.report import ReportConfig
from hone.errors import UserError
from hone.runs.listing import find_run
from hone.runs.outputs import refuse_inside_run
from hone.runs.words import refuse_interrupted
from hone.viewer.card.facts import Card, Read, facts_of
from hone.viewer.card.files import refuse_others, stored, to_json, write_card


def run(config: ReportConfig) -> int:
    """Gathers, writes, and says. Returns 0. UserError where there is no run, or the files can't be written."""
    path = find_run(config.run)
    refuse_interrupted(path)
    if config.output is not None and config.output.resolve() != path.resolve():
        refuse_inside_run(config.output, "--output")
        if not config.as_json:
            refuse_others(config.output, path)
    with redirect_stdout(sys.stderr) if config.as_json else nullcontext():  # what a task prints is no JSON
        card = facts_of(path, _read(config))
    if config.as_json:
        sys.stdout.write(to_json(card))
        return 0
    folder = config.output or path
    try:
        files = write_card(card, folder)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder} can't be written ({error.strerror}): choose another folder with --output"
        ) from None
    say(card, files)
    return 0


def _read(config: ReportConfig) -> Read:
    if not config.lenient:
        return stored

    def read(run, evaluated):
        from hone.viewer.card.lenient import read_recorded

        return read_recorded(run, evaluated, config.grading, config.seconds, config.trust_local_task)

    return read


def say(card: Card, files: list[Path]) -> None:
    """The verdict, the caveats, and where the files are."""
    print(f"{card.title} ({card.standing})\n")
    for line in card.verdict:
        print(line)
    if card.caveats:
        print("\nTo be careful about:")
        for line in card.caveats:
            print(f"- {line}")
    print(f"\nWrote {', '.join(map(str, files))}")
