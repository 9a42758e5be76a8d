"""What the training commands attach to a run, and their first and last lines."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from typing import Any

import torch

from hone.commands.cards import Card
from hone.commands.detach import hand_over
from hone.composition.training import predictions_text
from hone.config.shared import EnvConfig, RunConfig
from hone.model.decoder import Decoder
from hone.runs import predictions
from hone.runs.observer import Observer
from hone.runs.provenance import larger_budget, ranks_of, resume_command
from hone.runs.saving import Ending
from hone.runs.writer import RunWriter, watching


def observers(config: RunConfig, kind: str, introduction: Callable[[Any], Iterable[str]], *more: Observer):
    """What watches a run that a command starts: what its config asks for, its first lines, its card, and `more`."""
    found = [*watching(config, kind), Introduction(introduction), *more]
    return [*found, *([Card()] if config.report else []), HandOver()]


class Introduction(Observer):
    """Says what a run is about to do, when it begins; a resume says less. `lines` gets the `RL` or `SFT`."""

    def __init__(self, lines: Callable[[Any], Iterable[str]]) -> None:
        self._lines = lines

    def check(self, training: Any) -> None:
        self._training = training

    def before_start(self, run: RunWriter) -> None:
        if run.start_step > 0:
            return
        for text in self._lines(self._training):
            run.display.message(text)
        if predicted := predictions.entries(run.info):
            digest = run.info[predictions.KEY]["sha256"]
            run.display.message(f"Predicted: {'; '.join(map(str, predicted))} (fixed by SHA-256 {digest[:12]}…)")


class HandOver(Observer):
    """Lets the terminal go that has started the run with --detach."""

    def before_start(self, run: RunWriter) -> None:
        hand_over(run.folder, run.info["kind"])


def headline(config: RunConfig, model: Decoder, ranks: int = 1) -> str:
    """The policy in one line: name, size, precision, device, threads, and how many ranks share it."""
    size = f"{model.num_parameters / 1e6:.2f}M parameters"
    threads = torch.get_num_threads()
    device = model.device.type if ranks > 1 else model.device
    place = f"{device}, {threads} thread{'s' if threads > 1 else ''}"
    place += f" each, {ranks} ranks" if ranks > 1 else ""
    return f"{config.model.name} ({size}, {config.precision}, {place})"


def last_lines(
    config: RunConfig, run: RunWriter, version: int, ending: Ending, figures: str, env: EnvConfig | None
) -> str:
    """What happened, where it lies, what to do next: evaluate on `env`, with the arguments that it was trained with."""
    return predictions_text(run) + _last_lines(config, run, version, ending, figures, env)


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
