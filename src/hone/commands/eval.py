"""`hone eval ENV -m PATH [-b URL]`: evaluate a model on held-out examples, in this process or behind an URL."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from hone.composition.machine import configure, device_of
from hone.composition.sampling import KV_GIB, prefix_bytes
from hone.config.eval import MAX_TOKENS, EvalConfig
from hone.environments import Environment
from hone.environments.loading import configured
from hone.errors import UserError
from hone.evaluation.loop import evaluate
from hone.evaluation.remote import check_body, evaluate_url, find_model
from hone.evaluation.report import show_result, show_sample
from hone.evaluation.result import EvalResult
from hone.evaluation.saving import make_folder, results_folder, save_results
from hone.inference.api_key import api_key
from hone.inference.endpoint import Endpoint
from hone.inference.engine import Engine
from hone.inference.types import SamplingParams
from hone.model.chat import load_renderer
from hone.model.files import TINY
from hone.model.hf import load_model
from hone.orchestrator.colocated import EnginePolicy
from hone.orchestrator.conversations import check_turns
from hone.orchestrator.groups import check_prompts

_SILENCE_SECONDS = 5.0
"""Least time between two lines that say how far grading is."""


class Counts(TypedDict):
    """What both ways of evaluating take."""

    num_examples: int
    rollouts_per_example: int
    progress: Callable[[int, int], None]


def run(config: EvalConfig) -> int:
    """Evaluates and reports. Returns 0, or 1 if rollouts failed or too many completions could not be graded."""
    config, exact_keys = _with_model(config)
    folder = results_folder(config) if config.save else None
    env = configured(config.env, config.env_args, config.template, "template")
    env.check_rollouts()
    env.use_workers(config.grading)
    available = len(env.split("eval"))
    console = _console()
    if available < config.num_examples:
        console.print(
            Text(f"{env.id} has {available} held-out examples: all are used ({config.num_examples} asked for)")
        )
    if config.model == TINY and config.base_url is None:
        console.print(Text(f"{TINY} is a random model that was never trained; name yours with -m"))
    env.start_workers(config.num_examples * config.rollouts_per_example)
    try:
        result = _evaluate(config, env, folder, exact_keys)
    finally:
        env.close_workers()
    if result.samples:
        show_sample(console, next((s for s in result.samples if s.graded), result.samples[0]))
    show_result(console, result)
    if folder is not None:
        save_results(folder, config, result, sys.argv, env.digests(["eval"]))
        console.print(Text(f"saved       {folder}/results.jsonl and metadata.json"), soft_wrap=True)
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


def _with_model(config: EvalConfig) -> tuple[EvalConfig, bool]:
    """The config with the model that the server serves, if there is a server, and whether that is hone's own."""
    if config.base_url is None:
        return config, False
    name = config.model if "model" in config.model_fields_set else None
    model, exact_keys = find_model(_endpoint(config), name)
    return config.model_copy(update={"model": model}), exact_keys


def _endpoint(config: EvalConfig) -> Endpoint:
    """The server. UserError if the variable of the API key is not set."""
    assert config.base_url is not None
    key = api_key(config.api_key_var, "-k")
    return Endpoint(config.base_url, key, config.concurrency, config.timeout, config.max_retries)


def _evaluate(config: EvalConfig, env: Environment, folder: Path | None, exact_keys: bool) -> EvalResult:
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        where = f" at {config.base_url}" if config.base_url else ""
        title = f"evaluating {config.model}{where} on {env.id}"
        task = bar.add_task(title, total=None)
        counts: Counts = {
            "num_examples": config.num_examples,
            "rollouts_per_example": config.rollouts_per_example,
            "progress": lambda done, total: bar.update(task, completed=done, total=total),
        }
        env.progress = _teller(console, lambda words: bar.update(task, description=words or title))
        if config.base_url is None:
            return _evaluate_here(config, env, folder, counts)
        return _evaluate_there(config, env, folder, counts, exact_keys)


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


def _evaluate_here(config: EvalConfig, env: Environment, folder: Path | None, counts: Counts) -> EvalResult:
    sampling = local_sampling(config.sampling())
    prefixes = prefix_bytes(env, int(KV_GIB * 2**30))
    policy = load_weights(config.model, config.precision, config.seed, config.chat_template, config.threads, prefixes)
    if folder is not None:
        make_folder(folder)
    return evaluate_weights(policy, env, sampling, max_tokens=sampling.max_tokens, seed=sampling.seed, **counts)


def _evaluate_there(
    config: EvalConfig, env: Environment, folder: Path | None, counts: Counts, exact_keys: bool
) -> EvalResult:
    body, seed = config.sampling(), config.seed
    if isinstance(body["seed"], int):
        seed = body.pop("seed")
    check_body(body)
    endpoint = _endpoint(config)
    made = [] if folder is None else make_folder(folder)
    try:
        return evaluate_url(endpoint, config.model, env, body=body, seed=seed, exact_keys=exact_keys, **counts)
    except (UserError, KeyboardInterrupt):
        with suppress(OSError):  # another evaluation may have put its folder beside this one
            for path in made:
                path.rmdir()
        raise


def local_sampling(said: dict[str, Any]) -> SamplingParams:
    """Sampling arguments for the engine in this process. UserError for what it does not know."""
    known = [f.name for f in fields(SamplingParams) if f.name not in ("n", "stop", "ignore_eos", "top_logprobs")]
    for name, value in said.items():
        if name not in known:
            raise UserError(f"{name!r} is no sampling argument of a model in this process: it has {', '.join(known)}")
        whole = name in ("max_tokens", "top_k", "seed")
        number = isinstance(value, int) or (isinstance(value, float) and not whole)
        if value is not None and (not number or isinstance(value, bool)):
            raise UserError(f"{name} is {value!r} (-S), but should be a {'whole ' if whole else ''}number")
    given: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    given |= {name: value for name, value in said.items() if value is not None}
    return SamplingParams(**given)


def load_weights(
    name: str,
    precision: str,
    seed: int = 0,
    chat_template: str | None = None,
    threads: int | None = None,
    prefix_bytes: int = 0,
) -> EnginePolicy:
    """The policy of a model folder or hub id, on the GPU if there is one. Sets this process's threads."""
    model = load_model(name, device=device_of("auto"), precision=precision, seed=seed)
    configure(threads, model.num_parameters)
    return EnginePolicy(Engine(model, prefix_bytes=prefix_bytes), load_renderer(name, chat_template))


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
    check_turns(env, policy.renderer, split[0])
    words = f"the model's context of {context} tokens"
    check_prompts(split, used, policy.renderer, context, words, remedy, tools=env.tool_schemas)
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
