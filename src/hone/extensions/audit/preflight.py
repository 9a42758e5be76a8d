"""The fast part of the audit, before step 0 of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.commands.status import Status, command
from hone.config.rl import RLConfig
from hone.config.shared import RunConfig
from hone.errors import UserError
from hone.runs.files import write_json
from hone.runs.observer import Observer
from hone.runs.settings import changes, settings_of
from hone.runs.view import AUDIT, CONFIG, run_info
from hone.runs.writer import RunWriter
from hone.terminal import printable

if TYPE_CHECKING:
    from hone.environments import Environment
    from hone.extensions.audit.report import Report

MAX_TOKENS_FAILURE = "length"
"""Name of the finding that `max_tokens` is too small. This finding stops no run: a trial may need few tokens."""
SHOWN = 3


def observer(config: RunConfig, by_program: bool) -> Observer | None:
    """Return the observer that audits an RL run's task. If a program started the run, most failures only warn."""
    return Audit(refuses=not by_program) if isinstance(config, RLConfig) else None


class Audit(Observer):
    """Audits a run's task before the start. If the task fails, raises UserError or, without `refuses`, only warns.

    A grader that fails on all texts, or gives a reward beyond BOUND, is always refused: no run can learn from it.
    A resumed run is not audited again if its tasks are unchanged.
    """

    def __init__(self, refuses: bool = True) -> None:
        self._refuses = refuses
        self._record: dict[str, Any] | None = None
        self._lines = ["The task was not audited (--no-audit)."]

    def check(self, training: Any) -> None:
        config = training.config
        if _had_before(config, training.envs):
            return
        self._record = {"verdict": "skipped", "why": "--no-audit"}
        if not config.audit:
            return
        not_audited = {name: why for name, env in training.envs.items() if (why := _not_audited(env))}
        self._lines = [f"The {what} was not audited: {why}." for what, why in not_audited.values()]
        if len(not_audited) == len(training.envs):
            self._record = {"verdict": "skipped", "why": next(iter(not_audited.values()))[1]}
            return
        tasks = config.tasks().items()
        records = [self._audit(training, one, training.envs[name]) for name, one in tasks if name not in not_audited]
        self._record = records[0]
        if len(records) > 1:
            from hone.extensions.audit.report import worst

            self._record = {"verdict": worst(record["verdict"] for record in records), "tasks": records}
            self._record |= {key: sum(record[key] for record in records) for key in ("texts", "examples")}
            self._record["checks"] = [check for record in records for check in record["checks"]]

    def _audit(self, training: Any, config: RLConfig, env: Environment) -> dict[str, Any]:
        """Audit a task; return its record without the seconds it took. Raises UserError if the task fails."""
        from hone.extensions.audit.probes import TOO_LARGE
        from hone.extensions.audit.report import Verdict

        report = _audit(training, config, env)
        task = config.orchestrator.env
        flags = {"a": task.args, "env_template": task.template, "seed": config.seed or None}
        see = command("hone", "audit", task.id, **flags)
        failed = [finding for finding in report.failures if finding.name != MAX_TOKENS_FAILURE]
        unfit = [finding for finding in failed if finding.name == TOO_LARGE]
        failed = unfit or failed
        if unfit or (failed and (self._refuses or report.facts["failed"] == report.facts["texts"])):
            # The rows and functions that a program gives lie in the run's folder, which a refused run does not keep.
            shown = "" if training.given is not None else f"See it with: {see}   "
            others = f" ({len(failed) - 1} more such)" if len(failed) > 1 else ""
            raise UserError(
                f"the reward of {env.label} fails its audit: {failed[0].name}: {printable(failed[0].title).rstrip('.')}"
                f"{others}. To fix it, {failed[0].remedy}. {shown}Start anyway with --no-audit"
            )
        bad = [finding for finding in report.findings if finding.verdict in (Verdict.FAIL, Verdict.WARN)]
        self._lines += [f"audit: {one.verdict}: {one.name}: {printable(one.title)}" for one in bad[:SHOWN]]
        if (task.args or task.template) and not config.orchestrator.envs:
            see = command("hone", "audit", "@", str(config.output_dir / CONFIG), seed=config.seed or None)
        self._lines += [f"audit: full report: {see}"] if bad else []
        if failed:
            self._lines.append("audit: the run starts anyway: hone.rl only warns of a failed audit")
        if form := report.facts.get("reference"):
            self._lines.append(
                f"audit: right answers were written as {printable(form)}; for another form give --reference"
            )
        return {key: value for key, value in report.record().items() if key != "seconds"}

    def before_start(self, run: RunWriter) -> None:
        if self._record is None:
            return
        write_json(run.folder / AUDIT, self._record)
        run.event("audit", run.start_step, verdict=self._record["verdict"])
        for line in self._lines:
            run.display.message(line)


def _not_audited(env: Environment) -> tuple[str, str] | None:
    """Return what can't be audited ("agent" or "task") and why; None if the task can be."""
    if env.why_not_graded:
        return "agent", env.why_not_graded
    if (name := env.rubric.needs_ids) is not None:
        return "task", f"{name} takes completion_ids, and the texts of an audit have none"
    return None


def _audit(training: Any, config: RLConfig, env: Environment) -> Report:
    """Audit a separate copy of the task in separate processes, as reward functions may keep state; data is shared."""
    from hone.extensions.audit.environment import audit_before_training
    from hone.loops.parts import task_of

    fresh, status = task_of(config, training.given), Status()
    fresh.share_data(env)
    fresh.isolated = True
    if config.display != "none":
        fresh.progress = lambda words: status(f"auditing {fresh.label}: {words}") if words else None
    fresh.use_workers(config.orchestrator.grading)
    tokenizer = training.renderer.tokenizer
    try:
        return audit_before_training(
            fresh,
            seed=config.seed,
            max_tokens=config.orchestrator.sampling.max_tokens or config.seq_len,
            count_tokens=lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids),
        )
    finally:
        fresh.close_workers()
        status.clear()


def _had_before(config: RLConfig, envs: Mapping[str, Environment]) -> bool:
    """Return True if the resumed run has an audit's record, and its tasks are unchanged."""
    if config.resume is None:
        return False
    folder = Path(config.resume.dir or config.output_dir)
    sources = (run_info(folder) or {}).get("sources", {})
    found = {f"environment/{name}" if name else "environment": env.digests([]) for name, env in envs.items()}
    same = all(sources.get(key) in (None, digests.get("environment")) for key, digests in found.items())
    if not same or not (folder / AUDIT).exists():
        return False
    changed = changes(settings_of(folder, config), config, {})
    return not any(change.name.startswith(("orchestrator.env.", "orchestrator.envs")) for change in changed)
