"""Runs a study, from config to report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hone.config.dump import to_toml
from hone.config.parse import from_settings
from hone.errors import UserError, called_from
from hone.extensions.studies.cells import cells_of
from hone.extensions.studies.config import StudyConfig
from hone.extensions.studies.report import PAGE, needs_matplotlib, write_report
from hone.extensions.studies.results import Results, results_of
from hone.extensions.studies.running import Outcome, Runner, Say, Tasks
from hone.runs.files import TMP_PREFIX, write_file
from hone.runs.outputs import Lock
from hone.runs.view import LOCK

CONFIG = "study.toml"
"""File of the resolved config, which marks a folder as a study."""


class Study:
    """Variants of a run over seeds, and their results. `hone.study(...)` returns a Study."""

    def __init__(self, config: StudyConfig) -> None:
        self.config, self.folder = config, config.output_dir
        self.cells = cells_of(config)
        self.tasks = Tasks(config, self.cells)
        self.outcome = Outcome()
        if self.folder.exists() and not self.folder.is_dir():
            raise UserError(f"{self.folder} is a file: choose another --output-dir")
        found = self.folder.iterdir() if self.folder.exists() else ()
        # A study may leave these files if it could not write its config, or was killed earlier.
        foreign = [path for path in found if path.name != LOCK and not path.name.startswith(TMP_PREFIX)]
        if foreign and not (self.folder / CONFIG).exists():
            raise UserError(f"{self.folder} holds files but no study: choose another --output-dir")

    def run(self, say: Say = print, status: Say = lambda words: None) -> Study:
        """Run the remaining tasks and write the report, also after an early end such as Ctrl-C.

        Raises UserError if another process runs in the folder, or if matplotlib is missing.
        """
        needs_matplotlib()
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = Lock(self.folder)
        try:
            write_file(self.folder / CONFIG, to_toml(self.config))
            for words in self._shortages():
                say(words)
            runner, all_ran = Runner(self.config, self.tasks, say, status), False
            self.outcome = runner.outcome
            try:
                runner.run()
                all_ran = True
            finally:
                if self.config.eval.lenient and all_ran:
                    status("reading the evaluations leniently")
                self.results = results_of(self.config, self.cells, self.tasks, self.outcome.failed, reads=all_ran)
                write_report(self.results)
        finally:
            lock.release()
        return self

    def _shortages(self) -> list[str]:
        """Return a sentence per task with too few held-out examples. Raises UserError if a task can't load."""
        from hone.environments.loading import configured
        from hone.evaluation.loop import shortage

        configs = {to_toml(task.config): task.config for task in self.tasks.values() if task.kind == "eval"}
        found = []
        for config in configs.values():
            env = configured(config.env, config.env_args, config.template, "eval.env.template")
            found.append(shortage(env, "eval", config.num_examples))
        return [words for words in dict.fromkeys(found) if words]

    results: Results
    """Set by `run`."""

    @property
    def page(self) -> Path:
        return self.folder / PAGE

    def __str__(self) -> str:
        kinds = [task.kind for task in self.tasks.values()]
        runs = ", ".join(f"{kinds.count(kind)} of {kind}" for kind in ("sft", "rl", "eval") if kind in kinds)
        seeds = f"{self.config.seeds} seed{'' if self.config.seeds == 1 else 's'}"
        return f"{len(self.cells)} cells x {seeds}: {runs}, into {self.folder}"


@called_from(python=True)
def study(config: StudyConfig | str | Path | None = None, **settings: Any) -> Study:
    """Train variants over seeds, as `hone study` does; return the study, with `.results`, `.folder`, `.page`.

    `config` is a TOML file, a `StudyConfig` or None; `settings` override its keys. Finished runs are not repeated.
    """
    return Study(from_settings(StudyConfig, config, settings)).run()
