"""`hone eval ENV -m PATH`: evaluate a checkpoint on held-out examples, in this process."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from hone.commands.machine import configure, device_of
from hone.config.eval import EvalConfig
from hone.environments import Environment, load_environment
from hone.evaluation import EvalResult, evaluate
from hone.evaluation.report import show_result, show_sample
from hone.evaluation.saving import make_folder, results_folder, save_results
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model.chat import load_renderer
from hone.model.files import TINY
from hone.model.hf import load_model
from hone.orchestrator.colocated import EnginePolicy
from hone.orchestrator.groups import check_prompts

MAX_TOKENS = 1024
"""Most new tokens per completion where nothing is said."""


def run(config: EvalConfig) -> int:
    """Evaluates and reports. Returns 0, or 1 if no completion could be graded."""
    folder = results_folder(config) if config.save else None
    env = load_environment(config.env, **config.env_args)
    available = len(env.split("eval"))
    console = _console()
    if available < config.num_examples:
        console.print(
            Text(f"{env.id} has {available} held-out examples: all are used ({config.num_examples} asked for)")
        )
    if config.model == TINY:
        console.print(Text(f"{TINY} is a random model that was never trained; name yours with -m"))
    result = _evaluate(config, env, folder)
    show_sample(console, next((s for s in result.samples if s.graded), result.samples[0]))
    show_result(console, result)
    if folder is not None:
        save_results(folder, config, result, sys.argv)
        console.print(Text(f"saved       {folder}/results.jsonl and metadata.json"), soft_wrap=True)
    console.print(Text(f"next        {_next_command(config, available)}"), soft_wrap=True)
    if not len(result.rewards):
        print("error: no completion could be graded, so there is no result", file=sys.stderr)
        return 1
    return 0


def _evaluate(config: EvalConfig, env: Environment, folder: Path | None) -> EvalResult:
    policy = load_weights(config.model, config.precision, config.seed, config.chat_template, config.threads)
    if folder is not None:
        make_folder(folder)
    sampling = SamplingParams(temperature=config.temperature, top_p=config.top_p)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"evaluating {config.model} on {env.id}", total=None)
        return evaluate_weights(
            policy,
            env,
            sampling,
            num_examples=config.num_examples,
            rollouts_per_example=config.rollouts_per_example,
            max_tokens=config.max_tokens or MAX_TOKENS,
            seed=config.seed,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def load_weights(
    name: str, precision: str, seed: int = 0, chat_template: str | None = None, threads: int | None = None
) -> EnginePolicy:
    """The policy of a model folder or hub id, on the GPU if there is one. Sets this process's threads."""
    model = load_model(name, device=device_of("auto"), precision=precision, seed=seed)
    configure(threads, model.num_parameters)
    return EnginePolicy(Engine(model), load_renderer(name, chat_template))


def evaluate_weights(
    policy: EnginePolicy,
    env: Environment,
    sampling: SamplingParams,
    *,
    num_examples: int,
    rollouts_per_example: int,
    max_tokens: int,
    seed: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> EvalResult:
    """`evaluate` with the model's whole context. UserError, before sampling, naming a row that leaves no room in it."""
    context = policy.engine.model.config.max_position_embeddings
    split = env.split("eval")
    used = range(min(num_examples, len(split)))
    remedy = "shorten the row, or evaluate a model of longer context"
    check_prompts(split, used, policy.renderer, context, f"the model's context of {context} tokens", remedy)
    return evaluate(
        policy,
        env,
        num_examples=num_examples,
        rollouts_per_example=rollouts_per_example,
        sampling=sampling,
        max_tokens=max_tokens,
        seq_len=context,
        seed=seed,
        renderer=policy.renderer,
        progress=progress,
    )


def _console() -> Console:
    """Standard output; 120 columns wide where it is not a terminal, so that no table is cut."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def _next_command(config: EvalConfig, available: int) -> str:
    """The evaluation that would say more: more examples, and several completions for pass@k."""
    words = ["hone", "eval", config.env, "-m", config.model]
    if config.env_args:
        words += ["-a", json.dumps(config.env_args)]
    if config.max_tokens is not None:
        words += ["-t", str(config.max_tokens)]
    examples = min(available, max(200, 2 * config.num_examples))
    return shlex.join([*words, "-n", str(examples), "-r", str(max(8, config.rollouts_per_example))])
