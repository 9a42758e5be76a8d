"""Runs `hone sft`, `hone orchestrator`, and `hone rl` in one process, with observers and lines at start and end."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from hone.commands.detach import hand_over
from hone.config.algorithms import by_algorithm
from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import LoraConfig
from hone.environments import services
from hone.extension import gathered, load
from hone.hardware import takes_products_in_fp32
from hone.loops.machine import device_of
from hone.model.config import DecoderConfig
from hone.runs import view
from hone.runs.display import make_display
from hone.runs.observer import Observer
from hone.runs.opening import target_in_words
from hone.runs.progress import Progress, thousands
from hone.runs.provenance import larger_budget, resume_command
from hone.runs.summary import best_checkpoint, evaluating, missed_target, summarize
from hone.runs.writer import RunWriter
from hone.trainer.memory import trained
from hone.trainer.parallel import ALONE, Ranks, joined

if TYPE_CHECKING:
    from hone.loops.rl import RL
    from hone.loops.sft import SFT

PACE = "as fast as hone's own from 100M parameters on, in up to twice the time below"
"""Time with transformers' layers / time with hone's, for Qwen3's shape on one Zen 3 core. Training: 1.1 to 1.2 with
0.4M parameters, 1.0 with 100M. Sampling: 1.5 to 1.9 with 0.4M, 1.0 to 1.1 with 100M."""


def sft(config: SFTConfig) -> int:
    """Train; return the exit code: 0, or 130/143 if a signal ended the run (after saving its state)."""
    from hone.loops.sft import SFT, follow

    with joined(device_of(config.model.device)) as ranks:
        if not ranks.first:
            return follow(SFT(config, ranks=ranks))
        return train_sft(config, ranks).exit_code


def train_sft(config: SFTConfig, ranks: Ranks = ALONE, dataset: Any = None) -> SFT:
    from hone.loops.sft import SFT

    return train(SFT(config, dataset=dataset, observers=attached(config, "sft"), ranks=ranks))


def train_rl(config: RLConfig, by_program: bool = False, **task: Any) -> RL:
    """Train in this process with a command's observers. `task`: arguments of `RL`, such as `dataset`."""
    from hone.loops.rl import RL

    return train(RL(config, observers=attached(config, "rl", by_program), **task))


def train(training: Any) -> Any:
    with training:
        training.train()
    if training.ending is not None:
        print(report(training))
    return training


def attached(config: SFTConfig | RLConfig, kind: str, by_program: bool = False) -> list[Observer]:
    """Return a run's observers, of the core and of extensions. `by_program`: `hone.rl` started the run."""
    display = make_display(config.display, Progress(kind, config.max_steps))
    builtin = [(0, display), (30, Introduction()), (70, HandOver())]
    more = [
        (one.place, load(one.module, one.function)(config, by_program)) for one in gathered("OBSERVERS", {}).values()
    ]
    return [observer for _, observer in sorted([*builtin, *more], key=lambda one: one[0]) if observer is not None]


class Introduction(Observer):
    """Prints the plan of a new run, but not of a resumed run."""

    def check(self, training: Any) -> None:
        self._training = training

    def before_start(self, run: RunWriter) -> None:
        if run.start_step > 0:
            return
        for text in introduction(self._training):
            run.display.message(text)


class HandOver(Observer):
    """With --detach: frees the terminal once the run is open."""

    def before_start(self, run: RunWriter) -> None:
        hand_over(run.folder, run.info["kind"])


def introduction(training: Any) -> Iterator[str]:
    """Yield the texts of the run's plan. In mode split, they describe the model by the trainer's message `hello`."""
    config, sft, others = training.config, training.kind == "sft", getattr(training, "processes", training)
    hello = getattr(others, "hello", None)
    ranks = hello.ranks if hello else training.ranks.world if sft else 1
    if hello is None:
        model = training.model
        policy = headline(config, model.num_parameters, str(model.device), torch.get_num_threads(), ranks)
    else:
        policy = headline(config, hello.parameters, f"{hello.device} of {hello.host}", hello.threads, ranks)
    if sft:
        from hone.loops.sft import data_name

        unit = f"rows of {config.data.seq_len} tokens" if config.data.pack else "examples"
        task, work = data_name(config), f"{config.data.batch_size} {unit}"
    else:
        orch = config.orchestrator
        prompts, completions = orch.batch_size // orch.rollouts_per_example, config.max_steps * orch.batch_size
        work = f"{prompts} prompts x {orch.rollouts_per_example} completions = {completions:,} completions"
        work += ", and more by refill" if orch.refill else ""
        task = f"{config.task_name} {by_algorithm(config)}".rstrip()
    work = f"{config.max_steps} step{'' if config.max_steps == 1 else 's'} x {work}, into {config.output_dir}"
    yield f"{training.kind.upper()}: {policy} on {task}\n    {work}"
    if sft and config.data.run:
        yield f"{len(training.data.source):,} examples have a completion to imitate"
    if not sft:
        yield from (env.left_out for env in training.all_envs if env.left_out)
    if hello is not None:
        lag, names = config.orchestrator.lag, " and ".join(server.name for server in others.servers)
        yield f"sampled by {names}, at most {lag} versions behind"
    elif not sft and config.trainer.ranks > 1:
        yield f"trainer.ranks = {config.trainer.ranks} has no effect in one process: ranks need --mode split."
    if config.model.lora is not None:
        yield lora_in_words(config.model.lora, model.config if hello is None else training.decoder)
    if hello is None and model.config.implementation != "hone":
        yield f"A model of type {model.config.family} runs on transformers' layers: {PACE}."
    decoder = training.model.config if sft else training.decoder
    if decoder.stated_context > decoder.max_position_embeddings:
        yield f"The model has a {decoder.context}."


def lora_in_words(lora: LoraConfig, shape: DecoderConfig) -> str:
    weights = f"{thousands(trained(shape, lora))} of {thousands(shape.parameters)} weights"
    base = f", base in {lora.base.removesuffix('bit')} bits" if lora.base else ""
    begin = f", from the adapter in {lora.path}" if lora.path else ""
    return f"LoRA of rank {lora.rank}, alpha {lora.alpha}: {weights} are trained{base}{begin}"


def headline(config: Any, parameters: int, device: str, threads: int, ranks: int = 1) -> str:
    place = f"{device}, {threads} thread{'s' if threads > 1 else ''}" + (f" each, {ranks} ranks" if ranks > 1 else "")
    alone = config.precision == "fp32" and takes_products_in_fp32(device)
    why = ", as this CPU has no products in bf16" if alone else ""
    return f"{config.model.name} ({parameters / 1e6:.2f}M parameters, {config.precision}{why}, {place})"


def report(training: Any) -> str:
    config, run, version, sft = training.config, training.run, training.version, training.kind == "sft"
    text, figures = training.observed(), ""
    if sft:
        limit, newest = training.data.source.limit, training.steps.newest
        if limit.dropped or limit.truncated:
            text += f"Too long ({limit.name}): {len(limit.dropped)} dropped, {len(limit.truncated)} truncated.\n"
        figures = "".join(f", {name} {newest[name]:.4f}" for name in ("loss", "val/loss") if name in newest)
    if count := len(training.renderer.special_texts):
        text += f"Special tokens encoded as text: in {count:,} text{'' if count == 1 else 's'} of the data.\n"
    if training.ending != "done":
        spent = training.ending == "budget"
        more = larger_budget(config.budget.model_dump(), run.budget.spent) if spent else []
        why, how = (" by its budget", " with a larger one") if spent else ("", " with")
        used = f" ({run.budget.used_up})" if spent else ""
        text += f"Stopped{why} after {version} of {config.max_steps} steps{used}. "
        go_on = resume_command(run.folder, run.info, *more)
        return f"{text}Saved: {run.checkpoints.path(version)}\nGo on{how}: {go_on}"
    why = f" of {config.max_steps}, for {target_in_words(run.info)}" if run.target else ""
    weights, summary = run.weights_path(version), summarize(run.folder)
    if not sft and (asked := services.usage(run.folder)):
        text += f"Services gave {asked} (judgements.jsonl).\n"
    if missed := missed_target(summary):
        text += f"The target was not reached: {missed}.\n"
    text += f"Done: {version} step{'' if version == 1 else 's'}{why}{figures}. Weights: {weights}\n"
    if best := best_checkpoint(summary):
        text += f"Best: {best}, in {run.folder / view.CHECKPOINTS}\n"
    if "view" in gathered("COMMANDS", {}):
        text += f"Look: {shlex.join(['hone', 'view', str(run.folder)])}\n"
    return f"{text}Next: {evaluating(summary, weights)}"
