"""A study from its config to its report."""

from __future__ import annotations

from pathlib import Path

from hone.config.dump import to_toml
from hone.config.study import StudyConfig
from hone.errors import UserError
from hone.runs.files import write_file
from hone.studies.cells import cells_of
from hone.studies.report import PAGE, needs_matplotlib, write_report
from hone.studies.results import Results, results_of
from hone.studies.running import Outcome, Runner, Say, tasks_of

CONFIG = "study.toml"
"""The resolved config in a study's folder, by which it is known."""


class Study:
    """A grid of runs, what is done of it, and what came out. `hone.study(...)` returns one."""

    def __init__(self, config: StudyConfig) -> None:
        self.config, self.folder = config, config.output_dir
        self.cells = cells_of(config)
        self.tasks = tasks_of(config, self.cells)
        self.outcome = Outcome()
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / CONFIG).exists():
            raise UserError(f"{self.folder} holds other files than a study's: choose another --output-dir")

    def run(self, say: Say = print, status: Say = lambda words: None) -> Study:
        """Run what is left, and write the report. Ctrl-C ends what is at work; the report is written then, too."""
        needs_matplotlib()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(self.folder / CONFIG, to_toml(self.config))
        try:
            self.outcome = Runner(self.config, self.tasks, say, status).run()
        finally:
            write_report(self.results)
        return self

    @property
    def results(self) -> Results:
        """What is done so far."""
        return results_of(self.config, self.cells, self.outcome.failed)

    @property
    def page(self) -> Path:
        """The page to look at."""
        return self.folder / PAGE


def planned(study: Study) -> str:
    """Return in a line what a study is to do."""
    kinds = [task.kind for task in study.tasks.values()]
    runs = ", ".join(f"{kinds.count(kind)} of {kind}" for kind in ("sft", "rl", "eval") if kind in kinds)
    seeds = len(study.config.seed_list)
    return f"{len(study.cells)} cells x {seeds} seed{'' if seeds == 1 else 's'}: {runs}, into {study.folder}"
