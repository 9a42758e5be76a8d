"""Reads facts about a task or data set: number of rows, lengths of prompts and of references. Downloads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.config.shared import EnvConfig
from hone.environments import Environment
from hone.environments.loading import configured
from hone.errors import UserError, first_line
from hone.extensions.planning.arithmetic import Lengths
from hone.loops.parts import task_of

if TYPE_CHECKING:
    from hone.model.chat import ChatRenderer

EXAMPLES = 64
"""Number of examples to measure, spread evenly over the split."""
CHARACTERS = 4.0
"""Characters per token, if the tokenizer is missing."""
THOUGHT = 8
"""If the token limit is at least this many times the mean reference length, the model probably thinks before it
answers. Then the lengths of references don't predict the lengths of completions."""


@dataclass(frozen=True)
class Facts:
    """Numbers of training (`pool`) and `held_out` examples, `turns`, and lengths in tokens of some examples.

    For several tasks, `pool` is the sum, `held_out` the least and `turns` the most. If `estimated`, lengths are
    estimated from characters. `tokens` counts all tokens of an SFT data set. `notes` say what could not be read.
    """

    pool: int | None = None
    held_out: int | None = None
    turns: int = 1
    prompts: tuple[int, ...] = ()
    references: tuple[int, ...] = ()
    estimated: bool = False
    tokens: int | None = None
    notes: list[str] = field(default_factory=list)

    def lengths(self, config: RLConfig | SFTConfig) -> Lengths:
        """Return measured lengths, with references as completions. Without a measurement, guess from the config."""
        guessed, mean = Lengths.of(config, self.turns), float(np.mean(self.references or [0]))
        if isinstance(config, SFTConfig):
            if config.data.pack or not self.references:
                return guessed
            return replace(guessed, completion=min(mean, guessed.longest_completion), measured="demonstrations")
        if not self.prompts:
            return guessed
        longest = min(max(self.prompts), config.seq_len - 1)
        new = min(config.seq_len - longest, self.turns * (config.most_tokens or config.seq_len))
        found = Lengths(float(np.mean(self.prompts)), new / 2, longest, new, turns=self.turns)
        if not self.references or mean * THOUGHT <= new:
            return found
        reached = min(max(self.references), new)
        return replace(found, completion=min(mean, new), measured="the task's reference answers", reached=reached)


def tasks_of(config: RLConfig | SFTConfig) -> dict[str, EnvConfig]:
    """Return the run's distinct tasks, each by the config key of its `template`."""
    if isinstance(config, SFTConfig):
        return {"data.env.template": config.data.env} if config.data.env else {}
    found = {}
    for section, tasks in (("", config.tasks()), (".eval", config.eval_tasks())):
        for name, one in tasks.items():
            env = one.orchestrator.env
            if not any(env.same_task(other) for other in found.values()):
                found[f"orchestrator{section}.envs.{name}.template" if name else "orchestrator.env.template"] = env
    return found


def look_at(config: RLConfig | SFTConfig) -> Facts:
    """Read the config's data, if it is on this machine."""
    import datasets.config

    renderer = _renderer(config)
    with mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True):
        try:
            facts = _facts(config, renderer)
        except UserError as error:
            facts = Facts(notes=[_not_seen("data", error)])
    if renderer is None:
        note = f"tokens are estimated from characters: the tokenizer of {config.model.name} is not here"
        facts.notes.insert(0, note)
    return facts


def _facts(config: RLConfig | SFTConfig, renderer: ChatRenderer | None) -> Facts:
    if isinstance(config, RLConfig):
        return facts_of_tasks(config, {name: task_of(one) for name, one in config.tasks().items()}, renderer)
    data = config.data
    if data.env is not None:
        env = configured(data.env.id, data.env.args, data.env.template, "data.env.template")
        prompts, references = _measure(env, len(env.split("train")), EXAMPLES, renderer)
        whole = tuple(a + b for a, b in zip(prompts, references, strict=False))
        return Facts(prompts=prompts, references=whole, estimated=renderer is None)
    from hone.environments.data import load_rows
    from hone.runs import Run
    from hone.runs.listing import find_run
    from hone.trainer.sft_data import sampled_rows

    if data.run is not None:
        rows = sampled_rows(Run(find_run(data.run)), data.min_reward, "")
    else:
        rows = load_rows(data.path or data.name or "", data.split)
    lengths = tuple(_count(str(rows[i]), renderer) for i in _spread(len(rows), EXAMPLES))
    return Facts(references=lengths, estimated=True, pool=len(rows), tokens=int(np.mean(lengths) * len(rows)))


def facts_of_tasks(
    config: RLConfig, envs: Mapping[str, Environment], renderer: ChatRenderer | None, most: int = EXAMPLES
) -> Facts:
    """Measure `most` examples of each training task (`envs`: by name); combine the facts."""
    found = [_facts_of_task(one, envs[name], renderer, most) for name, one in config.tasks().items()]
    pools, held_out = [facts.pool for facts in found], [facts.held_out for facts in found]
    return Facts(
        None if None in pools else sum(pool or 0 for pool in pools),
        min((n for n in held_out if n is not None), default=None),
        max(facts.turns for facts in found),
        tuple(tokens for facts in found for tokens in facts.prompts),
        tuple(tokens for facts in found for tokens in facts.references),
        renderer is None,
        notes=[note for facts in found for note in facts.notes],
    )


def _facts_of_task(config: RLConfig, env: Environment, renderer: ChatRenderer | None, most: int) -> Facts:
    try:
        rows = len(env.split("train"))
    except UserError as error:
        return Facts(turns=env.max_turns, notes=[_not_seen("training data", error)])
    prompts, references = _measure(env, min(rows, config.orchestrator.max_examples or rows), most, renderer)
    held_out, notes = None, []
    if config.orchestrator.eval:
        try:
            held_out = len(env.split("eval"))
        except UserError as error:
            notes.append(_not_seen("held-out data", error))
    return Facts(rows, held_out, env.max_turns, prompts, references, renderer is None, notes=notes)


def _measure(
    env: Environment, available: int, most: int, renderer: ChatRenderer | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Count the tokens of prompts and of declared references; without a renderer, estimate them."""
    prompts, references, train = [], [], env.split("train")
    for index in _spread(available, most):
        example = train[index]
        if renderer is not None:
            prompts.append(len(renderer.prompt_ids(example.prompt, env.tool_schemas)))
        else:
            text = "".join(str(message.get("content")) for message in example.prompt)
            prompts.append(_count(text, None) + 8 * len(example.prompt) + 4)
        try:
            reference = env.reference(example)
        except UserError:  # the task declares none
            continue
        texts = [reference] if isinstance(reference, str) else [str(message.get("content")) for message in reference]
        references.append(sum(_count(text, renderer) for text in texts) + 1)
    return tuple(prompts), tuple(references)


def _spread(total: int, most: int) -> list[int]:
    return np.unique(np.linspace(0, total - 1, min(total, most)).astype(int)).tolist()


def _count(text: str, renderer: ChatRenderer | None) -> int:
    if renderer is None:
        return max(1, round(len(text) / CHARACTERS))
    return len(renderer.tokenizer.encode(text, add_special_tokens=False).ids)


def _renderer(config: RLConfig | SFTConfig) -> ChatRenderer | None:
    from hone.model.chat import TOKENIZER_FILES, load_renderer
    from hone.model.fetch import cache_folder, is_fetched
    from hone.model.files import is_hub_id

    name = config.model.name
    if is_fetched(name) and not cache_folder(name).is_dir():
        return None
    try:
        if is_hub_id(name):
            from huggingface_hub import snapshot_download

            name = snapshot_download(name, allow_patterns=list(TOKENIZER_FILES), local_files_only=True)
        return load_renderer(name, config.model.chat_template, config.model.special_tokens)
    except Exception:  # not here, or half of it: an estimate will do
        return None


def _not_seen(what: str, error: Exception) -> str:
    text = first_line(error)
    named, neither, _ = text.partition(" is neither a local file or folder nor ")
    text = f"{named} is not here, and a plan downloads nothing" if neither else text
    return f"the {what} can't be read: {text}"
