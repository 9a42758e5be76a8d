"""`hone eval ENV -m PATH`: evaluate a checkpoint on held-out examples, in this process."""

from __future__ import annotations

import json
import shlex
import sys

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from hone.commands.machine import configure, device_of
from hone.config.eval import EvalConfig
from hone.environments import Environment, load_environment
from hone.evaluation import EvalResult, evaluate
from hone.evaluation.report import show_result, show_sample
from hone.evaluation.saving import results_folder, save_results
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.orchestrator.colocated import EnginePolicy

MAX_TOKENS = 1024
"""Most new tokens per completion where nothing is said."""


def run(config: EvalConfig) -> int:
    """Evaluates and reports. Returns 0, or 1 if no completion could be graded."""
    folder = results_folder(config) if config.save else None
    env = load_environment(config.env, **config.env_args)
    env.split("eval")
    result = _evaluate(config, env)
    console = _console()
    show_sample(console, next((s for s in result.samples if s.graded), result.samples[0]))
    show_result(console, result)
    if folder is not None:
        save_results(folder, config, result, sys.argv)
        console.print(Text(f"saved       {folder}/results.jsonl and metadata.json"), soft_wrap=True)
    console.print(Text(f"next        {_next_command(config)}"), soft_wrap=True)
    if not len(result.rewards):
        print("error: no completion could be graded, so there is no result", file=sys.stderr)
        return 1
    return 0


def _evaluate(config: EvalConfig, env: Environment) -> EvalResult:
    model = load_model(config.model, device=device_of("auto"), precision=config.precision, seed=config.seed)
    renderer = load_renderer(config.model, config.chat_template)
    configure(config.threads, model.num_parameters)
    context = model.config.max_position_embeddings
    sampling = SamplingParams(temperature=config.temperature, top_p=config.top_p)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"evaluating {config.model} on {env.id}", total=None)
        return evaluate(
            EnginePolicy(Engine(model), renderer),
            env,
            num_examples=config.num_examples,
            rollouts_per_example=config.rollouts_per_example,
            sampling=sampling,
            max_tokens=config.max_tokens or MAX_TOKENS,
            seq_len=context,
            seed=config.seed,
            renderer=renderer,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def _console() -> Console:
    """Standard output; 120 columns wide where it is not a terminal, so that no table is cut."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def _next_command(config: EvalConfig) -> str:
    """The evaluation that would say more: more examples, and several completions for pass@k."""
    words = ["hone", "eval", config.env, "-m", config.model]
    if config.env_args:
        words += ["-a", json.dumps(config.env_args)]
    if config.max_tokens is not None:
        words += ["-t", str(config.max_tokens)]
    return shlex.join(
        [*words, "-n", str(max(200, 2 * config.num_examples)), "-r", str(max(8, config.rollouts_per_example))]
    )
