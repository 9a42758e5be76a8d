"""What a task is: examples, how completions are graded, and what a good one looks like."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from hone import digests
from hone.environments.data import HALF_A_PAIR, DataSource, Row, Rows, bad_column, is_text
from hone.environments.order import Draws
from hone.environments.parsers import Parser
from hone.environments.rubric import Measured, Rubric
from hone.environments.task_files import source_digest
from hone.environments.template import Template
from hone.environments.workers import Limits, Origin, Progress, Sample, Workers
from hone.errors import UserError
from hone.grading import Work, together
from hone.grading.process import inside
from hone.types import Example, Message, Outcome, Reply, Score, Trajectory, content_hash

if TYPE_CHECKING:
    from hone.config.shared import GradingConfig

Completion = str | list[Message] | Trajectory | Reply
RowSource = Sequence[Row] | Callable[[], Sequence[Row]]
COLUMNS = ("prompt", "question", "answer", "info")


class Split(Sequence[Example]):
    """The examples of one split. Example i is made from row i each time it is asked for; nothing is kept."""

    def __init__(self, env: Environment, rows: Rows) -> None:
        self._env, self.rows = env, rows
        self.generated = rows.generated

    def where(self, index: int) -> str:
        """Where example `index` comes from, in words: "data.jsonl, line 4"."""
        return self.rows.where(index)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._env.to_example(self.rows[index], self.rows.where(int(index) % len(self)))


class _Ids(Sequence[str]):
    """The ids of examples, which are digests of their content."""

    def __init__(self, examples: Split) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        return self._examples[index].id


class Environment:
    """A task. Examples come from `dataset` (split "train") and `eval_dataset` (split "eval").

    Each is a sequence of rows or, so that building an environment touches no data, a function that returns one; it is
    called on first use. Rows have `prompt` (text or messages) or `question` (text), `answer` (required if a reward
    function asks for it) and `info` (a dict, or one as JSON). A task whose rows have other columns overrides
    `format_row`; a data set with other columns than the task's is read through a template (`use_template`).
    """

    tool_schemas: list[dict[str, Any]] | None = None
    """The tools that the model may call, in OpenAI's form."""
    has_own_process = False
    """Whether what is marked `inline` runs in a process of the task's own already, as a library's graders do."""
    answer_is_exact = False
    """Whether every character of an answer counts, its case and punctuation too: an audit then changes none."""
    audit_allows: Mapping[str, str] = MappingProxyType({})
    """What an audit finds that is meant so, by the name of the finding ("false-negative:crlf"), and why."""

    def __init__(
        self,
        *,
        rubric: Rubric,
        dataset: RowSource | None = None,
        eval_dataset: RowSource | None = None,
        parser: Parser | None = None,
        system_prompt: str | None = None,
        id: str = "",
    ) -> None:
        self.id = id
        self.module: Path | None = None
        self.rubric = rubric
        self.parser = parser or rubric.parser or Parser()
        self.system_prompt = system_prompt
        self._sources: dict[str, RowSource | None] = {"train": dataset, "eval": eval_dataset}
        self._splits: dict[str, Split] = {}
        self._template: Template | None = None
        self._limits = Limits()
        self.isolated = False
        """Whether what is marked `inline` runs in worker processes too, where it can be ended."""
        self._workers: Workers | None = None
        self.progress: Progress = lambda words: None
        """Is told what the processes are at, when they have come further."""
        self._loaded: tuple[Origin, Rubric, Parser] | None = None

    def loaded_by(self, origin: Origin) -> None:
        """To be told by what loads the environment: how a worker can do that too."""
        self._loaded = origin, self.rubric, self.parser

    def use_workers(self, config: GradingConfig, deterministic: bool = True) -> None:
        """Sets how many processes run this task's functions, and what they may take; `deterministic` as in Limits."""
        self.limits = Limits.of(config, deterministic)

    @property
    def limits(self) -> Limits:
        """Those of the processes that run this task's functions."""
        return self._limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        """Ends the processes that there are."""
        self.close_workers()
        self._limits = limits

    def start_workers(self, samples: int) -> None:
        """Starts as many processes as so many samples need, without waiting for them."""
        if not self._runs_here and (workers := self._processes()):
            workers.pool.start(samples)

    @property
    def has_workers(self) -> bool:
        """Whether there are processes for what is not `inline`, or can be: if not, all functions run in this one."""
        return self._processes() is not None

    def close_workers(self) -> None:
        """Ends the processes; the next grading starts others."""
        if self._workers is not None:
            self._workers.pool.close()
            self._workers = None

    @contextmanager
    def fresh_process(self, hash_seed: int = 0) -> Iterator[bool]:
        """In the block one new process runs all functions of this task, those marked `inline` too.

        Yields False if no new process does: none can load this environment, or it has one of its own. `hash_seed` is
        the process's PYTHONHASHSEED. Afterwards limits and processes are as they were set.
        """
        kept = self._workers, self._limits, self.isolated
        self._workers, self._limits = None, replace(self._limits, workers=1, hash_seed=hash_seed)
        self.isolated = True
        try:
            yield self.has_workers and not self._runs_here
        finally:
            self.close_workers()
            self._workers, self._limits, self.isolated = kept

    def use_template(self, columns: Mapping[str, Any], name: str = "template") -> None:
        """Make the task's columns of those that its data set has, as `hone.environments.template` says.

        To be called before the data is used. `name` is what errors call the template. Raises UserError for a template
        that is none, one that makes a column nothing reads, and a task that makes up its rows itself.
        """
        if not self._has_own_columns and (unknown := [column for column in columns if column not in COLUMNS]):
            near = difflib.get_close_matches(unknown[0], COLUMNS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"{name} makes a column {unknown[0]!r}, but {self.id} reads {', '.join(COLUMNS)}{hint}")
        sources = [source for source in self._sources.values() if source is not None]
        if all(isinstance(source, DataSource) and not source.reads for source in sources):
            raise UserError(
                f"{name} is for the rows of a data set, but {self.id} makes up its own: give it one (argument dataset)"
            )
        assert not self._splits, "the data has been used already"
        self._template = Template(columns, name)

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """What the task is: digests of its module's source, if it was loaded by its id, and of the splits' examples."""
        found = {"data": content_hash([digests.of_rows(_Ids(self.split(name))) for name in splits])}
        return found if self.module is None else {"environment": source_digest(self.module)} | found

    def format_row(self, row: Row) -> Row:
        """The columns `prompt` or `question`, `answer` and `info` of a row of this task; by default the row itself.

        A KeyError is reported as the missing column. Other columns than these four are ignored.
        """
        return row

    def reference(self, example: Example) -> str | list[Message]:
        """A completion that deserves full marks: its text or, of a task of several turns, its messages."""
        raise UserError(f"environment {self.id!r} declares no reference completion: define `reference(example) -> str`")

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str | list[Message]:
        """A completion for SFT to imitate, which may use the generator's randomness; by default the reference."""
        return self.reference(example)

    def check_rollouts(self) -> None:
        """Raises UserError if completions of this task can be graded but not sampled, on this machine for instance."""

    def split(self, name: str) -> Split:
        """The examples of "train" or "eval".

        Reads the data on first use, and then looks for missing columns: in each row where rows can differ (JSON,
        lists), else in the first. Raises UserError for those, and for a split that the environment does not have.
        """
        if name not in self._splits:
            source = self._sources.get(name)
            if source is None:
                raise UserError(f"environment {self.id!r} has no {name} split; it has {self._names()}")
            rows = self._rows(source, name)
            if not len(rows):
                raise UserError(f"the {name} split of environment {self.id!r} is empty; give it more data")
            for i in range(len(rows) if rows.ragged else 1):
                self.to_example(rows[i], rows.where(i))
            self._splits[name] = Split(self, rows)
        return self._splits[name]

    def share_data(self, other: Environment) -> None:
        """Takes the rows that `other`, the same task loaded another time, has read, so that they are read once."""
        self._splits |= {name: Split(self, split.rows) for name, split in other._splits.items()}

    def _rows(self, source: RowSource, name: str) -> Rows:
        """The rows of a split, through the template if there is one."""
        template = self._template
        if template is not None and isinstance(source, DataSource):
            return source.through(template.rows)()
        rows = source() if callable(source) else source
        if not isinstance(rows, Rows):
            rows = Rows(rows, lambda i: f"{self.id or 'the environment'} ({name}), row {i}", isinstance(rows, list))
        return rows if template is None else template.rows(rows)

    def examples(self, split: str, seed: int) -> Iterator[Example]:
        """The split's examples without end, in the order of (seed, epoch)."""
        examples = self.split(split)
        draws = Draws(len(examples), seed)
        draw = 0
        while True:
            yield examples[draws.index(draw)]
            draw += 1

    def example(self, **columns: Any) -> Example:
        """One example from the data set's columns: `env.example(question="1 + 1?", answer="2")`."""
        if self._template is not None:
            return self.to_example(self._template.row(columns, "example()"), "example()")
        if not self._has_own_columns and (unknown := columns.keys() - set(COLUMNS)):
            raise UserError(f"example(): unknown column {sorted(unknown)[0]!r}; the columns are {', '.join(COLUMNS)}")
        return self.to_example(columns, "example()")

    @property
    def _has_own_columns(self) -> bool:
        return type(self).format_row is not Environment.format_row

    def to_example(self, row: Row, where: str) -> Example:
        """The example that a row describes; `where` names the row in the UserError for one that lacks a column."""
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
        if answer is None and self.rubric.needs("answer"):
            raise bad_column(where, row, "answer")
        content = [self._messages(prompt, where), "" if answer is None else str(answer), _info(columns, where)]
        if not is_text(content):
            raise UserError(f"{where}: {HALF_A_PAIR}")
        return Example(*content)

    def grade(self, example: Example, completion: Completion, seed: int = 0) -> Score:
        """Grades a completion: its text, its messages (with or without the prompt before them), or a rollout.

        Only a rollout (`Trajectory`, `Reply`) says whether the length limit stopped it; text and messages count as
        ended by themselves.
        What a reward function draws is decided by `seed`, the example and the rollout's sample id.
        """
        return self.grade_many([(example, completion)], seed)[0]

    def grade_many(self, pairs: Iterable[tuple[Example, Completion]], seed: int = 0) -> list[Score]:
        """`grade` of each (example, completion), in order.

        They are graded side by side in worker processes, or here if the rubric is `inline` or no worker can load this
        environment. What async reward functions wait for, they wait for at once; yet each comes after the one before it
        in the rubric, for they share `state`.
        """
        pairs = list(pairs)
        samples = [self._sample(*pair, seed) for pair in pairs if not _broken_off(pair[1])]
        scores = iter(self._grade(samples))
        return [_failed(self.rubric, completion) or next(scores) for _, completion in pairs]

    def _grade(self, samples: list[Sample]) -> list[Score]:
        workers = None if self.rubric.inline and not self._apart else self._processes()
        if workers is None:
            measured = together([self.grading(sample) for sample in samples], self._limits.timeout)
        else:
            measured = workers.grade(samples, self.rubric)
        pairs = zip(measured, samples, strict=True)
        return [self.rubric.score(one, s.example, s.completion, self.parser, s.stop_reason) for one, s in pairs]

    def grading(self, sample: Sample) -> Work[Measured]:
        """Runs the functions of the rubric on a sample, in whatever process this is."""
        return self.rubric.measure(
            sample.example,
            sample.completion,
            self.parser,
            sample.stop_reason,
            sample.seed,
            sample.sample_id,
            sample.state,
        )

    @property
    def _apart(self) -> bool:
        """Whether inline functions are to run in workers."""
        return self.isolated and not self.has_own_process

    @property
    def _runs_here(self) -> bool:
        """Whether nothing of this task needs a worker."""
        return self.rubric.inline and not self._apart

    def _processes(self) -> Workers | None:
        """The workers; None where there are to be none, and where they would load another environment than this."""
        if self._loaded is None or self._limits.workers == 0 or inside():
            return None
        origin, rubric, parser = self._loaded
        if rubric is not self.rubric or parser is not self.parser or not origin.repeatable:
            return None
        if self._workers is None:
            self._workers = Workers(origin, self._limits, lambda words: self.progress(words))
        return self._workers

    def _sample(self, example: Example, completion: Completion, seed: int) -> Sample:
        stop_reason, sample_id, state = "stop", "", None
        if isinstance(completion, Trajectory | Reply):
            stop_reason, sample_id, state = completion.stop_reason, completion.sample_id, completion.state
            messages = completion.messages[len(example.prompt) :]
        elif isinstance(completion, str):
            messages = [{"role": "assistant", "content": completion}]
        else:
            starts = completion[: len(example.prompt)] == example.prompt
            messages = completion[len(example.prompt) :] if starts else completion
        completed = [dict(message) for message in messages]
        return Sample(example, completed, stop_reason, seed, sample_id, state)

    def _messages(self, prompt: Any, where: str) -> list[Message]:
        if isinstance(prompt, str):
            messages: list[Message] = [{"role": "user", "content": prompt}]
        else:
            if not isinstance(prompt, list) or not all(_is_message(message) for message in prompt):
                raise UserError(f"{where}: 'prompt' must be text or a list of messages with 'role' and 'content'")
            messages = [dict(message) for message in prompt]
        if self.system_prompt and messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        return messages

    @property
    def splits(self) -> list[str]:
        """Those of "train" and "eval" that there are."""
        return [name for name, source in self._sources.items() if source is not None]

    def _names(self) -> str:
        return ", ".join(self.splits) or "no data"


class SingleTurnEnv(Environment):
    """A task of one question and one completion."""


def _broken_off(completion: Completion) -> tuple[Outcome, str] | None:
    """Why the environment broke off a conversation, if it did."""
    return completion.failure if isinstance(completion, Trajectory | Reply) else None


def _failed(rubric: Rubric, completion: Completion) -> Score | None:
    failure = _broken_off(completion)
    return None if failure is None else Score(math.nan, {}, rubric.weights, *failure)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "content" in value


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
