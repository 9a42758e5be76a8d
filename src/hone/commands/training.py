"""What the training commands share: loading the policy, saving it, and their first and last lines."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hone.commands.machine import device_of
from hone.config.shared import RunConfig
from hone.model.card import model_card
from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.files import TINY
from hone.model.hf import load_model
from hone.runs.saving import Ending, Saver, Snapshot
from hone.runs.signals import StepAbandoned, StopRequest
from hone.runs.writer import RunWriter
from hone.trainer.export import export_weights
from hone.trainer.fingerprint import fingerprint
from hone.trainer.step import Trainer

if TYPE_CHECKING:
    import torch

Config = TypeVar("Config", bound=RunConfig)


def load_policy(config: RunConfig) -> Decoder:
    """The model to train, on its device, in the configured precision."""
    return load_model(
        config.model.name,
        device=device_of(config.model.device),
        precision=config.precision,
        seed=config.seed,
        init=config.model.init,
    )


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


def make_saver(
    config: RunConfig,
    run: RunWriter,
    stop: StopRequest,
    trainer: Trainer,
    renderer: ChatRenderer,
    card: Callable[[int], str],
    state: Callable[[], Callable[[], dict[str, Any]]],
) -> Saver:
    """Saves the trainer's model in Hugging Face layout; a checkpoint holds its tensors and the loop's state.

    `state()` takes it and returns a function that gives it as a record, which may be called later.
    """

    def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
        export_weights(folder, trainer.model, renderer, card(step), parameters)

    return Saver(run, stop, config.ckpt, export, lambda: Snapshot(trainer.tensors(), state()))


def until_ended(saver: Saver, trainer: Trainer, loop: Callable[[], Ending]) -> Ending:
    """How `loop()` ended. If it gave up a step, the version before that step is saved."""
    trainer.interrupt = saver.stop.check
    try:
        return loop()
    except StepAbandoned:
        saver.run.display.message("The step can't be finished in time: saving the state before it.")
        saver.save(trainer.version, last=True)
        return "stopped"
    finally:
        saver.close()


def with_determinism(config: Config, device: str) -> Config:
    """The config with `deterministic` decided: without a word of the user, true on a CPU."""
    wanted = device == "cpu" if config.deterministic is None else config.deterministic
    return config.model_copy(update={"deterministic": wanted})


def digests(model: Decoder, renderer: ChatRenderer) -> dict[str, str]:
    """What the initial model and its tokenizer are, whatever they are called: see `runs.opening.Start.sources`."""
    return {"model": fingerprint(dict(model.named_parameters())), "tokenizer": renderer.digest()}


def weights_card(config: RunConfig, kind: str, step: int, task: str, facts: Mapping[str, object]) -> str:
    """Card of `weights/step_N`. It names no folder of this machine, so that equal runs write equal cards.

    The command is the one that repeats the run from its own `config.toml`.
    """
    name = config.model.name
    is_hub_id = name != TINY and not Path(name).exists()
    return model_card(
        title=f"{name.split('/')[-1] if is_hub_id else 'model'}-{kind}",
        method=kind,
        seed=config.seed,
        command=f"hone {kind} @ config.toml",
        base_model=name if is_hub_id else None,
        task=task,
        step=step,
        facts={**facts, "precision": config.precision},
        from_nothing=name == TINY,
    )


def headline(config: RunConfig, model: Decoder, threads: int) -> str:
    """The policy in one line: name, size, precision, device, threads."""
    size = f"{model.num_parameters / 1e6:.2f}M parameters"
    plural = "s" if threads > 1 else ""
    return f"{config.model.name} ({size}, {config.precision}, {model.device}, {threads} thread{plural})"


def last_lines(config: RunConfig, run: RunWriter, version: int, ending: Ending, figures: str, env: str) -> str:
    """What happened, where it lies, what to do next."""
    if ending != "done":
        saved = run.checkpoints.path(version)
        assert saved.exists(), "a run that is stopped is saved"
        kind, file = run.info["kind"], shlex.quote(str(run.folder / "config.toml"))
        command = f"{kind} @ {file} --resume"
        if ending == "budget":
            return (
                f"Stopped by its budget after {version} of {config.max_steps} steps ({run.budget.used_up}). "
                f"Saved: {saved}\nGo on with a larger one: {command} --budget.{run.budget.limit_reached} VALUE"
            )
        return f"Stopped after {version} of {config.max_steps} steps. Saved: {saved}\nGo on with: {command}"
    weights = run.weights_path(version)
    steps = "1 step" if version == 1 else f"{version} steps"
    return f"Done: {steps}{figures}. Weights: {weights}\nNext: hone eval {env} -m {weights} -n 100 -r 4"
