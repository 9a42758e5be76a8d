"""Evaluates a model on held-out examples, in this process or on a server, as a config says."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.base import changed
from hone.config.eval import MAX_TOKENS, EvalConfig
from hone.config.shared import EngineConfig
from hone.environments import Environment, services
from hone.environments.loading import configured
from hone.errors import UserError
from hone.evaluation.loop import evaluate, shortage
from hone.evaluation.profile import write_profile
from hone.evaluation.result import EvalResult
from hone.evaluation.saving import make_folder, results_folder, save_results
from hone.extension import machines_of
from hone.inference.engine import Engine
from hone.inference.memory import GIB
from hone.inference.types import SamplingParams
from hone.loops.colocated import EnginePolicy, prefix_bytes
from hone.loops.groups import check_prompts
from hone.loops.machine import configure, device_of, serving_kv_gib
from hone.model.chat import load_renderer
from hone.model.hf import load_model
from hone.model.texts import SpecialTexts
from hone.runs.outputs import Lock, check_target
from hone.runs.view import INFO, LOCK

if TYPE_CHECKING:
    from hone.client import Endpoint

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all completions."""


class Evaluation:
    """An evaluation of a model. `env` replaces the task of the config.

    If a server is used, the attribute `config` has the model that it serves. Results are saved in `folder` unless it is
    None. `shortage` is a warning if there are too few examples, else "". `special_texts` has the prompts and tool
    answers with special tokens. Raises UserError if the config, the task or the server is bad.
    """

    def __init__(self, config: EvalConfig, env: Environment | None = None) -> None:
        self.config, self._exact_keys = _with_model(config)
        self.folder = results_folder(self.config) if config.save else None
        self._lock: Lock | None = None
        self._made: list[Path] = []
        self.env = env or configured(config.env, config.env_args, config.template, "template")
        self.special_texts = SpecialTexts()
        self.env.check_rollouts()
        machines, grading = machines_of(config), config.grading
        self.env.use_workers(machines.use_graders(self.env, grading) if machines else grading)
        self.shortage = shortage(self.env, self.config.split_name, self.config.num_examples)
        if config.profile is not None:
            check_target(config.profile, "--profile")
            if config.profile.exists():  # a run that trains on it could not be resumed
                raise UserError(f"--profile {config.profile} already exists: name another file, or move it away")

    def run(self, progress: Progress = lambda done, total: None) -> EvalResult:
        """Sample and grade. After Ctrl-C, return the result of the finished samples, or raise if there are none."""
        config = self.config
        counts: dict[str, Any] = {
            "num_examples": config.num_examples,
            "rollouts_per_example": config.rollouts_per_example,
            "split_name": config.split_name,
            "progress": progress,
        }
        services.record_in(self.folder)
        self.env.start_workers(config.num_examples * config.rollouts_per_example)
        try:
            return self._here(counts) if config.base_url is None else self._there(counts)
        except BaseException:
            with suppress(OSError):  # another evaluation may have put its folder beside this one
                for path in self._made:
                    if path == self.folder:
                        (path / LOCK).unlink()
                    path.rmdir()
            self._release()
            raise
        finally:
            self.env.close_workers()

    def save(self, result: EvalResult, command: Sequence[str]) -> None:
        """Write samples, metrics and provenance into `folder` (unless None), and the profile if one is asked for."""
        if result.stopped and self.folder is not None and (self.folder / INFO).exists():
            self._release()
            self.folder = Path(tempfile.mkdtemp(prefix="hone-results-"))
        if self.folder is not None:
            sources = self.env.digests([self.config.split_name])
            try:
                save_results(self.folder, self.config, result, list(command), sources)
            finally:
                self._release()
        if self.config.profile is not None and not result.stopped:
            write_profile(self.config.profile, result)

    def _here(self, counts: dict[str, Any]) -> EvalResult:
        config, sampling = self.config, local_sampling(self.config.sampling())
        args = config.model, config.precision, config.seed, config.chat_template, config.threads
        policy = load_weights(*args, config.kv_gib, self.env, special_tokens=config.special_tokens)
        self.special_texts = policy.renderer.special_texts
        self.config = changed(config, {"kv_gib": policy.engine.kv_bytes / GIB})
        self._claim()
        counts |= {"max_tokens": sampling.max_tokens, "seed": sampling.seed, "seq_len": config.seq_len}
        return evaluate_weights(policy, self.env, sampling, keeps_ended=True, **counts)

    def _there(self, counts: dict[str, Any]) -> EvalResult:
        from hone.evaluation.remote import check_body, evaluate_url

        config, body, seed = self.config, self.config.sampling(), self.config.seed
        if isinstance(body["seed"], int):
            seed = body.pop("seed")
        check_body(body)
        settings = {"body": body, "seed": seed, "exact_keys": self._exact_keys}
        endpoint = _endpoint(config)
        self._claim()
        return evaluate_url(endpoint, config.model, self.env, **settings, **counts)

    def _claim(self) -> None:
        if self.folder is not None:
            made = make_folder(self.folder)
            self._lock, self._made = Lock(self.folder), made

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _with_model(config: EvalConfig) -> tuple[EvalConfig, bool]:
    """Return the config, with the name of the model that a server serves, and True if the server is hone's."""
    if config.base_url is None:
        return config, False
    from hone.evaluation.remote import find_model

    name = config.model if "model" in config.model_fields_set else None
    model, exact_keys = find_model(_endpoint(config), name)
    return changed(config, {"model": model}), exact_keys


def _endpoint(config: EvalConfig) -> Endpoint:
    from hone.client import Endpoint, api_key

    assert config.base_url is not None
    key = api_key(config.api_key_var, "-k")
    return Endpoint(config.base_url, key, config.concurrency, config.timeout, config.max_retries)


def local_sampling(arguments: dict[str, Any]) -> SamplingParams:
    """Read sampling arguments for the engine in this process. Raises UserError for a bad argument."""
    left_out = ("n", "ignore_eos", "top_logprobs", "return_kept_ids")
    known = [f.name for f in fields(SamplingParams) if f.name not in left_out]
    for name, value in arguments.items():
        if name not in known:
            raise UserError(f"{name!r} is no sampling argument of a model in this process: use {', '.join(known)}")
        if name == "stop":
            continue  # below
        whole = name in ("max_tokens", "top_k", "seed")
        number = isinstance(value, int) or (isinstance(value, float) and not whole)
        if value is not None and (not number or isinstance(value, bool)):
            raise UserError(f"{name} is {value!r} (-S), but should be a {'whole ' if whole else ''}number")
    given: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    given |= {name: value for name, value in arguments.items() if value is not None}
    stop = given.get("stop", [])
    given["stop"] = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, list) else (stop,)
    if not all(isinstance(text, str) for text in given["stop"]):
        raise UserError(f"stop is {stop!r} (-S), but should be a text, or a list of texts")
    return SamplingParams(**given)


def load_weights(
    name: str,
    precision: str,
    seed: int = 0,
    chat_template: str | None = None,
    threads: int | None = None,
    kv_gib: float | None = None,
    env: Environment | None = None,
    special_tokens: bool = False,
    **more: Any,
) -> EnginePolicy:
    """Load a policy from a model folder or hub id, on a GPU if there is one. Also sets this process's threads."""
    model = load_model(name, device=device_of("auto"), precision=precision, seed=seed, **more)
    if more.get("lora") is not None:
        from hone.model.lora import start_adapter

        start_adapter(model, seed)
    configure(threads, model.num_parameters, deterministic=model.device.type == "cpu")
    kv_bytes = int((kv_gib or serving_kv_gib(str(model.device))) * GIB)
    prefixes = prefix_bytes(env, kv_bytes) if env is not None else 0
    renderer = load_renderer(name, chat_template, special_tokens)
    graphs = EngineConfig().decodes_with_graphs(model.device.type)
    engine = Engine(model, kv_bytes, prefix_bytes=prefixes, cuda_graphs=graphs, tokenizer=renderer.tokenizer)
    return EnginePolicy(engine, renderer)


def evaluate_weights(
    policy: EnginePolicy,
    env: Environment,
    sampling: SamplingParams,
    *,
    num_examples: int,
    split_name: str = "eval",
    seq_len: int | None = None,
    **more: Any,
) -> EvalResult:
    """Evaluate a policy with the model's context length, or `seq_len` if shorter.

    Raises UserError if a prompt doesn't fit.
    """
    context = policy.engine.model.config.max_position_embeddings
    limit, remedy = f"the model's context of {context} tokens", "shorten the row, or evaluate a model with more context"
    if seq_len is not None and seq_len < context:
        context, limit, remedy = seq_len, f"seq_len = {seq_len}", "shorten the row, or give a larger -t"
    split = env.split(split_name)
    env.check_template(policy.renderer, split[0])
    used = range(min(num_examples, len(split)))
    check_prompts(split, used, policy.renderer, context, limit, remedy, tools=env.tool_schemas)
    more |= {"num_examples": num_examples, "seq_len": context, "renderer": policy.renderer, "split_name": split_name}
    return evaluate(policy, env, sampling=sampling, **more)
