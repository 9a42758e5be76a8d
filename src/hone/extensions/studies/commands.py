"""`hone study @ study.toml`: trains variants of a recipe over seeds, and tests each difference."""

from __future__ import annotations

import signal
import sys

from hone.commands.status import Status, print_table
from hone.extensions.studies.config import StudyConfig
from hone.extensions.studies.report import sentences, tables_of
from hone.extensions.studies.study import Study
from hone.runs.display import say


def run(config: StudyConfig) -> int:
    """Run the study, write its report, print results. Return 0; 1 if runs are missing; 143 after SIGTERM."""
    study, status = Study(config), Status(sys.stderr)
    say(f"STUDY: {study}")

    def tell(line: str) -> None:
        status.clear()
        say(line)

    terminated = False

    def on_sigterm(*_: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, on_sigterm)
    try:
        study.run(tell, status)
    except KeyboardInterrupt:
        if not terminated:
            raise
        return 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
        status.clear()
    cells = next(tables_of(study.results))
    shown = ("cell", "n", config.eval.metric, "difference", "95 % interval", "p", "corrected p", "verdict")
    print_table([{head: row[cells.heads.index(head)] for head in shown} for row in cells.rows])
    print("\n".join(["", *sentences(study.results), "", f"Look: {study.page}"]))
    if study.outcome.left:
        print(f"The budget is used up; {len(study.outcome.left)} runs are left: the same command continues the study.")
    return 1 if study.results.missing else 0
