"""`hone rl` in one process: preflight, the loop, a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

from hone.commands.cards import card_at_end
from hone.commands.forecast import forecast
from hone.commands.machine import configure, determinism_note, device_of
from hone.commands.overlap import check_overlap, left_out, tell_overlap
from hone.commands.preflight import audited
from hone.commands.sampler import reached, sampling
from hone.commands.slow_work import slow_work
from hone.commands.training import (
    headline,
    last_lines,
    load_policy,
    local_sources,
    make_trainer,
    model_digests,
    model_source,
    opened,
    restore,
    run_loop,
    weights_card,
    with_determinism,
)
from hone.config.rl import RLConfig
from hone.environments import Environment
from hone.environments.environment import Split
from hone.environments.loading import configured
from hone.errors import UserError
from hone.evaluation.loop import evaluate
from hone.inference.types import SamplingParams
from hone.model.chat import ChatRenderer, load_renderer
from hone.model.decoder import Decoder
from hone.orchestrator.canary import Canary
from hone.orchestrator.conversations import check_turns
from hone.orchestrator.curriculum import Curriculum
from hone.orchestrator.failures import FailureWatch
from hone.orchestrator.groups import GroupSampler, check_prompts
from hone.orchestrator.ledger import Ledger
from hone.orchestrator.loop import Evaluate, Loop, train
from hone.orchestrator.recorder import RunRecorder
from hone.orchestrator.types import Policy
from hone.orchestrator.watch import GapWatch, band_of
from hone.runs.files import read_lines
from hone.runs.prediction import check as check_predictions
from hone.runs.saving import Ending, Saver
from hone.runs.writer import RunWriter
from hone.types import Score, Trajectory


def run(config: RLConfig, train: Loop = train) -> int:
    """Trains; returns the exit code: 0, or 130/143 when a signal ended the run (its state is saved then).

    `train` is what runs once all is ready, in the place of the loop.
    """
    refuse_unsupported(config)
    config = with_determinism(config, device_of(config.model.device))
    env = task_of(config)
    env.check_rollouts()
    check_predictions(config, env.id)
    source = model_source(config)
    renderer = load_renderer(source, config.model.chat_template)
    model = load_policy(config, source)
    threads = configure(config.threads, model.num_parameters, bool(config.deterministic))
    overlap = check_overlap(config, env)
    dropped = left_out(config, overlap)
    curriculum = Curriculum.of_run(config, len(env.split("train")), dropped)
    check_turns(env, renderer, env.split("train")[0])
    check_lengths(config, env, renderer, model.config.max_position_embeddings, curriculum)
    server = reached(config, renderer, model.num_parameters)
    preflight = audited(config, env, lambda: task_of(config), renderer)

    digests = model_digests(model, renderer, source == config.model.name) | task_digests(config, env)
    intro = chain(introduction(config, model, threads), forecast(config, model.config, renderer, env))
    with opened(config, "rl", model, own_sources(config), digests, intro) as writer, ExitStack() as stack:
        if writer.nothing_left:
            return 0
        if writer.start_step == 0:
            tell_overlap(config, env, overlap, writer)
        if preflight is not None:
            preflight.tell(writer)
        stack.callback(env.close_workers)
        env.progress = writer.display.doing
        env.start_workers(config.orchestrator.batch_size)
        card_at_end(config, writer, env)
        trainer = make_trainer(config, model)
        state = restore(writer, trainer)
        ledger = Ledger(state["ledger"] if state else None)
        curriculum.restore(ledger.entries)
        curriculum.restarted = lambda step: tell_restart(writer, curriculum, step)
        policy = stack.enter_context(sampling(config, env, server, writer, trainer, renderer))
        sampler = GroupSampler(config, env, renderer, policy, curriculum)
        told_before = "left_out" in writer.info  # a resume with --allow-drift may leave none out
        writer.note(
            pool=curriculum.size,
            correctness=env.rubric.correctness,
            reward_ranges=env.rubric.ranges_as_lists(),
            **({"left_out": dropped} if dropped or told_before else {}),
        )

        def loop(saver: Saver) -> Ending:
            band = band_of(config, server.backend if server else None)
            canary = Canary.of_run(config, sampler, renderer, policy, trainer, band)
            watch = GapWatch(canary, config.gap.action, writer)
            recorder = RunRecorder(writer, saver, watch, failure_watch(config, writer))

            def publish(version: int) -> dict[str, float]:
                policy.load(version)
                return watch.published(version)

            evaluation = make_evaluate(config, env, renderer, policy, recorder.phase, recorder.evaluated)
            return train(config, sampler, trainer, ledger, recorder, publish, evaluation)

        ending, code = run_loop(config, writer, trainer, renderer, lambda step: card(config, step), ledger.state, loop)
    print(last_lines(config, writer, trainer.version, ending, "", config.orchestrator.env))
    return code


def refuse_unsupported(config: RLConfig) -> None:
    """One sentence for what the schema knows and this version cannot run yet."""
    if config.mode == "cluster":
        raise UserError(
            "mode cluster (roles on several machines, by Ray) is not available in this version: --mode split has a "
            "process for each role on this one"
        )
    if config.orchestrator.max_async_level > 0:
        raise UserError("orchestrator.max_async_level > 0 needs mode split; in one process set it to 0 (lock-step)")


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
    config: RLConfig,
    env: Environment,
    renderer: ChatRenderer,
    policy: Policy,
    phase: Callable[[str], AbstractContextManager[None]],
    evaluated: Callable[[int, Sequence[Trajectory], Sequence[Score], list[dict[str, Any]]], None] = lambda *_: None,
) -> Evaluate:
    """The loop's evaluation: every `eval.interval` versions from 0 on, and at the end. It runs inside `phase`, and
    `evaluated` is told what came of it: of which version, trajectories, scores, and rows for its file.
    """
    settings = config.orchestrator.eval
    if settings is None:
        return lambda version, last: {}
    sampling = settings.sampling
    params = SamplingParams(temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k)
    max_tokens = sampling.max_tokens or config.orchestrator.sampling.max_tokens

    def evaluation(version: int, last: bool) -> dict[str, float]:
        if version % settings.interval and not last:
            return {}
        with phase("evaluate"):
            result = evaluate(
                policy,
                env,
                num_examples=settings.num_examples,
                rollouts_per_example=settings.rollouts_per_example,
                sampling=params,
                max_tokens=max_tokens,
                seq_len=config.seq_len,
                seed=config.seed,
                renderer=renderer,
            )
        samples: list[Any] = result.samples
        trajectories, scores = [sample.trajectory for sample in samples], [sample.score for sample in samples]
        evaluated(version, trajectories, scores, result.rows())
        return result.metrics()

    return evaluation


def task_of(config: RLConfig) -> Environment:
    """The task that the config names. Touches no data."""
    task = config.orchestrator.env
    env = configured(task.id, task.args, task.template, "orchestrator.env.template")
    env.use_workers(config.orchestrator.grading, deterministic=bool(config.deterministic))
    return env


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


def task_digests(config: RLConfig, env: Environment) -> dict[str, str]:
    """What the run trains and is evaluated on."""
    return env.digests(("train", "eval") if config.orchestrator.eval else ("train",))


def own_sources(config: RLConfig) -> list[Path]:
    """Local paths that the run reads, which its output directory must not contain."""
    return local_sources([config.model.name, config.model.chat_template, *config.orchestrator.env.args.values()])


def introduction(config: RLConfig, model: Decoder, threads: int) -> Iterator[str]:
    """What is about to run, in two lines, and on a GPU what determinism costs."""
    orch = config.orchestrator
    prompts = orch.batch_size // orch.rollouts_per_example
    yield (
        f"RL: {headline(config, model, threads)} on {orch.env.id}\n"
        f"    {config.max_steps} steps x {prompts} prompts x {orch.rollouts_per_example} completions = "
        f"{config.max_steps * orch.batch_size:,} completions, into {config.output_dir}"
    )
    if config.trainer.ranks > 1:
        yield f"trainer.ranks = {config.trainer.ranks} is of no effect in one process: ranks need --mode split."
    if note := determinism_note(model, config.seq_len, config.trainer.micro_batch_tokens):
        yield note


def card(config: RLConfig, step: int) -> str:
    """The model card of `weights/step_N`."""
    orch = config.orchestrator
    facts = {
        "completions per step": orch.batch_size,
        "completions per prompt": orch.rollouts_per_example,
        "learning rate": config.trainer.optim.lr,
    }
    return weights_card(config, "rl", step, orch.env.id, facts)
