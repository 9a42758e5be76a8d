"""What a task or data set shows without a model: how many rows, how long prompts and reference answers are.

Only what is here is looked at: files, generated tasks, the hub's cache. Nothing is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment, MultiTurnEnv
from hone.environments.environment import Split
from hone.environments.loading import configured
from hone.errors import UserError
from hone.planning.lengths import Lengths

if TYPE_CHECKING:
    from hone.model.chat import ChatRenderer

LOOKED_AT = 64
"""Examples whose lengths are measured, spread evenly over the split."""
CHARACTERS = 4.0
"""Characters of a token, where the tokenizer can't be had."""


THOUGHT = 8
"""A limit so many times as long as the task's references is for a model that thinks first: they say nothing then."""


@dataclass(frozen=True)
class Facts:
    """What was found. Lengths are in tokens: `prompts` and `references` of some examples, the latter without those that
    have none. `estimated`: they were counted in characters. `notes` say what could not be looked at, and why.
    """

    pool: int | None = None
    held_out: int | None = None
    turns: int = 1
    distinct: bool = True
    """Whether the examples looked at are not all the same."""
    prompts: tuple[int, ...] = ()
    references: tuple[int, ...] = ()
    estimated: bool = False
    examples: int | None = None
    tokens: int | None = None
    """Of a data set for SFT: its rows, and their tokens, by those looked at."""
    notes: list[str] = field(default_factory=list)

    def lengths(self, config: RLConfig | SFTConfig) -> Lengths:
        """As measured, and where nothing was, as guessed by the config. A completion is as long as a reference."""
        guessed = Lengths.of(config, self.turns)
        if isinstance(config, SFTConfig):
            if config.data.pack or not self.references:
                return guessed
            mean = min(float(np.mean(self.references)), guessed.longest_completion)
            return Lengths(0, mean, 0, guessed.longest_completion, "demonstrations")
        if not self.prompts:
            return guessed
        prompt = min(int(np.max(self.prompts)), config.seq_len - 1)
        new = min(config.seq_len - prompt, self.turns * (config.orchestrator.sampling.max_tokens or config.seq_len))
        mean, how, reached = new / 2, "", 0
        if self.references and np.mean(self.references) * THOUGHT > new:
            mean, how = min(float(np.mean(self.references)), new), "the task's reference answers"
            reached = min(max(self.references), new)
        return Lengths(float(np.mean(self.prompts)), mean, prompt, new, how, reached)


def look_at(config: RLConfig | SFTConfig) -> Facts:
    """What can be known of the config's data here."""
    notes: list[str] = []
    with _cache_only():
        count, estimated = _counter(config, notes)
        try:
            if isinstance(config, RLConfig):
                return _of_task(config, count, estimated, notes)
            return _of_data(config, count, estimated, notes)
        except UserError as error:
            notes.append(f"the data can't be looked at: {_first_sentence(error)}")
            return Facts(notes=notes)


@contextmanager
def _cache_only() -> Iterator[None]:
    """Inside, `datasets` is imported, which then asks no hub. A process that is started later may ask again."""
    name = "HF_DATASETS_OFFLINE"
    if name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def _of_task(config: RLConfig, count: Counter, estimated: bool, notes: list[str]) -> Facts:
    task = config.orchestrator.env
    env = configured(task.id, task.args, task.template, "orchestrator.env.template")
    return of_environment(config, env, count, estimated, notes)


def of_environment(
    config: RLConfig,
    env: Environment,
    count: Counter,
    estimated: bool = False,
    notes: list[str] | None = None,
    most: int = LOOKED_AT,
) -> Facts:
    """What a task that is loaded shows; `most` of its examples are looked at."""
    notes = [] if notes is None else notes
    turns = env.max_turns if isinstance(env, MultiTurnEnv) else 1
    try:
        train = env.split("train")
    except UserError as error:
        notes.append(f"the training data can't be looked at: {_first_sentence(error)}")
        return Facts(turns=turns, notes=notes)
    indices = spread(min(len(train), config.orchestrator.max_examples or len(train)), most)
    prompts, references, distinct = _lengths_of(env, train, indices, count)
    held_out = None
    if config.orchestrator.eval:
        try:
            held_out = len(env.split("eval"))
        except UserError as error:
            notes.append(f"the held-out data can't be looked at: {_first_sentence(error)}")
    return Facts(len(train), held_out, turns, distinct, prompts, references, estimated, notes=notes)


def _lengths_of(
    env: Environment, split: Split, indices: Sequence[int], count: Counter
) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    prompts, references, ids = [], [], set()
    for index in indices:
        example = split[index]
        ids.add(example.id)
        prompts.append(count.prompt(example.prompt, env.tool_schemas))
        try:
            reference = env.reference(example)
        except UserError:  # the task declares none
            continue
        said = [reference] if isinstance(reference, str) else [str(message.get("content")) for message in reference]
        references.append(sum(count.text(text) for text in said) + 1)
    return tuple(prompts), tuple(references), len(ids) > 1 or len(indices) < 2


def _of_data(config: SFTConfig, count: Counter, estimated: bool, notes: list[str]) -> Facts:
    from hone.environments.data import load_rows

    data = config.data
    if data.env is not None:
        env = configured(data.env.id, data.env.args, data.env.template, "data.env.template")
        train = env.split("train")
        prompts, references, distinct = _lengths_of(env, train, spread(len(train)), count)
        whole = tuple(a + b for a, b in zip(prompts, references, strict=False))
        return Facts(len(train), distinct=distinct, prompts=prompts, references=whole, estimated=estimated, notes=notes)
    rows = load_rows(data.path or data.name or "", data.split)
    lengths = tuple(count.text(str(rows[i])) for i in spread(len(rows)))
    return Facts(
        references=lengths,
        estimated=True,
        examples=len(rows),
        tokens=int(np.mean(lengths) * len(rows)),
        notes=notes,
    )


def spread(total: int, most: int = LOOKED_AT) -> list[int]:
    """At most `most` indices below `total`, evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).astype(int)).tolist()


class Counter:
    """Counts tokens by a model's own renderer, or, without one, by characters."""

    def __init__(self, renderer: ChatRenderer | None) -> None:
        self._renderer = renderer

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        if self._renderer is not None:
            return len(self._renderer.prompt_ids(messages, tools))
        return self.text("".join(str(message.get("content")) for message in messages)) + 8 * len(messages) + 4

    def text(self, text: str) -> int:
        if self._renderer is not None:
            return len(self._renderer.tokenizer.encode(text, add_special_tokens=False).ids)
        return max(1, round(len(text) / CHARACTERS))


def _counter(config: RLConfig | SFTConfig, notes: list[str]) -> tuple[Counter, bool]:
    """(what counts, whether that is an estimate)."""
    from hone.model.chat import TOKENIZER_FILES, load_renderer
    from hone.model.files import is_hub_id

    name = config.model.name
    try:
        if is_hub_id(name):
            from huggingface_hub import snapshot_download

            name = snapshot_download(name, allow_patterns=list(TOKENIZER_FILES), local_files_only=True)
        return Counter(load_renderer(name, config.model.chat_template)), False
    except Exception as error:  # not here, or half of it: an estimate will do
        notes.append(f"tokens are estimated from characters: the tokenizer of {config.model.name} is not here")
        del error
        return Counter(None), True


def _first_sentence(error: Exception) -> str:
    """The error in short; for a plan nothing is fetched, so what the hub would have is said to be not here."""
    text = str(error).strip().splitlines()[0]
    named, neither, _ = text.partition(" is neither a local file or folder nor ")
    return f"{named} is not here, and nothing is fetched for a plan" if neither else text
