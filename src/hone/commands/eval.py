"""`hone eval ENV -m PATH [-b URL]`: evaluate a model in this process or at a URL on held-out examples."""

from __future__ import annotations

import shlex
import sys

from rich.text import Text

from hone.commands.status import Status, Ticking
from hone.config.eval import EvalConfig
from hone.evaluation.profile import pass_rates
from hone.evaluation.report import show_result, show_sample
from hone.evaluation.result import EvalResult
from hone.extension import gathered, machines_of
from hone.loops.evaluating import Evaluation
from hone.model.files import TINY
from hone.runs.signals import StopRequest
from hone.terminal import make_console


def run(config: EvalConfig) -> int:
    """Evaluate and report. Return 0, 1 if rollouts failed or too many could not be graded, or 130 after Ctrl-C."""
    if config.base_url is None and (machines := machines_of(config)) is not None:
        with machines.serve(config) as served:
            return run(served)
    evaluation = Evaluation(config)
    config = evaluation.config
    # not a terminal: 120 columns, so that no table is cut
    console = make_console(highlight=False, width=None if sys.stdout.isatty() else 120)
    if evaluation.shortage:
        console.print(Text(evaluation.shortage))
    if config.model == TINY and config.base_url is None:
        console.print(Text(f"{TINY} is a random model that was never trained; give yours with -m"))
    result = saved(evaluation)  # before printing, which fails if standard output is closed
    if result.samples:
        show_sample(console, next((s for s in result.samples if s.graded), result.samples[0]))
    show_result(console, result)
    if config.profile is not None and not result.stopped:
        between, count = sum(0 < row["pass_rate"] < 1 for row in pass_rates(result)), len(result.by_example)
        words = f"{config.profile}: {between} of {count} training examples have correct and wrong completions"
        console.print(Text(f"profile     {words}"), soft_wrap=True)
    if evaluation.folder is not None:
        console.print(Text(f"saved       {evaluation.folder}/results.jsonl and metadata.json"), soft_wrap=True)
        if "report" in gathered("COMMANDS", {}):
            console.print(Text(f"next        {shlex.join(['hone', 'report', str(evaluation.folder)])}"), soft_wrap=True)
    return _exit_code(result, config.grading.max_failed)


def _exit_code(result: EvalResult, max_failed: float) -> int:
    if result.stopped:
        return 130
    failed, graded = len(result.failed), len(result.samples)
    total, problem = failed + graded, ""
    if failed == total:
        problem = f"all {total} rollouts failed, so there is no result"
    elif not len(result.rewards):
        problem = "no completion could be graded, so there is no result"
    elif failed:
        problem = f"{failed} of {total} rollouts failed: the averages are over the remaining {graded}"
    elif len(result.failures) > max_failed * total:
        problem = f"{len(result.failures)} of {total} completions could not be graded, more than {max_failed:.0%} "
        problem += "(--grading.max-failed): the averages are over the rest"
    if problem:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problem else 0


def saved(evaluation: Evaluation) -> EvalResult:
    """Sample and grade with a progress line, and save the results. Ctrl-C saves the results so far."""
    config, env = evaluation.config, evaluation.env
    title = f"evaluating {config.model}{f' at {config.base_url}' if config.base_url else ''} on {env.label}"
    try:
        with Ticking(Status(sys.stderr), title) as tell:
            env.progress = lambda words: tell(words or title)
            result = evaluation.run(lambda done, total: tell(f"{title}: {done:,} of {total:,} completions"))
    except KeyboardInterrupt:
        print("Stopped by Ctrl-C before any result: nothing is saved.", file=sys.stderr)
        raise
    with StopRequest(lambda words: None):
        evaluation.save(result, sys.argv)
    if result.stopped:
        total = len(result.samples) + len(result.failed)
        where = f"saved in {evaluation.folder}" if evaluation.folder else "not saved"
        left = "; no profile is written" if config.profile else ""
        print(f"Stopped by Ctrl-C: {len(result.samples)} of {total} completions are {where}{left}.", file=sys.stderr)
    if evaluation.special_texts:
        print(f"warning: {evaluation.special_texts}", file=sys.stderr)
    return result
