"""The parts of a run, made from its config: model, trainer, task, evaluation, model card."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hone.composition.machine import device_of
from hone.composition.slow_work import slow_work
from hone.config.hoist import FUNCTIONS
from hone.config.rl import OnlineEvalConfig, RLConfig
from hone.config.shared import EnvConfig, RunConfig
from hone.environments import Environment
from hone.environments.environment import Split
from hone.environments.functions import Given, given_task
from hone.environments.loading import configured
from hone.errors import UserError
from hone.evaluation.loop import evaluate
from hone.evaluation.result import EvalResult
from hone.inference.types import SamplingParams
from hone.model.card import model_card
from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.files import TINY, is_hub_id
from hone.model.hf import load_model
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.failures import FailureWatch
from hone.orchestrator.groups import check_prompts
from hone.orchestrator.types import Evaluate, Policy, Recorder
from hone.runs.files import read_lines
from hone.runs.reader import Run
from hone.runs.writer import RunWriter
from hone.trainer.fingerprint import fingerprint
from hone.trainer.objectives import policy_objective
from hone.trainer.parallel import ALONE, Ranks, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer

Config = TypeVar("Config", bound=RunConfig)


def with_determinism(config: Config, device: str) -> Config:
    """The config with `deterministic` decided: without a word of the user, true on a CPU."""
    wanted = device == "cpu" if config.deterministic is None else config.deterministic
    return config.model_copy(update={"deterministic": wanted})


def model_source(config: RunConfig) -> str:
    """Where the model is loaded from: its name; if a resume finds no such folder here, the run's own weights.

    They have its architecture and its tokenizer, and the checkpoint brings the parameters.
    """
    name = config.model.name
    if config.resume is None or name == TINY or Path(name).exists():
        return name
    weights = Run(config.resume.dir or config.output_dir).weights()
    return str(weights[max(weights)]) if weights else name


def load_policy(config: RunConfig, source: str | None = None, device: str | None = None) -> Decoder:
    """The model to train, on its device, in the configured precision; from `source`, if that is not its name."""
    return load_model(
        source or config.model.name,
        device=device or device_of(config.model.device),
        precision=config.precision,
        seed=config.seed,
        init=config.model.init,
    )


def make_trainer(config: RLConfig, model: Decoder, ranks: Ranks = ALONE, record_tokens: bool = True) -> Trainer:
    """The trainer of RL; with a KL term also the frozen initial policy, loaded a second time from `model.name`.

    `record_tokens`: whether there is a run to write down what it computes of tokens, if the config wants that.
    """
    reference = None
    if config.trainer.loss.kl_coef > 0:
        reference = load_policy(config, device=str(model.device)).requires_grad_(False)
        shard(reference, ranks)
    trainer = Trainer(
        model,
        config.trainer.optim,
        config.trainer.scheduler,
        config.max_steps,
        policy_objective(config.trainer.loss, stale=config.orchestrator.max_async_level > 0),
        temperature=config.orchestrator.sampling.temperature,
        reference=reference,
        ranks=ranks,
    )
    trainer.record_tokens = record_tokens and config.trainer.record_tokens
    return trainer


def model_digests(model: Decoder, renderer: ChatRenderer, initial: bool = True) -> dict[str, str]:
    """What the initial model and its tokenizer are, whatever they are called; nothing if this isn't the initial one."""
    if not initial:
        return {}
    return {"model": fingerprint(dict(model.named_parameters())), "tokenizer": renderer.digest()}


def local_sources(names: Iterable[object]) -> list[Path]:
    """Those of the names that are local paths: what the run reads, so its output directory must not contain it."""
    # A chat template given as text may be longer than any path, or hold what no path can.
    texts = [name for name in names if isinstance(name, str) and name and "\n" not in name and len(name) < 1024]
    return [path for path in map(Path, texts) if path.exists()]


def restore(run: RunWriter, trainer: Trainer) -> dict[str, Any] | None:
    """Loads the checkpoint that the run resumes from into the trainer; returns the loop's own state, None if fresh."""
    if (restored := run.restored) is None:
        return None
    tensors, state = restored
    trainer.load_tensors(tensors, run.start_step)
    return state


def restore_ranked(run: RunWriter, trainer: RankedTrainer) -> dict[str, Any] | None:
    """`restore` for a trainer on any number of ranks, each of which reads its share."""
    if trainer.ranks.alone or run.restored is None:
        return restore(run, trainer.trainer)
    trainer.load_part(run.checkpoints.path(run.start_step), run.start_step)
    return run.restored[1]


def task_of(config: RLConfig) -> Environment:
    """The task that the config names. Touches no data."""
    task = config.orchestrator.env
    env = configured(task.id, task.args, task.template, "orchestrator.env.template")
    env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
    return env


def with_given_task(
    config: RLConfig,
    dataset: Any,
    eval_dataset: Any,
    reward_funcs: Any,
    reward_weights: Sequence[float] | None,
    correct: Any,
) -> tuple[RLConfig, Given | None]:
    """Return the config with the task that a program gives, and that task; None if it gives none."""
    if dataset is None and eval_dataset is None and not reward_funcs and reward_weights is None and correct is None:
        return config, None
    env = config.orchestrator.env
    # The given task replaces another one that a file names, with its arguments and its template.
    replaces = env.id != FUNCTIONS and "id" in env.model_fields_set
    args, template = ({}, None) if replaces else (env.args, env.template)
    given = given_task(config.output_dir, args, dataset, eval_dataset, reward_funcs, reward_weights, correct)
    named = EnvConfig(id=FUNCTIONS, args=given.args, template=template)
    orchestrator = config.orchestrator.model_copy(update={"env": named})
    return config.model_copy(update={"orchestrator": orchestrator}), given


def task_digests(config: RLConfig, env: Environment) -> dict[str, str]:
    """What the run trains and is evaluated on."""
    return env.digests(("train", "eval") if config.orchestrator.eval else ("train",))


def own_sources(config: RLConfig, kept: Iterable[str] = ()) -> list[Path]:
    """Local paths that the run reads, which its output directory must not contain, but for those `kept` in it."""
    found = local_sources([config.model.name, config.model.chat_template, *paths_of(config.orchestrator.env.args)])
    return [path for path in found if path not in [config.output_dir / name for name in kept]]


def paths_of(args: Mapping[str, Any]) -> list[object]:
    """The arguments of a task that may be paths; of "FILE.py:FUNCTION" the file."""
    values = [item for value in args.values() for item in (value if isinstance(value, list) else [value])]
    return [v.rpartition(":")[0] if isinstance(v, str) and ".py:" in v else v for v in values]


def check_lengths(
    config: RLConfig, env: Environment, renderer: ChatRenderer, limit: int, curriculum: Curriculum
) -> None:
    """UserError if `seq_len` exceeds the model's context of `limit` tokens, or a prompt that the run will use leaves no
    room in it.
    """
    if config.seq_len > limit:
        raise UserError(
            f"seq_len = {config.seq_len} exceeds the model's context of {limit} tokens; set --seq-len {limit}"
        )
    orch = config.orchestrator
    remedy = "shorten the row or take it out of the data"
    if config.seq_len < limit:
        remedy += f", or raise --seq-len (up to {limit}, the model's context)"
    train_rows = env.split("train")
    drawn = sorted(curriculum.first(config.max_steps * orch.batch_size // orch.rollouts_per_example))
    used: list[tuple[Split, Sequence[int]]] = [(train_rows, drawn)]
    if orch.eval:
        eval_rows = env.split("eval")
        used.append((eval_rows, range(min(orch.eval.num_examples, len(eval_rows)))))
    for split, indices in used:
        with slow_work("checking the length of prompts", len(indices), config.display) as advance:
            limit_words = f"seq_len = {config.seq_len}"
            check_prompts(split, indices, renderer, config.seq_len, limit_words, remedy, advance, env.tool_schemas)


def make_evaluate(
    config: RLConfig, env: Environment, renderer: ChatRenderer, policy: Policy, recorder: Recorder
) -> Evaluate:
    """The evaluation of a run: every `eval.interval` versions from 0 on, and at the end."""
    settings = config.orchestrator.eval
    if settings is None:
        return lambda version, last: {}

    def evaluation(version: int, last: bool) -> dict[str, float]:
        if version % settings.interval and not last:
            return {}
        with recorder.phase("evaluate"):
            result = evaluate_policy(config, settings, env, renderer, policy)
        samples: list[Any] = result.samples  # of an own policy, and so with trajectories
        recorder.evaluated(version, [s.trajectory for s in samples], [s.score for s in samples], result.rows())
        return result.metrics()

    return evaluation


def evaluate_policy(
    config: RLConfig, settings: OnlineEvalConfig, env: Environment, renderer: ChatRenderer, policy: Policy
) -> EvalResult:
    """Evaluate the policy on held-out examples, as `settings` say."""
    sampling = settings.sampling
    return evaluate(
        policy,
        env,
        num_examples=settings.num_examples,
        rollouts_per_example=settings.rollouts_per_example,
        sampling=SamplingParams(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k),
        max_tokens=sampling.max_tokens or config.orchestrator.sampling.max_tokens,
        seq_len=config.seq_len,
        seed=config.seed,
        renderer=renderer,
    )


def failure_watch(config: RLConfig, writer: RunWriter) -> FailureWatch:
    """What ends the run when too many completions can't be graded; it knows what a resumed one had before."""
    orch = config.orchestrator
    watch = FailureWatch(orch.grading.max_failed, config.max_steps * orch.batch_size, writer)
    watch.restore(read_lines(config.output_dir / "metrics.jsonl"), orch.batch_size)
    return watch


def tell_restart(writer: RunWriter, curriculum: Curriculum, step: int) -> None:
    """Says that the pool was empty, and has all prompts again."""
    writer.event("pool_restarted", step, examples=curriculum.size)
    writer.display.message(
        f"Step {step} found no prompt left in the pool (all {curriculum.size:,} are retired or parked): all are back, "
        "and what was measured of them is forgotten."
    )


def card(config: RLConfig, step: int) -> str:
    """The model card of `weights/step_N`."""
    orch = config.orchestrator
    facts = {
        "completions per step": orch.batch_size,
        "completions per prompt": orch.rollouts_per_example,
        "learning rate": config.trainer.optim.lr,
    }
    return weights_card(config, "rl", step, orch.env.id, facts)


def weights_card(config: RunConfig, kind: str, step: int, task: str, facts: Mapping[str, object]) -> str:
    """Card of `weights/step_N`. It names no folder of this machine, so that equal runs write equal cards.

    The command is the one that repeats the run from its own `config.toml`.
    """
    name = config.model.name
    from_hub = is_hub_id(name)
    return model_card(
        title=f"{name.split('/')[-1] if from_hub else 'model'}-{kind}",
        method=kind,
        seed=config.seed,
        command=f"hone {kind} @ config.toml",
        base_model=name if from_hub else None,
        task=task,
        step=step,
        facts={**facts, "precision": config.precision},
        from_nothing=name == TINY,
    )
