"""The parts of a run, made from its config: model, trainer, task, evaluation, checks before the start, model card."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hone.algorithms.losses import TokenLoss, aggregation_weights, policy_objective, sft_objective
from hone.config.base import changed
from hone.config.hoist import FUNCTIONS
from hone.config.rl import LossConfig, OnlineEvalConfig, OrchestratorConfig, RLConfig, TrainerConfig
from hone.config.sft import SFTConfig
from hone.config.shared import RunConfig
from hone.environments import Environment
from hone.environments.data import Overlap, find_overlap
from hone.environments.environment import Split
from hone.environments.loading import configured
from hone.environments.rubric import component_name
from hone.environments.task_files import find_function
from hone.errors import UserError
from hone.evaluation.loop import evaluate
from hone.evaluation.result import EvalResult
from hone.inference.policy import Policy
from hone.inference.types import sampling_params
from hone.loops.curriculum import Curriculum
from hone.loops.groups import check_prompts
from hone.loops.machine import device_of
from hone.model.card import model_card
from hone.model.chat import ChatRenderer
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.files import TINY, is_hub_id
from hone.model.hf import load_model
from hone.runs.display import say
from hone.runs.view import REWARDS
from hone.runs.writer import RunWriter
from hone.trainer.fingerprint import fingerprint
from hone.trainer.kl_reward import RewardKL
from hone.trainer.packing import Batch
from hone.trainer.packing import Sequence as Packed
from hone.trainer.parallel import ALONE, Ranks, shard
from hone.trainer.step import BatchUse, Trainer

if TYPE_CHECKING:
    from hone.environments.functions import ProgramTask

GENERATED = 2000
"""Maximum number of training examples of a generated task that are compared with held-out ones: the first draws."""
HELD_OUT = 20_000
"""Maximum number of held-out examples of a data set that are compared."""


def model_source(config: RunConfig) -> str:
    """Return where to load architecture and tokenizer from: the model's name or, if a resume finds no folder of that
    name, the weights that the run saved. A checkpoint gives the parameters (with LoRA only the adapter's).
    """
    name = config.model.name
    if config.resume is None or config.model.lora or name == TINY or Path(name).exists():
        return name
    from hone.runs.reader import Run

    weights = Run(config.resume.dir or config.output_dir).weights()
    return str(weights[max(weights)]) if weights else name


@torch.inference_mode(False)  # else nothing can be learned by it
def load_policy(config: RunConfig, source: str | None = None, device: str | None = None) -> Decoder:
    """Load the model to train, from `source` or `model.name`, in the configured precision, onto `device`."""
    model = load_model(
        source or config.model.name,
        device=device or device_of(config.model.device),
        precision=config.precision,
        seed=config.seed,
        init=config.model.init,
        implementation=config.model.implementation,
        lora=config.model.lora,
    )
    if config.model.lora is not None:
        from hone.model.lora import start_adapter

        start_adapter(model, config.seed)
    return model


def make_trainer(
    config: RLConfig,
    model: Decoder,
    ranks: Ranks = ALONE,
    record_tokens: bool = True,
    user_loss: TokenLoss | None = None,
) -> Trainer:
    """Make the trainer of an RL run. A KL term needs the initial policy, too: `model.name` is loaded again or, with
    LoRA, the model is used without its adapter.

    If `record_tokens` is false, no token statistics are recorded. `user_loss` is a program's `loss.function`.
    """
    reference, loss = None, config.trainer.loss
    if loss.kl_coef > 0 and model.lora is not None:
        reference = model
    elif loss.kl_coef > 0:
        reference = load_policy(config, device=str(model.device)).requires_grad_(False)
        shard(reference, ranks)
    stale = config.orchestrator.lag > 0
    if loss.function is not None and user_loss is None:
        user_loss = find_function(loss.function)[0]
    trainer = Trainer(
        model,
        config.trainer.optim,
        config.trainer.scheduler,
        config.max_steps,
        policy_objective(loss, config.trainer.correction, stale, user_loss),
        temperature=config.orchestrator.sampling.temperature,
        reference=reference,
        ranks=ranks,
        head_cache_bytes=config.trainer.head_cache_bytes,
        checkpointing=config.trainer.checkpointing or "none",
        use=batch_use(config.trainer, config.orchestrator),
        weigh=partial(weighed, loss),
    )
    trainer.record_tokens = record_tokens and config.trainer.record_tokens
    return trainer


def batch_use(trainer: TrainerConfig, orch: OrchestratorConfig) -> BatchUse:
    reward_kl = RewardKL(trainer.loss.kl_coef, orch.rollouts_per_example, orch.advantage)
    return BatchUse(
        trainer.updates_per_batch,
        trainer.minibatches,
        trainer.keeps_old,
        kl_in_reward=reward_kl if trainer.loss.kl_in_reward else None,
        reference_interval=trainer.loss.reference_interval,
    )


def weighed(loss: LossConfig, batch: Batch) -> list[Packed]:
    tokens = [sequence.num_loss_tokens for sequence in batch.sequences]
    groups = [sequence.group for sequence in batch.sequences]
    filtered = batch.filtered if loss.count_filtered else None
    weights = aggregation_weights(loss.aggregation, tokens, groups, batch.longest, filtered)
    return [replace(sequence, weight=float(w)) for sequence, w in zip(batch.sequences, weights, strict=True)]


def make_sft_trainer(config: SFTConfig, model: Decoder, ranks: Ranks = ALONE) -> Trainer:
    return Trainer(
        model,
        config.optim,
        config.scheduler,
        config.max_steps,
        sft_objective,
        ranks=ranks,
        head_cache_bytes=config.head_cache_bytes,
        checkpointing=config.checkpointing or "none",
    )


def name_of_task(config: RLConfig, reward_funcs: Any, agent: Any) -> str:
    """Return the name of the program's first function; without functions, the name of the config's task."""
    given = [*([reward_funcs] if isinstance(reward_funcs, str) or callable(reward_funcs) else reward_funcs), agent]
    first = next((one for one in given if one is not None), None)
    if first is None:
        return config.task_name
    return first.rpartition(":")[2] if isinstance(first, str) else component_name(first)


def task_given(
    config: RLConfig, dataset: Any, eval_dataset: Any, reward_funcs: Any, *more: Any
) -> tuple[ProgramTask | None, dict[str, Any]]:
    """Return the task that a program gives (None if it gives none), and the config keys to set.

    `more` are further arguments of `given_task`. An `eval_dataset` turns evaluation on, unless the config turns it off.
    """
    if all(x is None for x in (dataset, eval_dataset, *more)) and not reward_funcs:
        return None, {}
    from hone.environments.functions import given_task

    if config.orchestrator.envs:
        raise UserError("the program gives this run's task, but orchestrator.envs names tasks, too: give only one")
    env = config.orchestrator.env
    # The given task replaces another one that a file names, with its arguments and its template.
    replaces = env.id != FUNCTIONS and "id" in env.model_fields_set
    args, template = ({}, None) if replaces else (env.args, env.template)
    given = given_task(config.output_dir, args, dataset, eval_dataset, reward_funcs, *more)
    named = {"orchestrator.env": changed(env, {"id": FUNCTIONS, "args": given.args, "template": template})}
    evaluated = eval_dataset is not None and "eval" not in config.orchestrator.model_fields_set
    return given, named | ({"orchestrator.eval": OnlineEvalConfig()} if evaluated else {})


def task_of(config: RLConfig, given: ProgramTask | None = None) -> Environment:
    """Make the task of the config, or the task that a program gives. Reads no data."""
    task = config.orchestrator.env
    if given is None:
        env = configured(task.id, task.args, task.template, "orchestrator.env.template")
    else:
        env = given.load()
        if task.template is not None:
            env.use_template(task.template, "orchestrator.env.template")
    if task.profile:
        from hone.evaluation.profile import train_within

        train_within(env, task)
    env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
    return env


def note_program_task(given: ProgramTask, run: RunWriter) -> None:
    if not given.graded_here:
        return
    if os.environ.get("PYTHONHASHSEED") != "0":
        cause = (
            "reward functions run in this process, where the order of sets is random: start it with PYTHONHASHSEED=0"
        )
        run.mark_inexact(run.start_step, cause)
    warn_not_importable(REWARDS, given.import_problem, run)
    names = ", ".join(given.graded_here)
    run.note(grading=f"in the process that trains, without limits: no other one can import {names}")


def warn_not_importable(file: str, import_problem: str, run: RunWriter) -> None:
    if import_problem:
        run.display.message(
            f"Warning: {file} can't be imported alone ({import_problem}): only this program can resume the run "
            "(resume=True), and no command can verify it."
        )


def model_digests(model: Decoder, renderer: ChatRenderer) -> dict[str, str]:
    """Return digests of the contents of a model, its initial adapter and its tokenizer. Names don't count."""
    adapter = {} if model.lora is None else {"adapter": fingerprint(model.trained)}
    return {"model": fingerprint(model.base), **adapter, "tokenizer": renderer.digest()}


def eval_envs(config: RLConfig, envs: Mapping[str, Environment]) -> dict[str, Environment]:
    """Return the tasks for evaluation: tasks of `envs`, or others that the config names."""
    evals = config.orchestrator.eval
    if evals is None or not evals.envs:
        return dict(envs) if evals else {}
    train = [(one.orchestrator.env, envs[name]) for name, one in config.tasks().items()]
    known = {env.name: [made for other, made in train if env.same_task(other)] for env in evals.envs}
    return {name: known[name][0] if known[name] else task_of(one) for name, one in config.eval_tasks().items()}


def task_digests(
    config: RLConfig, envs: Mapping[str, Environment], eval_envs: Mapping[str, Environment]
) -> dict[str, str]:
    """Return digests of the tasks for training and evaluation. With several tasks, each key has a task's name."""
    digests: dict[str, str] = {}
    for name, one in config.tasks().items():
        found = envs[name].digests(("train", "eval") if one.orchestrator.eval else ("train",))
        digests |= {f"{key}/{name}" if name else key: value for key, value in found.items()}
    for name, env in eval_envs.items():
        if env not in envs.values():
            digests |= {f"{key}/eval/{name}": value for key, value in env.digests(("eval",)).items()}
    return digests


def model_files(config: RLConfig | SFTConfig) -> list[str | None]:
    model = config.model
    return [model.name, model.chat_template, model.lora and model.lora.path]


def local_sources(names: Iterable[object], task_args: Mapping[str, Any] | None = None) -> list[Path]:
    """Return the paths that exist among `names` and a task's arguments; "FILE.py:FUNCTION" counts as its file."""
    values = [item for value in (task_args or {}).values() for item in (value if isinstance(value, list) else [value])]
    files = [v.rpartition(":")[0] if isinstance(v, str) and ".py:" in v else v for v in values]
    # A chat template given as text may be longer than any path, or hold what no path can.
    texts = [name for name in [*names, *files] if isinstance(name, str) and name]
    return [path for path in (Path(t) for t in texts if "\n" not in t and len(t) < 1024) if path.exists()]


def slow_work(what: str, total: int, display: str) -> Callable[[int], None]:
    """Return a function that takes the number of finished items; it prints the progress at most every 2 s."""
    last_shown = time.monotonic()

    def advance(done: int) -> None:
        nonlocal last_shown
        if display != "none" and time.monotonic() - last_shown > 2:
            last_shown = time.monotonic()
            say(f"{what}: {done:,} of {total:,}")

    return advance


def check_lengths(
    config: RLConfig, env: Environment, renderer: ChatRenderer, model: DecoderConfig, curriculum: Curriculum | None
) -> None:
    """Raise UserError if `seq_len` or a prompt is too long. Without a curriculum, check only evaluation prompts."""
    limit = model.max_position_embeddings
    if config.seq_len > limit:
        raise UserError(f"seq_len = {config.seq_len} exceeds the model's {model.context}; set --seq-len {limit}")
    orch = config.orchestrator
    remedy = "shorten the row or take it out of the data"
    if config.seq_len < limit:
        remedy += f", or raise --seq-len (up to {limit}, the model's context)"
    used: list[tuple[Split, Sequence[int]]] = []
    if curriculum is not None:
        used.append((env.split("train"), sorted(curriculum.first(config.max_steps * orch.most_groups))))
    if orch.eval:
        held_out = env.split("eval")
        used.append((held_out, range(min(orch.eval.num_examples, len(held_out)))))
    for split, indices in used:
        advance, words = slow_work("checking prompts", len(indices), config.display), f"seq_len = {config.seq_len}"
        check_prompts(split, indices, renderer, config.seq_len, words, remedy, advance, env.tool_schemas)


def check_overlap(config: RLConfig, env: Environment) -> Overlap | None:
    """Return the examples that training and evaluation share; None without evaluation.

    It checks the training examples that the run will draw, at most one epoch. With `drop` it checks all `max_examples`:
    a resume may change the number of steps, but must drop the same examples. Raises UserError if `refuse` finds any.
    """
    settings = config.orchestrator.eval
    if settings is None:
        return None
    train, held_out = env.split("train"), env.split("eval")
    curriculum = Curriculum.from_config(config, len(train))
    draws = config.max_steps * config.orchestrator.most_groups
    drop = settings.overlap == "drop"
    if train.generated:
        indices = curriculum.first(GENERATED if drop else min(GENERATED, draws))
    else:
        indices = range(curriculum.total) if drop else curriculum.first(draws)
    most = settings.num_examples if held_out.generated else HELD_OUT
    advance = slow_work("comparing training with held-out prompts", len(indices), config.display)
    overlap = find_overlap(train, held_out, indices, range(min(most, len(held_out))), advance)
    if overlap.rows and settings.overlap == "refuse":
        remedy = "take them out of the data, or set orchestrator.eval.overlap = drop, which takes them out of training"
        raise UserError(f"{overlap_text(env, overlap)}: {remedy}")
    if drop and len(overlap.rows) == curriculum.total:
        raise UserError(
            f"all {curriculum.total:,} training prompts are held-out prompts too, and orchestrator.eval.overlap = drop "
            "leaves none to train on: give an eval_dataset of other examples, or set overlap = warn"
        )
    return overlap


def report_overlap(config: RLConfig, env: Environment, overlap: Overlap, run: RunWriter) -> None:
    dropped = config.orchestrator.eval is not None and config.orchestrator.eval.overlap == "drop"
    facts = {"rows": len(overlap.rows), "identical": overlap.identical, "checked": overlap.checked}
    run.event("overlap", 0, **facts, held_out=overlap.held_out, dropped=dropped)
    what = "they are left out of training"
    if not dropped:
        what = "evaluation will look better than it is; --orchestrator.eval.overlap drop takes them out of training"
    run.display.message(f"Warning: {overlap_text(env, overlap)}: {what}.")


def overlap_text(env: Environment, overlap: Overlap) -> str:
    assert overlap.pair is not None
    count, (row, other) = len(overlap.rows), overlap.pair
    where = f"{env.split('train').where(row)} and {env.split('eval').where(other)}"
    are = "is a held-out prompt too" if count == 1 else "are held-out prompts too"
    answers = "" if overlap.identical == count else f", {count - overlap.identical:,} of them with another answer"
    return f"{count:,} of {overlap.checked:,} training prompts {are}{answers} (such as {where})"


def evaluate_policy(
    config: RLConfig, env: Environment, renderer: ChatRenderer, policy: Policy, num_examples: int | None = None
) -> EvalResult:
    settings, training = config.orchestrator.eval or OnlineEvalConfig(), config.orchestrator.sampling
    sampling = settings.sampling
    return evaluate(
        policy,
        env,
        num_examples=num_examples or settings.num_examples,
        rollouts_per_example=settings.rollouts_per_example,
        sampling=sampling_params(changed(sampling, {"stop": sampling.stop or training.stop})),
        max_tokens=sampling.max_tokens or training.max_tokens,
        seq_len=config.seq_len,
        seed=config.seed,
        renderer=renderer,
    )


def card(config: RLConfig, step: int) -> str:
    orch = config.orchestrator
    facts = {
        "completions per step": orch.batch_size,
        "completions per prompt": orch.rollouts_per_example,
        "learning rate": config.trainer.optim.lr,
    }
    return weights_card(config, "rl", step, config.task_name, facts)


def weights_card(config: RunConfig, kind: str, step: int, task: str, facts: Mapping[str, object]) -> str:
    """Return the model card of `weights/step_N`. It names no local folder, so that equal runs write equal cards."""
    name = config.model.name
    from_hub = is_hub_id(name)
    adapter = config.model.lora
    lora = {"LoRA": f"rank {adapter.rank}, alpha {adapter.alpha}, all linear layers"} if adapter else {}
    return model_card(
        title=f"{name.split('/')[-1] if from_hub else 'model'}-{kind}",
        method=kind,
        seed=config.seed,
        command=f"hone {kind} @ config.toml",  # the run's own
        base_model=name if from_hub else None,
        task=task,
        step=step,
        facts={**facts, **lora, "precision": config.precision},
        from_nothing=name == TINY,
    )
