"""`hone study @ study.toml`: trains a grid of variants over seeds, and says of each difference how sure it is."""

from __future__ import annotations

import sys

from hone.commands.status import Status, print_table
from hone.config.study import StudyConfig
from hone.studies.report import sentences, tables_of
from hone.studies.study import Study, planned


def run(config: StudyConfig) -> int:
    """Run, report and print. Return 0, or 1 if runs failed, or the budget left some out."""
    study, status = Study(config), Status(sys.stderr)
    print(f"STUDY: {planned(study)}", flush=True)

    def say(line: str) -> None:
        status.clear()
        print(line, flush=True)

    study.run(say, status)
    status.clear()
    results = study.results
    cells = next(tables_of(results))
    shown = ("cell", "seeds", cells.heads[2], "difference", "95 % interval", "p", "verdict")
    print_table([{head: row[cells.heads.index(head)] for head in shown} for row in cells.rows])
    print("\n".join(["", *sentences(results), "", f"Look: {study.page}"]))
    if study.outcome.left:
        print(f"The budget is used up with {len(study.outcome.left)} runs left: the same command goes on with them.")
    return 1 if results.missing else 0
