"""`hone eval ENV -m PATH [-b URL]`: evaluate a model on held-out examples, in this process or behind an URL."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from hone.composition.evaluating import Evaluation
from hone.config.eval import EvalConfig
from hone.evaluation.report import show_result, show_sample
from hone.evaluation.result import EvalResult
from hone.model.files import TINY

_SILENCE_SECONDS = 5.0
"""Least time between two lines that say how far grading is."""


def run(config: EvalConfig) -> int:
    """Evaluates and reports. Returns 0, or 1 if rollouts failed or too many completions could not be graded."""
    evaluation = Evaluation(config)
    config, available = evaluation.config, evaluation.available
    console = _console()
    if available < config.num_examples:
        words = f"{evaluation.env.id} has {available} held-out examples: all are used ({config.num_examples} asked for)"
        console.print(Text(words))
    if config.model == TINY and config.base_url is None:
        console.print(Text(f"{TINY} is a random model that was never trained; name yours with -m"))
    result = with_progress(evaluation)
    if result.samples:
        show_sample(console, next((s for s in result.samples if s.graded), result.samples[0]))
    show_result(console, result)
    if evaluation.folder is not None:
        evaluation.save(result, sys.argv)
        console.print(Text(f"saved       {evaluation.folder}/results.jsonl and metadata.json"), soft_wrap=True)
    console.print(Text(f"next        {_next_command(config, available, result)}"), soft_wrap=True)
    return _exit_code(result, config.grading.max_failed)


def _exit_code(result: EvalResult, max_failed: float) -> int:
    failed, total = len(result.failed), len(result.failed) + len(result.samples)
    if failed == total:
        print(f"error: all {total} rollouts failed, so there is no result", file=sys.stderr)
    elif not len(result.rewards):
        print("error: no completion could be graded, so there is no result", file=sys.stderr)
    elif failed:
        words = f"{failed} of {total} rollouts failed: the averages are over the other {total - failed}"
        print(f"error: {words}", file=sys.stderr)
    elif len(result.failures) > max_failed * total:
        words = f"{len(result.failures)} of {total} completions could not be graded, more than {max_failed:.0%}"
        print(f"error: {words} (--grading.max-failed): the averages are over the others", file=sys.stderr)
    else:
        return 0
    return 1


def with_progress(evaluation: Evaluation) -> EvalResult:
    """Sample and grade; a bar shows how far that is or, where there is no terminal, a line every few seconds."""
    config, env = evaluation.config, evaluation.env
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        where = f" at {config.base_url}" if config.base_url else ""
        title = f"evaluating {config.model}{where} on {env.id}"
        task = bar.add_task(title, total=None)
        tell = env.progress = _teller(console, lambda words: bar.update(task, description=words or title))

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if not console.is_terminal:
                tell(f"{title}: {done:,} of {total:,} completions")

        return evaluation.run(progress)


def _teller(console: Console, show: Callable[[str], None]) -> Callable[[str], None]:
    """Where to say how far grading is: in the bar or, where there is no terminal, in a line every few seconds."""
    if console.is_terminal:
        return show
    said = [time.monotonic()]

    def tell(words: str) -> None:
        if words and time.monotonic() - said[0] >= _SILENCE_SECONDS:
            said[0] = time.monotonic()
            print(words, file=sys.stderr, flush=True)

    return tell


def _console() -> Console:
    """Standard output; 120 columns wide where it is not a terminal, so that no table is cut."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def _next_command(config: EvalConfig, available: int, result: EvalResult) -> str:
    """The evaluation that would say more: more examples, and several completions for pass@k; the same, if it failed."""
    words = ["hone", "eval", config.env, "-m", config.model]
    for flag, value in (("-b", config.base_url), ("-k", config.api_key_var)):
        words += [flag, value] if value is not None else []
    for flag, tree in (("-a", config.env_args), ("--template", config.template), ("-S", config.sampling_args)):
        words += [flag, json.dumps(tree)] if tree else []
    for flag, name in (("-t", "max_tokens"), ("-T", "temperature"), ("--top-p", "top_p"), ("--seed", "seed")):
        value = getattr(config, name)
        words += [flag, str(value)] if value != type(config).model_fields[name].default else []
    examples, rollouts = min(available, max(200, 2 * config.num_examples)), max(8, config.rollouts_per_example)
    if result.failed:
        examples, rollouts = config.num_examples, config.rollouts_per_example
    return shlex.join([*words, "-n", str(examples), "-r", str(rollouts)])
