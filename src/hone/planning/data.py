"""What a task or data set shows without a model: how many rows, how long prompts and reference answers are.

Only what is here is looked at: files, generated tasks, the hub's cache. Nothing is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from hone.config.rl import RLConfig
from hone.config.sft import SFTConfig
from hone.environments import Environment, MultiTurnEnv
from hone.environments.loading import configured
from hone.errors import UserError
from hone.planning.arithmetic import Lengths

if TYPE_CHECKING:
    from hone.model.chat import ChatRenderer

EXAMPLES = 64
"""How many are measured, spread evenly over the split."""
CHARACTERS = 4.0
"""Characters of a token, where the tokenizer is not here."""
THOUGHT = 8
"""A limit so many times as long as the task's references is for a model that thinks first: they say nothing then."""


@dataclass(frozen=True)
class Facts:
    """What a task or data set shows: training examples (`pool`), `held_out`, `turns`, and lengths in tokens of some.

    `estimated` is True if tokens were counted by characters; `tokens` are those of a data set for SFT; `notes` name
    what could not be looked at, and why.
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
        """Return the lengths as measured, or as guessed by the config. A completion is as long as a reference."""
        guessed = Lengths.of(config, self.turns)
        if isinstance(config, SFTConfig):
            if config.data.pack or not self.references:
                return guessed
            mean = min(float(np.mean(self.references)), guessed.longest_completion)
            return Lengths(0, mean, 0, guessed.longest_completion, "demonstrations")
        if not self.prompts:
            return guessed
        prompt = min(max(self.prompts), config.seq_len - 1)
        new = min(config.seq_len - prompt, self.turns * (config.orchestrator.sampling.max_tokens or config.seq_len))
        mean, measured, reached = new / 2, "", 0
        if self.references and np.mean(self.references) * THOUGHT > new:
            mean, measured = min(float(np.mean(self.references)), new), "the task's reference answers"
            reached = min(max(self.references), new)
        return Lengths(float(np.mean(self.prompts)), mean, prompt, new, measured, reached)


def look_at(config: RLConfig | SFTConfig) -> Facts:
    """Return what can be known of the config's data here."""
    import datasets.config

    renderer, notes = _renderer(config)
    with mock.patch.object(datasets.config, "HF_HUB_OFFLINE", True):
        try:
            facts = _facts(config, Counter(renderer))
        except UserError as error:
            facts = Facts(notes=[_not_seen("data", error)])
    facts.notes[:0] = notes
    return facts


def _facts(config: RLConfig | SFTConfig, count: Counter) -> Facts:
    if isinstance(config, RLConfig):
        task = config.orchestrator.env
        return facts_of_task(config, configured(task.id, task.args, task.template, "orchestrator.env.template"), count)
    data = config.data
    if data.env is not None:
        env = configured(data.env.id, data.env.args, data.env.template, "data.env.template")
        rows = len(env.split("train"))
        prompts, references = _measure(env, rows, EXAMPLES, count)
        whole = tuple(a + b for a, b in zip(prompts, references, strict=False))
        return Facts(prompts=prompts, references=whole, estimated=count.estimates)
    from hone.environments.data import load_rows

    rows = load_rows(data.path or data.name or "", data.split)
    lengths = tuple(count.text(str(rows[i])) for i in _spread(len(rows), EXAMPLES))
    return Facts(references=lengths, estimated=True, pool=len(rows), tokens=int(np.mean(lengths) * len(rows)))


def facts_of_task(config: RLConfig, env: Environment, count: Counter, most: int = EXAMPLES) -> Facts:
    """Return what a task shows; `most` of its examples are looked at."""
    turns = env.max_turns if isinstance(env, MultiTurnEnv) else 1
    try:
        rows = len(env.split("train"))
    except UserError as error:
        return Facts(turns=turns, notes=[_not_seen("training data", error)])
    prompts, references = _measure(env, min(rows, config.orchestrator.max_examples or rows), most, count)
    held_out, notes = None, []
    if config.orchestrator.eval:
        try:
            held_out = len(env.split("eval"))
        except UserError as error:
            notes.append(_not_seen("held-out data", error))
    return Facts(rows, held_out, turns, prompts, references, count.estimates, notes=notes)


def _measure(env: Environment, available: int, most: int, count: Counter) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the tokens of prompts, and of those references that there are."""
    prompts, references, train = [], [], env.split("train")
    for index in _spread(available, most):
        example = train[index]
        prompts.append(count.prompt(example.prompt, env.tool_schemas))
        try:
            reference = env.reference(example)
        except UserError:  # the task declares none
            continue
        texts = [reference] if isinstance(reference, str) else [str(message.get("content")) for message in reference]
        references.append(sum(count.text(text) for text in texts) + 1)
    return tuple(prompts), tuple(references)


def _spread(total: int, most: int) -> list[int]:
    """Return at most `most` indices below `total`, evenly spread."""
    return np.unique(np.linspace(0, total - 1, min(total, most)).astype(int)).tolist()


class Counter:
    """Counts tokens by a model's own renderer, or, without one, by characters."""

    def __init__(self, renderer: ChatRenderer | None) -> None:
        self._renderer = renderer

    @property
    def estimates(self) -> bool:
        return self._renderer is None

    def prompt(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
        if self._renderer is not None:
            return len(self._renderer.prompt_ids(messages, tools))
        return self.text("".join(str(message.get("content")) for message in messages)) + 8 * len(messages) + 4

    def text(self, text: str) -> int:
        if self._renderer is not None:
            return len(self._renderer.tokenizer.encode(text, add_special_tokens=False).ids)
        return max(1, round(len(text) / CHARACTERS))


def _renderer(config: RLConfig | SFTConfig) -> tuple[ChatRenderer | None, list[str]]:
    """Return the model's renderer, or None with a note that it is not here."""
    from hone.model.chat import TOKENIZER_FILES, load_renderer
    from hone.model.files import is_hub_id

    name = config.model.name
    try:
        if is_hub_id(name):
            from huggingface_hub import snapshot_download

            name = snapshot_download(name, allow_patterns=list(TOKENIZER_FILES), local_files_only=True)
        return load_renderer(name, config.model.chat_template), []
    except Exception:  # not here, or half of it: an estimate will do
        return None, [f"tokens are estimated from characters: the tokenizer of {config.model.name} is not here"]


def _not_seen(what: str, error: Exception) -> str:
    """Return that data can't be looked at; data of the hub are not here, for nothing is fetched for a plan."""
    text = str(error).strip().splitlines()[0]
    named, neither, _ = text.partition(" is neither a local file or folder nor ")
    text = f"{named} is not here, and nothing is fetched for a plan" if neither else text
    return f"the {what} can't be looked at: {text}"
