"""A task: its examples, the grading of completions, and right answers."""

from __future__ import annotations

import copy
import difflib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hone import digests
from hone.environments.data import HALF_A_PAIR, DataSource, Row, Rows, bad_column
from hone.environments.parsers import Parser
from hone.environments.rubric import Measured, Rubric, Sample, is_async
from hone.environments.services import Service
from hone.environments.task_files import source_digest
from hone.errors import UserError
from hone.grading import Work, together
from hone.grading.inline import inside
from hone.types import Example, Message, Rollout, Score, content_hash

if TYPE_CHECKING:
    from hone.config.shared import GradingConfig
    from hone.environments.driver import Model
    from hone.environments.multi_turn import Answer
    from hone.environments.references import Reference
    from hone.environments.template import Template
    from hone.environments.workers import Workers
    from hone.grading.pool import RequestBatch
    from hone.model.chat import ChatRenderer

Completion = str | list[Message] | Rollout
RowSource = Sequence[Row] | Callable[[], Sequence[Row]]
NEEDS_IDS = (
    "takes completion_ids, the tokens of a sampled completion, but here are only texts: give the parameter a default, "
    "or grade a run's rollouts"
)
NOT_REGRADED = "a program made these rollouts and their rewards, so nothing else can grade them"
COLUMNS = ("prompt", "question", "answer", "info")
Progress = Callable[[str], None]
"""Called with a text about the work of worker processes; with "" when they are done."""
Split = Rows[Example]
"""The examples of one split. Example i is made from row i at each access and not stored."""


@dataclass(frozen=True)
class Limits:
    """The number of grading processes, and the limits for grading a sample.

    If `deterministic` is true, `timeout` limits processor time, so that load changes no verdict, and `backstop` x
    `timeout` limits wall time. Otherwise `timeout` limits wall time, excluding waits for a core. `hash_seed`: the
    processes' PYTHONHASHSEED.
    """

    workers: int | None = None
    timeout: float = 10.0
    memory_gib: float = 4.0
    deterministic: bool = True
    backstop: float = 6.0
    hash_seed: int = 0

    def seconds(self, waits: int) -> tuple[float | None, float]:
        """Return the limits (processor time, wall time) of a request. `waits`: the number of its async functions."""
        clock = self.timeout * (waits + 1)
        return (self.timeout, max(self.backstop * self.timeout, clock)) if self.deterministic else (None, clock)


@dataclass(frozen=True)
class Origin:
    """The id and arguments that loaded an environment, and digests of its task files (`task_files.sources`)."""

    env_id: str
    kwargs: dict[str, Any]
    folder: str
    path: list[str]
    sources: dict[str, str]

    @property
    def repeatable(self) -> bool:
        """True if the arguments are JSON, so that another process can load the environment."""
        try:
            return json.loads(json.dumps(self.kwargs)) == self.kwargs
        except (TypeError, ValueError):
            return False


class Environment:
    """A task. Examples come from `dataset` (split "train") and `eval_dataset` (split "eval").

    Each is a sequence of rows, or a function that returns one. hone calls the function on first use, so building an
    environment reads no data. Rows have `prompt` (text or messages) or `question` (text), `answer` (required if a
    reward function asks for it) and `info` (a dict, or a dict as JSON). If a task's rows have other columns, the task
    overrides `format_row`. If a data set has other columns than its task, `use_template` converts them. `reference` is
    a template or a function that makes an example's right answer (see `hone.environments.references`).
    """

    tool_schemas: list[dict[str, Any]] | None = None
    """The tools that the model may call, in OpenAI's form."""
    max_turns = 1
    """Maximum number of completions in a rollout."""
    patience: float | None = None
    """Waiting rollouts are answered once all wait or, if this is set, after this many seconds without a change."""
    concurrency: int | None = None
    """Maximum number of concurrent rollouts; None: no limit."""
    keeps_state = False
    """True if rollouts have a state that reward functions may read. The state isn't recorded."""
    has_own_process = False
    """True if `inline` functions call the task's own process, as a library's graders do."""
    why_not_graded = ""
    """The reason why only rollouts can be graded; "" if texts can be graded too."""
    answer_is_exact = False
    """True if every character of an answer counts, also case and punctuation. Then an audit changes none of them."""
    audit_allows: Mapping[str, str] = MappingProxyType({})
    """Findings of an audit that are intended, as {name: reason}, with names such as "false-negative:crlf"."""
    own_label: str = ""
    """Name of the task in messages; "" for its id."""

    def __init__(
        self,
        *,
        rubric: Rubric,
        dataset: RowSource | None = None,
        eval_dataset: RowSource | None = None,
        parser: Parser | None = None,
        system_prompt: str | None = None,
        reference: Reference | None = None,
        id: str = "",
    ) -> None:
        self.id = id
        self.given_reference = reference
        self.module: Path | None = None
        self.rubric = rubric
        self.parser = parser or rubric.parser or Parser()
        self.system_prompt = system_prompt or None
        self._sources: dict[str, RowSource | None] = {"train": dataset, "eval": eval_dataset}
        self._choices: dict[str, list[Callable[[Split], Sequence[int]]]] = {}
        self.left_out = ""
        """Message about training examples that a profile left out; "" if none."""
        self._rows: dict[str, Rows] = {}
        self._template: Template | None = None
        self.limits = Limits()
        self.isolated = False
        """If true, functions marked `inline` also run in worker processes, where they can be killed."""
        self._workers: Workers | None = None
        self.make_process: Callable[..., Any] | None = None
        """Makes a grading process on another machine, as `grading.pool.Process` does on this machine."""
        self.progress: Progress = lambda words: None
        self._loaded: tuple[Origin, Rubric, Parser] | None = None

    @property
    def label(self) -> str:
        return self.own_label or self.id

    def loaded_by(self, origin: Origin) -> None:
        """Store how the environment was loaded, so that a worker can load it too."""
        self._loaded = origin, self.rubric, self.parser

    def use_workers(self, config: GradingConfig, deterministic: bool = True) -> None:
        """Set the number and limits of this task's processes. `deterministic`: see Limits."""
        patience = [func.patience for func in self.rubric.funcs.values() if isinstance(func, Service)]
        self.limits = Limits(config.workers, max(config.timeout, *patience, 0.0), config.memory_gib, deterministic)

    def start_workers(self, samples: int) -> None:
        """Start the processes that `samples` need, without waiting for them."""
        if workers := self._workers_for(self.all_inline):
            workers.pool.start(samples)

    @property
    def has_workers(self) -> bool:
        """True if functions that are not `inline` run in worker processes."""
        return self._processes() is not None

    def close_workers(self) -> None:
        """End the worker processes; the next grading starts new processes."""
        if self._workers is not None:
            self._workers.pool.close()
            self._workers = None

    def apart(self) -> Environment | None:
        """Return a copy of this task that runs all functions in a new process. Call the copy's `close_workers` later.

        Returns None if no process can load the task, or if `has_own_process` is true.
        """
        made = copy.copy(self)
        made.limits = replace(self.limits, workers=0 if self.limits.workers == 0 else 1)
        made._workers, made.make_process, made.isolated = None, None, True
        made.progress = lambda words: None
        return None if made._workers_for(self.rubric.inline) is None else made

    @contextmanager
    def fresh_process(self, hash_seed: int = 0) -> Iterator[bool]:
        """While the block runs, run all functions, also `inline` ones, in a new process with this PYTHONHASHSEED.

        Yields False if no process can load the task, or if `has_own_process` is true. After the
        block, limits and processes are as before.
        """
        before = self._workers, self.limits, self.isolated
        self._workers, self.limits = None, replace(self.limits, workers=1, hash_seed=hash_seed)
        self.isolated = True
        try:
            yield self._workers_for(self.all_inline) is not None
        finally:
            self.close_workers()
            self._workers, self.limits, self.isolated = before

    def use_template(self, columns: Mapping[str, Any], name: str = "template") -> None:
        """Make the task's columns from the data set's columns, as `hone.environments.template` says.

        Call it before the data is used. `name` names the template in errors. Raises UserError if the template is
        malformed or makes an unknown column, or if the task generates its rows.
        """
        from hone.environments.template import Template

        if not self._has_own_columns and (unknown := [column for column in columns if column not in COLUMNS]):
            near = difflib.get_close_matches(unknown[0], COLUMNS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{name}: unknown column {unknown[0]!r}; {self.id} reads {', '.join(COLUMNS)}{hint}")
        sources = [source for source in self._sources.values() if source is not None]
        if all(isinstance(source, DataSource) and not source.reads for source in sources):
            raise UserError(
                f"{name} is for the rows of a data set, but {self.id} generates its rows: give it the argument dataset"
            )
        assert not self._rows, "the data has been used already"
        self._template = Template(columns, name)
        for source in sources:
            if isinstance(source, DataSource):
                source.change = self._template.rows

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """Return digests of the splits' examples, and of the module's source if the task was loaded by its id."""
        data = content_hash([digests.of_rows([example.id for example in self.split(name)]) for name in splits])
        return {"data": data} if self.module is None else {"environment": source_digest(self.module), "data": data}

    def format_row(self, row: Row) -> Row:
        """Return the columns `prompt` or `question`, `answer` and `info` of a row; by default the row itself.

        A KeyError is reported as the missing column. Columns other than these four are ignored.
        """
        return row

    def reference(self, example: Example) -> str | list[Message]:
        """Return a completion that deserves full marks: its text or, for a task of several turns, its messages.

        By default it is made by the argument `reference` (see `hone.environments.references`). Without that: UserError.
        """
        if self.given_reference is not None:
            from hone.environments.references import reference_of

            return reference_of(example, self.given_reference)
        raise UserError(f"environment {self.id!r} declares no reference completion: define `reference(example) -> str`")

    @property
    def needs_answer(self) -> bool:
        """True if a reward function takes the answer. Then a row without an answer is refused."""
        return self.rubric.needs("answer")

    @property
    def reads_answer(self) -> bool:
        """True if the function that decides correctness takes the answer."""
        return self.rubric.needs("answer", self.rubric.correctness)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str | list[Message]:
        """Return a completion for SFT, by default the reference; it may depend on `rng`."""
        return self.reference(example)

    async def rollout(self, model: Model, example: Example) -> Rollout:
        """Make a rollout of the example; by default one completion of the prompt."""
        await model.sample(example.prompt, self.tool_schemas or None)
        return model.rollout()

    def initial_state(self, example: Example, seed: int) -> dict[str, Any] | None:
        """Return a conversation's first state; None for a task of one turn."""
        return None

    def respond_many(self, turns: Sequence[tuple[list[Message], dict[str, Any]]]) -> list[Answer]:
        """Return the environment's answers to conversations (messages, state), in order."""
        raise NotImplementedError

    def check_template(self, renderer: ChatRenderer, example: Example) -> None:
        """Raise UserError if the model's chat template can't write this task's rollouts, such as one of `example`."""

    def check_rollouts(self) -> None:
        """Raise UserError if completions of this task can be graded but not sampled on this machine."""

    def split(self, name: str) -> Split:
        """Return the examples of "train" or "eval".

        The first use reads the data and checks the columns: of each row if rows can differ (JSON, lists), else of the
        first row. Raises UserError for a missing column or a missing split.
        """
        if name not in self._rows:
            source = self._sources.get(name)
            if source is None:
                raise UserError(
                    f"environment {self.id!r} has no {name} split; it has {', '.join(self.splits) or 'no data'}"
                )
            rows = source() if callable(source) else source
            if not isinstance(rows, Rows):
                rows = Rows(rows, lambda i: f"{self.id or 'the environment'} ({name}), row {i}", isinstance(rows, list))
            if self._template is not None and not isinstance(source, DataSource):
                rows = self._template.rows(rows)
            if not len(rows):
                raise UserError(f"the {name} split of environment {self.id!r} is empty; give it more data")
            for i in range(len(rows) if rows.ragged else 1):
                self.to_example(rows[i], rows.where(i))
            for choose in self._choices.get(name, ()):
                rows = rows.take(choose(rows.map(self.to_example)))
            self._rows[name] = rows
        return self._rows[name].map(self.to_example)

    def restrict(self, name: str, choose: Callable[[Split], Sequence[int]]) -> None:
        """Restrict a split, at its first use, to the row indices that `choose` returns."""
        self._choices.setdefault(name, []).append(choose)

    def share_data(self, other: Environment) -> None:
        """Use the rows that `other`, a copy of this task, has already read."""
        self._rows |= other._rows

    def example(self, **columns: Any) -> Example:
        """Return one example from the data set's columns: `env.example(question="1 + 1?", answer="2")`."""
        if self._template is not None:
            return self.to_example(self._template.row(columns, "example()"), "example()")
        if not self._has_own_columns and (unknown := columns.keys() - set(COLUMNS)):
            raise UserError(f"example(): unknown column {sorted(unknown)[0]!r}; the columns are {', '.join(COLUMNS)}")
        return self.to_example(columns, "example()")

    @property
    def _has_own_columns(self) -> bool:
        return type(self).format_row is not Environment.format_row

    def to_example(self, row: Row, where: str) -> Example:
        """Return the example that a row describes. `where` names the row in the UserError for a missing column."""
        try:
            columns = self.format_row(row)
        except KeyError as error:
            raise bad_column(where, row, error.args[0]) from None
        prompt = columns.get("prompt")
        if prompt is None:
            prompt = columns.get("question")
        if prompt is None or prompt == "" or prompt == []:
            raise bad_column(where, row, "prompt", "question")
        answer = columns.get("answer")
        if answer is None and self.needs_answer:
            raise bad_column(where, row, "answer")
        content = [self._messages(prompt, where), "" if answer is None else str(answer), _info(columns, where)]
        try:
            return Example(*content, id=content_hash(content, "strict"))
        except UnicodeEncodeError:
            raise UserError(f"{where}: {HALF_A_PAIR}") from None

    def grade(self, example: Example, completion: Completion, seed: int = 0) -> Score:
        """Grade a completion: its text, its messages (with or without the prompt before them), or a rollout.

        Only a `Rollout` can count as stopped by the length limit. `seed`, the example and the rollout's sample id seed
        the random numbers of a reward function.
        """
        return self.grade_many([(example, completion)], seed)[0]

    def grade_many(
        self, pairs: Iterable[tuple[Example, Completion]], seed: int = 0, groups: Iterable[Hashable] | None = None
    ) -> list[Score]:
        """Grade each (example, completion); return the scores in order.

        Completions of one example with the same key in `groups` are one group (by default, each is a separate group). A
        reward function for groups gets a group's completions in one call, in order, without failed rollouts.

        Functions run in workers, or in this process if the rubric is `inline` or no worker can load this environment.
        Async functions of different samples wait at the same time. Functions of one sample share `state`, so they run
        one after another.
        """
        scores: list[Score | None] = []
        samples: list[Sample] = []
        members: dict[Hashable, list[int]] = {}
        pairs = list(pairs)
        keys = range(len(pairs)) if groups is None else groups
        for (example, completion), key in zip(pairs, keys, strict=True):
            failure = completion.failure if isinstance(completion, Rollout) else None
            scores.append(None if failure is None else Score(math.nan, {}, self.rubric.weights, *failure))
            if failure is None:
                members.setdefault(key, []).append(len(samples))
                samples.append(self._sample(example, completion, seed))
        measured = self._measure(samples, list(members.values()) if self.rubric.group_funcs else [])
        both = zip(measured, samples, strict=True)
        graded = iter([self.rubric.score(one, sample, self.parser) for one, sample in both])
        return [next(graded) if score is None else score for score in scores]

    def _measure(self, samples: Sequence[Sample], members: Sequence[Sequence[int]]) -> list[Measured]:
        groups = [[samples[i] for i in group] for group in members]
        workers = self._workers_for(self.rubric.inline)
        if workers is None:
            most = max(map(len, groups), default=1)
            ones = together([self.grading(sample) for sample in samples], self.limits.timeout)
            wholes = together([self.grading_group(group) for group in groups], self.limits.timeout * most)
        else:
            ones, wholes = workers.grade(samples, groups, self.rubric)
        return _joined(ones, wholes, members)

    @contextmanager
    def early_grading(self, seed: int = 0, size: int = 1) -> Iterator[EarlyGrading | None]:
        """Yield an EarlyGrading, which grades each rollout (or group of `size`) in a worker process once it has ended.

        No other grading runs until the block ends. Yields None if functions run in this process or are async, or if the
        task overrides `rollout`: then completions must be graded after sampling.
        """
        late = type(self).rollout is not Environment.rollout or any(map(is_async, self.rubric.funcs.values()))
        workers = None if late else self._workers_for(self.rubric.inline)
        if workers is None:
            yield None
        else:
            with workers.open_round() as round:
                yield EarlyGrading(self, workers, round, seed, size)

    def grading(self, sample: Sample) -> Work[Measured]:
        """Run the reward functions for single completions on a sample, in this process."""
        return self.rubric.measure(sample, self.parser)

    def grading_group(self, samples: Sequence[Sample]) -> Work[list[Measured]]:
        """Run the reward functions for groups on a group, in this process."""
        return self.rubric.measure_group(samples)

    @property
    def all_inline(self) -> bool:
        return self.rubric.inline

    def _workers_for(self, inline: bool) -> Workers | None:
        return None if inline and (not self.isolated or self.has_own_process) else self._processes()

    def _processes(self) -> Workers | None:
        """Return the workers; None if the task uses no workers, or if workers would load a different task."""
        if self._loaded is None or self.limits.workers == 0 or inside():
            return None
        origin, rubric, parser = self._loaded
        if rubric is not self.rubric or parser is not self.parser or not origin.repeatable:
            return None
        if self._workers is not None and self._workers.limits != self.limits:
            self.close_workers()
        if self._workers is None:
            from hone.environments.workers import Workers

            self._workers = Workers(origin, self.limits, lambda words: self.progress(words), self.make_process)
        return self._workers

    def _sample(self, example: Example, completion: Completion, seed: int) -> Sample:
        stop_reason, sample_id, state = "stop", "", None
        if isinstance(completion, Rollout):
            stop_reason, sample_id, state = completion.stop_reason, completion.sample_id, completion.state
            messages = completion.messages[len(example.prompt) :]
        elif isinstance(completion, str):
            messages = [{"role": "assistant", "content": completion}]
        else:
            starts = completion[: len(example.prompt)] == example.prompt
            messages = completion[len(example.prompt) :] if starts else completion
        completed, ids = [dict(message) for message in messages], None
        if self.rubric.takes_ids and isinstance(completion, Rollout):
            ids = completion.sampled_ids
        if ids is None and (name := self.rubric.needs_ids) is not None:
            raise UserError(f"{name} {NEEDS_IDS}")
        return Sample(example, completed, stop_reason, seed, sample_id, state, ids)

    def _messages(self, prompt: Any, where: str) -> list[Message]:
        if isinstance(prompt, str):
            messages: list[Message] = [{"role": "user", "content": prompt}]
        else:
            if not isinstance(prompt, list) or not all(
                isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt
            ):
                raise UserError(f"{where}: 'prompt' must be text or a list of messages with 'role' and 'content'")
            messages = [dict(message) for message in prompt]
        if self.system_prompt and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return messages

    @property
    def splits(self) -> list[str]:
        return [name for name, source in self._sources.items() if source is not None]


class EarlyGrading:
    """Grades completions while others are sampled. The scores equal `Environment.grade_many`'s."""

    def __init__(self, env: Environment, workers: Workers, round: RequestBatch, seed: int, size: int) -> None:
        self._env, self._workers, self._round, self._seed, self._size = env, workers, round, seed, size
        self._samples: dict[int, Sample] = {}
        self._asked: list[tuple[str, Any]] = []
        self._groups: list[range] = []

    def add(self, index: int, example: Example, completion: Rollout) -> None:
        """Grade a rollout of one turn, without waiting. `index` counts the rollouts group by group."""
        assert completion.failure is None, completion.failure  # hone's own code made it: a bug ends the run
        sample = self._samples[index] = self._env._sample(example, completion, self._seed)
        self._ask("grade", sample)
        first = index - index % self._size
        group = range(first, first + self._size)
        if self._env.rubric.group_funcs and self._samples.keys() >= set(group):
            self._groups.append(group)
            self._ask("group", [self._samples[i] for i in group])

    def _ask(self, kind: str, item: Any) -> None:
        self._asked.append((kind, item))
        self._workers.put(self._round, kind, item)

    def scores(self) -> dict[str, Score]:
        rubric, parser = self._env.rubric, self._env.parser
        ones, wholes = self._workers.answers(self._round, self._asked, rubric)
        place = {index: i for i, index in enumerate(self._samples)}
        measured = _joined(ones, wholes, [[place[index] for index in group] for group in self._groups])
        both = zip(measured, self._samples.values(), strict=True)
        return {sample.sample_id: rubric.score(one, sample, parser) for one, sample in both}


def _joined(
    ones: Sequence[Measured], wholes: Sequence[Sequence[Measured]], members: Sequence[Sequence[int]]
) -> list[Measured]:
    """Add measurements of groups to measurements of samples; `members`: the sample indices of each group."""
    made = list(ones)
    for group, indices in zip(wholes, members, strict=True):
        for one, i in zip(group, indices, strict=True):
            made[i] = made[i].joined(one)
    return made


class SingleTurnEnv(Environment):
    """A task of one question and one completion."""


def _info(columns: Row, where: str) -> dict[str, Any]:
    info = columns.get("info")
    if isinstance(info, str):
        try:
            info = json.loads(info or "{}")
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: 'info' is text that is not JSON ({error.msg}); give an object") from None
    if info is None:
        return {}
    if not isinstance(info, dict):
        raise UserError(f"{where}: 'info' is a {type(info).__name__}; give an object")
    return info
