"""`hone.rl`, `hone.sft`, `hone.evaluate`: the commands `rl`, `sft` and `eval` for a script or a notebook.

    run = hone.rl(model="Qwen/Qwen3-0.6B", dataset="problems.jsonl", reward_funcs=[exact], max_steps=100)

Every key of a command's config is a keyword, by its name or dotted name: `max_steps=100`,
`**{"trainer.optim.lr": 1e-6}`. To write the loop yourself, use `hone.RL` and `hone.SFT`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.cli import prepare_process
from hone.errors import UserError, called_from
from hone.runs.reader import Run
from hone.runs.view import INFO

if TYPE_CHECKING:
    from hone.algorithms.losses import TokenLoss
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig
    from hone.environments.references import Reference
    from hone.environments.rubric import RewardFunc
    from hone.evaluation.result import EvalResult
    from hone.loops.groups import Advantages
    from hone.loops.training import Training

prepare_process()


@called_from(python=True)
def rl(
    config: RLConfig | str | Path | None = None,
    *,
    dataset: Any = None,
    eval_dataset: Any = None,
    reward_funcs: Sequence[RewardFunc | str] | RewardFunc | str = (),
    reward_weights: Sequence[float] | None = None,
    correct: RewardFunc | str | None = None,
    agent: Callable[..., Any] | str | None = None,
    reference: Reference | None = None,
    loss: TokenLoss | str | None = None,
    advantages: Advantages | str | None = None,
    **settings: Any,
) -> Run:
    """Train by reinforcement learning in this process, as `hone rl` does; return the run.

    `config` is a TOML file, an `RLConfig` or None; `settings` are keys of this config. The task comes from the config,
    or from `reward_funcs` and the examples in `dataset` (see `hone.environments.functions`); `eval_dataset` turns
    evaluation on. If the audit of the rewards fails, hone only warns. The audit tries right answers: from `reference`
    (a template such as "<answer>{answer}</answer>", or a function), or by default from the column `answer`. `agent` is
    an async function that calls the model and returns the reward (docs/agents.md). The functions `loss` and
    `advantages` replace the algorithm's loss and advantages (docs/algorithms.md). Ctrl-C saves the run and raises
    KeyboardInterrupt; `resume=True` continues the run. Raises UserError on bad input.
    """
    from hone.commands.training import train_rl
    from hone.config.parse import from_settings
    from hone.config.rl import RLConfig

    found = from_settings(RLConfig, config, settings)
    task = {"dataset": dataset, "eval_dataset": eval_dataset, "reward_funcs": reward_funcs}
    task |= {"reward_weights": reward_weights, "correct": correct, "agent": agent, "reference": reference}
    task |= {"loss": loss, "advantages": advantages}
    return _ended(train_rl(found, by_program=True, **task))


@called_from(python=True)
def sft(config: SFTConfig | str | Path | None = None, *, dataset: Any = None, **settings: Any) -> Run:
    """Fine-tune on examples in this process, as `hone sft` does; return the run.

    `config` is a TOML file, an `SFTConfig` or None; `settings` are keys of this config. `dataset` is a path, a hub id,
    a list of dicts or a `datasets.Dataset`, with the columns `messages`, or `prompt` and `completion`. Ctrl-C saves
    the run and raises KeyboardInterrupt; `resume=True` continues the run.
    """
    from hone.commands.training import train_sft
    from hone.loops.sft import with_dataset

    found, rows = with_dataset(config, dataset, settings)
    return _ended(train_sft(found, dataset=rows))


@called_from(python=True)
def evaluate(
    env: str | None = None,
    *,
    dataset: Any = None,
    reward_funcs: Sequence[RewardFunc | str] | RewardFunc | str = (),
    reward_weights: Sequence[float] | None = None,
    correct: RewardFunc | str | None = None,
    **settings: Any,
) -> EvalResult:
    """Evaluate a model, as `hone eval` does: on held-out examples of the task `env`, or on all of `dataset`.

    `model` is a folder, a hub id or, with `base_url`, the name of a model behind a server; other keywords are keys of
    `hone eval`: `num_examples`, `rollouts_per_example`, `max_tokens`, … Results are saved only with `output_dir` or
    `save=True`. Ctrl-C ends the evaluation with the results so far, and raises KeyboardInterrupt.
    """
    from hone.commands.eval import saved
    from hone.config.base import changed
    from hone.config.eval import EvalConfig
    from hone.config.hoist import FUNCTIONS
    from hone.config.parse import from_settings
    from hone.environments.data import given_rows
    from hone.environments.functions import given_task
    from hone.evaluation.saving import results_folder
    from hone.loops.evaluating import Evaluation
    from hone.loops.machine import restored_settings
    from hone.runs.files import write_file, write_json
    from hone.runs.outputs import check_free_names

    gives = dataset is not None or reward_funcs or reward_weights is not None or correct is not None
    if gives and env not in (None, FUNCTIONS):
        raise UserError(f"env = {env!r} has its own data and rewards: give either env, or dataset and reward_funcs")
    env = FUNCTIONS if gives else env
    named = {"save": "output_dir" in settings} | settings | ({} if env is None else {"env": env})
    config, task, files = from_settings(EvalConfig, None, named), None, {}
    if gives:
        folder = results_folder(config) if config.save else Path()
        rows = given_rows(dataset, "dataset")
        given = given_task(folder, config.env_args, None, rows, reward_funcs, reward_weights, correct)
        task, files = given.load(), given.files
        if config.save:
            check_free_names(folder, files)
        if config.template is not None:
            task.use_template(config.template)
        update = {"env_args": given.args, "output_dir": folder if config.save else None}
        update |= {} if "num_examples" in settings else {"num_examples": len(task.split("eval"))}
        config = changed(config, update)
    with restored_settings():
        evaluation = Evaluation(config, task)
        if evaluation.shortage:
            print(evaluation.shortage, file=sys.stderr)
        result = saved(evaluation)
    if evaluation.folder is not None and files:
        for name, text in files.items():
            write_file(evaluation.folder / name, text)
        write_json(evaluation.folder / INFO, Run(evaluation.folder).info | {"kept": sorted(files)})
    if result.stopped:
        raise KeyboardInterrupt
    return result


def _ended(training: Training) -> Run:
    if training.exit_code:
        raise KeyboardInterrupt if training.exit_code == 130 else SystemExit(training.exit_code)
    return Run(training.config.output_dir)
