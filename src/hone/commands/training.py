"""What the training commands share: loading the policy, saving it, and their first and last lines."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from hone.commands.detach import hand_over
from hone.commands.machine import device_of
from hone.config.rl import RLConfig
from hone.config.shared import EnvConfig, RunConfig
from hone.errors import Halt, UserError
from hone.model.card import model_card
from hone.model.chat import ChatRenderer
from hone.model.decoder import Decoder
from hone.model.files import TINY, is_hub_id
from hone.model.hf import load_model
from hone.runs import predictions
from hone.runs.alarms import AlarmStop
from hone.runs.reader import Run
from hone.runs.resuming import larger_budget, ranks_of, resume_command
from hone.runs.saving import Ending, Saver, Snapshot
from hone.runs.signals import StepAbandoned, StopRequest
from hone.runs.writer import RunWriter
from hone.trainer.export import add_tokenizer, export_weights
from hone.trainer.fingerprint import fingerprint
from hone.trainer.objectives import policy_objective
from hone.trainer.parallel import ALONE, Ranks, shard
from hone.trainer.ranked import RankedTrainer
from hone.trainer.step import Trainer

if TYPE_CHECKING:
    import torch

Config = TypeVar("Config", bound=RunConfig)


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


@contextmanager
def opened(
    config: RunConfig,
    kind: str,
    model: Decoder,
    reads: list[Path],
    digests: Mapping[str, str],
    intro: Iterable[str],
    ranks: int = 1,
) -> Iterator[RunWriter]:
    """The run directory, open for the loop.

    `reads` are local paths that it must not contain; `digests` tell what they and the model are; `intro` is said at the
    beginning of a run, not of a resume. On several `ranks` a checkpoint's tensors are left to them.
    """
    parameters = dict(model.named_parameters())
    with RunWriter.start(config, kind, sys.argv, reads, None, parameters, digests, ranks == 1, ranks) as writer:
        if not writer.nothing_left:
            introduce(config, kind, writer, intro)
        yield writer


def introduce(config: RunConfig, kind: str, writer: RunWriter, intro: Iterable[str]) -> None:
    """What a run begins with once its directory is open."""
    if not config.deterministic:
        writer.mark_inexact(0, "deterministic = false")
    for text in intro if writer.start_step == 0 else ():
        writer.display.message(text)
    if writer.start_step == 0 and (predicted := predictions.entries(writer.info)):
        digest = writer.info[predictions.KEY]["sha256"]
        writer.display.message(f"Predicted: {'; '.join(map(str, predicted))} (fixed by SHA-256 {digest[:12]}…)")
    hand_over(config.output_dir, kind)


def run_loop(
    config: RunConfig,
    run: RunWriter,
    trainer: Trainer,
    renderer: ChatRenderer,
    card: Callable[[int], str],
    state: Callable[[], Callable[[], dict[str, Any]]],
    loop: Callable[[Saver], Ending],
) -> tuple[Ending, int]:
    """`run_saved` with a trainer in this process.

    Versions are saved in Hugging Face layout, with the model card `card(step)`; a checkpoint holds the trainer's
    tensors and the loop's state. `state()` takes that and returns a function that gives it as a record, which a thread
    may call later.
    """

    def export(folder: Path, step: int, parameters: dict[str, torch.Tensor]) -> None:
        export_weights(folder, trainer.model, renderer, card(step), parameters)

    def stoppable(saver: Saver) -> Ending:
        trainer.interrupt = saver.stop.check
        return loop(saver)

    return run_saved(config, run, trainer, export, lambda _: Snapshot(trainer.tensors(), state()), stoppable)


def run_ranked_loop(
    config: RunConfig,
    run: RunWriter,
    trainer: RankedTrainer,
    renderer: ChatRenderer,
    card: Callable[[int], str],
    state: Callable[[], Callable[[], dict[str, Any]]],
    loop: Callable[[Saver], Ending],
) -> tuple[Ending, int]:
    """`run_loop` with a trainer on any number of ranks. Several write together, and so while the loop waits."""
    if trainer.ranks.alone:
        return run_loop(config, run, trainer.trainer, renderer, card, state, loop)

    def export(folder: Path, step: int, _: dict[str, torch.Tensor]) -> None:
        trainer.save_policy(folder)
        add_tokenizer(folder, renderer, card(step))

    def snapshot(checkpoint: bool) -> Snapshot:
        part = run.checkpoints.part(trainer.version) if checkpoint else None
        if part is not None:
            trainer.save_part(part)
        return Snapshot({}, state(), part)

    def stoppable(saver: Saver) -> Ending:
        trainer.trainer.interrupt = saver.stop.check
        return loop(saver)

    ckpt = config.ckpt and config.ckpt.model_copy(update={"background": False})
    return run_saved(config.model_copy(update={"ckpt": ckpt}), run, trainer, export, snapshot, stoppable)


class Versioned(Protocol):
    """A trainer, wherever it is."""

    @property
    def version(self) -> int: ...

    def fingerprint(self) -> str: ...


def run_saved(
    config: RunConfig,
    run: RunWriter,
    trainer: Versioned,
    export: Callable[[Path, int, dict[str, torch.Tensor]], None],
    snapshot: Callable[[bool], Snapshot],
    loop: Callable[[Saver], Ending],
    planned: bool = False,
) -> tuple[Ending, int]:
    """Runs `loop` to its end and closes the run. Returns how it ended, and the exit code.

    `export`, `snapshot` and `planned` are as `Saver` wants them. SIGINT and SIGTERM end the loop after its step; if it
    gives that up, the version before it is saved. So is the version that a Halt came at: then UserError says how to go
    on, of an alarm's stop once the run is closed as one that is stopped.
    """
    stopped: AlarmStop | None = None
    with StopRequest(run.display.notice, config.grace_seconds) as stop:
        saver = Saver(run, stop, config.ckpt, export, snapshot, planned)
        try:
            ending = loop(saver)
        except StepAbandoned:
            run.display.message("The step can't be finished in time: saving the state before it.")
            saver.save(trainer.version, last=True)
            run.log_step(trainer.version, {}, weights=trainer.fingerprint())
            ending = "stopped"
        except Halt as halt:
            saver.halted = True
            saver.save(trainer.version, last=True)
            run.log_step(trainer.version, halt.metrics, weights=trainer.fingerprint())
            if not isinstance(halt, AlarmStop):
                raise _halted(run, trainer.version, halt) from halt
            ending, stopped = "stopped", halt
        finally:
            saver.close()
        stop.release()
        run.finish(ending, stopped.name if stopped else "")
    if stopped:
        print(_predictions(run), end="")
        raise _halted(run, trainer.version, stopped) from stopped
    return ending, stop.exit_code if ending == "stopped" else 0


def _halted(run: RunWriter, version: int, halt: Halt) -> UserError:
    """What ended the run at `version`, where it is saved, and how to go on."""
    command = resume_command(run.folder, run.info["kind"], ranks=ranks_of(run.info))
    return UserError(f"{halt}. Saved: {run.checkpoints.path(version)}; go on with: {command}")


def with_determinism(config: Config, device: str) -> Config:
    """The config with `deterministic` decided: without a word of the user, true on a CPU."""
    wanted = device == "cpu" if config.deterministic is None else config.deterministic
    return config.model_copy(update={"deterministic": wanted})


def model_digests(model: Decoder, renderer: ChatRenderer, initial: bool = True) -> dict[str, str]:
    """What the initial model and its tokenizer are, whatever they are called; nothing if this isn't the initial one."""
    if not initial:
        return {}
    return {"model": fingerprint(dict(model.named_parameters())), "tokenizer": renderer.digest()}


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


def headline(config: RunConfig, model: Decoder, threads: int, ranks: int = 1) -> str:
    """The policy in one line: name, size, precision, device, threads, and how many ranks share it."""
    size = f"{model.num_parameters / 1e6:.2f}M parameters"
    device = model.device.type if ranks > 1 else model.device
    place = f"{device}, {threads} thread{'s' if threads > 1 else ''}"
    place += f" each, {ranks} ranks" if ranks > 1 else ""
    return f"{config.model.name} ({size}, {config.precision}, {place})"


def last_lines(
    config: RunConfig, run: RunWriter, version: int, ending: Ending, figures: str, env: EnvConfig | None
) -> str:
    """What happened, where it lies, what to do next: evaluate on `env`, with the arguments that it was trained with."""
    return _predictions(run) + _last_lines(config, run, version, ending, figures, env)


def _predictions(run: RunWriter) -> str:
    """What became of the predictions; empty without any."""
    predicted = "\n    ".join(predictions.in_words(run.info, run.folder))
    return f"Predictions: {predicted}\n" if predicted else ""


def _last_lines(
    config: RunConfig, run: RunWriter, version: int, ending: Ending, figures: str, env: EnvConfig | None
) -> str:
    if ending != "done":
        saved = run.checkpoints.path(version)
        assert saved.exists(), "a run that is stopped is saved"
        limits = config.budget.model_dump() if config.budget and ending == "budget" else {}
        more = larger_budget(limits, run.budget.spent)
        command = resume_command(run.folder, run.info["kind"], *more, ranks=ranks_of(run.info))
        if ending == "budget":
            return (
                f"Stopped by its budget after {version} of {config.max_steps} steps ({run.budget.used_up}). "
                f"Saved: {saved}\nGo on with a larger one: {command}"
            )
        return f"Stopped after {version} of {config.max_steps} steps. Saved: {saved}\nGo on with: {command}"
    weights = run.weights_path(version)
    steps = "1 step" if version == 1 else f"{version} steps"
    evaluate = ["hone", "eval", env.id if env else "ENV", "-m", str(weights), "-n", "100", "-r", "4"]
    evaluate += ["-a", json.dumps(env.args)] if env and env.args else []
    evaluate += ["--template", json.dumps(env.template)] if env and env.template else []
    look = shlex.join(["hone", "view", str(run.folder)])
    return f"Done: {steps}{figures}. Weights: {weights}\nLook: {look}\nNext: {shlex.join(evaluate)}"
