"""`hone report RUN`: writes the run card, and prints its verdict.

hone report outputs                          # report.html and report.json in the run's directory
hone report outputs --output cards/today     # elsewhere: nothing is written into the run
hone report outputs --json                   # print the facts
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, redirect_stdout

from hone import trust
from hone.commands.status import print_json
from hone.errors import UserError
from hone.extensions.viewer.card.facts import facts_of
from hone.extensions.viewer.card.files import refuse_others, stored, to_json, write_card
from hone.extensions.viewer.config import ReportConfig
from hone.runs.listing import find_run
from hone.runs.outputs import refuse_inside_run
from hone.runs.summary import refuse_interrupted


def run(config: ReportConfig) -> int:
    """Write and print the card; return 0. Raises UserError if there is no run, or the files can't be written."""
    path = find_run(config.run)
    refuse_interrupted(path)
    folder = config.output or path
    if folder.resolve() != path.resolve():
        refuse_inside_run(folder, "--output")

    def read(run, evaluated):
        from hone.extensions.viewer.card.lenient import read_recorded

        with trust.opened_run(run.path, run.info, config.trust_local_task, config.reward):
            return read_recorded(run, evaluated, config.grading, config.seconds, config.trust_local_task)

    with redirect_stdout(sys.stderr) if config.as_json else nullcontext():  # a task's prints are not JSON
        card = facts_of(path, read if config.lenient else stored)
    if config.as_json:
        print_json(to_json(card).rstrip())
        return 0
    if folder.resolve() != path.resolve():
        refuse_others(folder, card)
    try:
        files = write_card(card, folder)
    except OSError as error:
        where = error.filename or folder
        raise UserError(f"{where} can't be written ({error.strerror}): choose another folder with --output") from None
    print("\n".join([f"{card.title} ({card.status})\n", *card.verdict]))
    if card.caveats:
        print("\n".join(["\nCaveats:", *(f"- {line}" for line in card.caveats)]))
    print(f"\nWrote {', '.join(map(str, files))}")
    return 0
