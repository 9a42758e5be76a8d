"""SFT data: turns rows of a data set, or an environment's demonstrations, into token sequences with a loss mask.

A source with n examples is read by position 0, 1, 2, … Position p is example `p % n` in the order of epoch `p // n`,
and this order depends only on seed and epoch. `next_batch` reads one step's examples from a position on, and returns
the position of the next step. A checkpoint stores only this position.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from hone.environments.data import Draws
from hone.errors import UserError
from hone.model.rendering import THOUGHTS
from hone.rng import key, stream
from hone.trainer.packing import RowPacker, Sequence
from hone.types import Message, content_hash

if TYPE_CHECKING:
    from hone.config.sft import SFTDataConfig
    from hone.environments import Environment
    from hone.environments.data import Rows
    from hone.model.chat import ChatRenderer
    from hone.model.tool_calls import Tool
    from hone.runs.reader import Run


T = TypeVar("T")


class Limit:
    """The length limit of examples, and the choice `data.too_long` for longer examples: error, drop or truncate."""

    def __init__(self, data: SFTDataConfig, max_positions: int) -> None:
        self.tokens = min(data.seq_len, max_positions)
        self.name = (
            f"data.seq_len = {data.seq_len}" if data.seq_len <= max_positions else f"the model's {max_positions}"
        )
        self.grow = "raise data.seq_len" if data.seq_len < max_positions else "use a model with a longer context"
        self.policy = data.too_long
        self.dropped: set[str] = set()
        self.truncated: set[str] = set()

    def apply(self, sequence: Sequence, where: str) -> Sequence | None:
        """Return the sequence, truncated if `policy` says so; None if it is dropped or would have no loss token."""
        if len(sequence) <= self.tokens:
            return sequence
        if self.policy == "error":
            raise UserError(
                f"{where} has {len(sequence)} tokens, more than {self.name}: {self.grow}, "
                'or set data.too_long to "truncate" or "drop".'
            )
        if self.policy == "truncate" and sequence.loss_mask[: self.tokens].any():
            self.truncated.add(where)
            return Sequence(sequence.token_ids[: self.tokens], sequence.loss_mask[: self.tokens])
        self.dropped.add(where)
        return None


def tokenize(
    renderer: ChatRenderer, messages: list[Message], start: int, where: str, tools: list[Tool] | None = None
) -> Sequence:
    """Tokenize a conversation, with loss on every assistant message from index `start` on, unless its `weight` is 0.

    The sequence ends with the end-of-turn token of the last message with loss. The prompt lists `tools`, and errors
    name the example by `where`. A thought (under a key of `THOUGHTS`) is learned as the template writes it. If the
    template rewrites a turn once tool answers follow, as Qwen3's drops an empty thought, the ids of the turn stay
    unchanged, as in a rollout.
    """
    learned = [_carries_loss(message, i, where) and i >= start for i, message in enumerate(messages)]
    if not any(learned):
        raise UserError(f"{where} has no assistant message to learn from: add one, or remove this example.")
    messages = [{name: part for name, part in message.items() if name != "weight"} for message in messages]
    messages = messages[: len(learned) - learned[::-1].index(True)]
    turns = [i for i in range(learned.index(True), len(messages)) if messages[i]["role"] == "assistant"]
    renderer.note(where, messages, tools)
    ids: list[int] = []
    mask: list[bool] = []
    for last, turn in zip([None, *turns], turns, strict=False):
        text = messages[turn].get("content")
        if not isinstance(text, str) and not (text is None and messages[turn].get("tool_calls")):
            raise UserError(f"{where}: an assistant message must be plain text; message {turn} is not.")
        try:
            if last is None:
                _check_thoughts(renderer, messages[:turn], tools)
            prompt = renderer.prompt_ids(messages[:turn], tools)
            completion = renderer.completion_ids(messages[:turn], messages[turn], tools)
            answers = [] if last is None else messages[last + 1 : turn]
            if prompt[: len(ids)] != ids and answers and all(message["role"] == "tool" for message in answers):
                prompt = ids + renderer.bridge_ids(messages[: turn - len(answers)], answers, tools)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if prompt[: len(ids)] != ids:
            raise UserError(
                f"{where}: the chat template rewrites earlier assistant messages once the conversation goes on (at "
                f"message {turn}), so the model would train on text that never occurs: keep one assistant message per "
                'example, give earlier ones "weight": 0, or set model.chat_template to a template that keeps history.'
            )
        mask += [False] * (len(prompt) - len(ids)) + [learned[turn]] * len(completion)
        ids = prompt + completion
    return Sequence(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.bool_))


def _carries_loss(message: Message, index: int, where: str) -> bool:
    if (weight := message.get("weight", 1)) not in (0, 1):
        raise UserError(f"{where}: the weight of message {index} is {weight!r}; it must be 0 (no loss) or 1.")
    return message["role"] == "assistant" and weight == 1


def _check_thoughts(renderer: ChatRenderer, prompt: list[Message], tools: list[Tool] | None) -> None:
    """Raise UserError if the template never writes a thought of the prompt. It may drop thoughts of earlier turns."""
    for i, message in enumerate(prompt):
        if message["role"] == "assistant" and any(map(message.get, THOUGHTS)):
            renderer.completion_ids(prompt[:i], message, tools)


def row_sequence(rows: Rows, index: int, renderer: ChatRenderer, limit: Limit) -> Sequence | None:
    """Return row `index` of a data set as tokens: sampled tokens if the row has some. None if the row is dropped."""
    row, where = rows[index], rows.where(index)
    if row.get("sampled_mask") is not None:
        ids, mask = np.array(row["token_ids"], dtype=np.int32), np.array(row["sampled_mask"], dtype=np.bool_)
        return limit.apply(Sequence(ids, mask), where)
    messages, start = row_messages(row, where)
    return limit.apply(tokenize(renderer, messages, start, where, row_tools(row, where)), where)


def sampled_rows(run: Run, min_reward: float, tokenizer: str) -> Rows:
    """Return a row for each example of an RL or evaluation run: the first completion with the example's highest reward,
    if this is at least `min_reward`. This is rejection sampling, as in RAFT (arXiv:2304.06767).

    A row has `prompt` and `completion` as messages, and if the digest of the run's tokenizer is `tokenizer`, the
    recorded `token_ids` and `sampled_mask`. Raises UserError if there is no row, if an agent's rollout has several
    segments, or if rows with tools have no ids: messages lack the list of tools.
    """
    from hone.environments.data import Rows

    if run.info["kind"] == "sft":
        raise UserError(f"data.run = {run.path} is a run of SFT, which records no completions: name an RL or eval run")
    if evaluated := run.info["kind"] == "eval":
        lines = run.eval_rows()
        found = [(i, line["example_id"], line["reward"]) for i, line in enumerate(lines)]
        best = _first_best(found, min_reward)
        rows = [{name: lines[i][name] for name in ("prompt", "completion")} for i in best]
    else:
        tables = ((step, run.rollouts(step, ["example_id", "reward"])) for step in run.rollout_steps())
        records = ((step, i, row) for step, table in tables for i, row in enumerate(table.to_pylist()))
        found = [((step, i), row["example_id"], row["reward"]) for step, i, row in records]
        best = _first_best(found, min_reward)
        columns, rows = ["prompt", "text", "completion", "token_ids", "sampled_mask", "branches"], []
        for step, places in groupby(sorted(best), lambda place: place[0]):
            rows += map(_sampled_row, run.rollouts(step, columns).take([i for _, i in places]).to_pylist())
        if any(json.loads(row.pop("branches", None) or "[]") for row in rows):
            raise UserError(
                f"rollouts in {run.path} have several segments, but data.run can use only one segment: name another run"
            )
    if not rows:
        most = max((reward for _, _, reward in found if reward is not None), default=None)
        remedy = "name another run" if most is None else f"the highest is {most:.4g}; lower data.min_reward"
        raise UserError(f"no recorded completion of {run.path} has a reward of {min_reward:g} or more: {remedy}")
    if evaluated or run.info.get("sources", {}).get("tokenizer") != tokenizer:
        if any(message["role"] == "tool" for row in rows for message in row["completion"]):
            raise UserError(f"{run.path} used tools, which need ids: name an RL run with this model's tokenizer")
        rows = [{name: row[name] for name in ("prompt", "completion")} for row in rows]
    return Rows(rows, lambda i: f"{run.path}, completion {i}")


def _first_best(records: Iterable[tuple[T, str, float | None]], min_reward: float) -> list[T]:
    """Return the place of each example's first record with the highest reward. `records`: (place, example, reward)."""
    best: dict[str, tuple[float, T]] = {}
    for place, example, reward in records:
        if reward is not None and reward >= min_reward and (example not in best or reward > best[example][0]):
            best[example] = reward, place
    return [place for _, place in best.values()]


def _sampled_row(record: dict[str, Any]) -> dict[str, Any]:
    answer = [{"role": "assistant", "content": record["text"]}]
    several = record["completion"] and json.loads(record["completion"])
    return record | {"prompt": json.loads(record["prompt"]), "completion": several or answer}


def row_messages(row: Mapping[str, Any], where: str) -> tuple[list[Message], int]:
    """Return a data set's row as messages, and the index of the first message that may carry loss.

    The columns are `messages`, or `prompt` and `completion` (each a string or a list of messages).
    """
    if row.get("messages") is not None:
        return _messages(row["messages"], "messages", "user", where), 0
    missing = [name for name in ("prompt", "completion") if row.get(name) is None]
    if missing and missing[0] in row:
        raise UserError(f"{where}: column `{missing[0]}` is null: fill it in, or remove the row.")
    if missing:
        columns = ", ".join(str(name) for name in row) or "none"
        raise UserError(
            f"{where} has no column {' or '.join(repr(name) for name in missing)} (columns: {columns}): "
            "SFT needs `messages`, or `prompt` and `completion`."
        )
    prompt = _messages(row["prompt"], "prompt", "user", where)
    return prompt + _messages(row["completion"], "completion", "assistant", where), len(prompt)


def row_tools(row: Mapping[str, Any], where: str) -> list[Tool] | None:
    """Return the tools in the column `tools`: a list in OpenAI's form, or such a list as JSON."""
    given = row.get("tools")
    try:
        given = json.loads(given) if isinstance(given, str) and given.strip() else given
    except ValueError:
        given = ...
    if not given:
        return None
    functions = [tool.get("function") for tool in given if isinstance(tool, Mapping)] if isinstance(given, list) else []
    if not functions or not all(isinstance(function, Mapping) and function.get("name") for function in functions):
        form = '{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}'
        raise UserError(f"{where}: column `tools` must be a list of {form}, or such a list as JSON.")
    return _without_nulls(given)


def _without_nulls(value: Any) -> Any:
    """Drop keys with the value null. Parquet adds such keys if the rows' tools have different keys."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _messages(value: Any, column: str, role: str, where: str) -> list[Message]:
    if isinstance(value, str) and column != "messages":
        return [{"role": role, "content": value}]
    good = isinstance(value, list | tuple) and all(
        isinstance(message, Mapping) and isinstance(message.get("role"), str) and "content" in message
        for message in value
    )
    if not good or not value:
        text = "a string or " if column != "messages" else ""
        raise UserError(f"{where}: column `{column}` must be {text}a list of messages with `role` and `content`.")
    messages: list[Any] = list(value)
    for i, calls in enumerate(message.get("tool_calls") or [] for message in messages):
        if not isinstance(calls, list | tuple) or not all(isinstance(call, Mapping) for call in calls):
            raise UserError(f"{where}: the tool_calls of message {i} of column `{column}` must be a list of calls.")
    return [{name: part for name, part in message.items() if part is not None} for message in messages]


class Source(Protocol):
    """A source of examples. `len`: examples per epoch; `sequence`: the example at `position`, None if it is dropped."""

    def __len__(self) -> int: ...

    def sequence(self, step: int, draw: int, position: int) -> Sequence | None: ...


class DatasetSource:
    """The rows of a data set, in an order drawn from (seed, epoch). A row is tokenized when it is first needed."""

    def __init__(self, rows: Rows, renderer: ChatRenderer, limit: Limit, seed: int) -> None:
        self.rows, self.renderer, self.limit = rows, renderer, limit
        self.order = Draws(len(rows), seed)
        self.cache: dict[int, Sequence | None] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def sequence(self, step: int, draw: int, position: int) -> Sequence | None:
        index = self.order.index(position)
        if index not in self.cache:
            self.cache[index] = row_sequence(self.rows, index, self.renderer, self.limit)
        return self.cache[index]


class DemonstrationSource:
    """An environment's training examples. Each epoch has new demonstrations, seeded by (step, draw)."""

    def __init__(self, env: Environment, renderer: ChatRenderer, limit: Limit, seed: int) -> None:
        self.env, self.renderer, self.limit, self.seed = env, renderer, limit, seed
        self.examples = env.split("train")
        self.order = Draws(len(self.examples), seed)

    def __len__(self) -> int:
        return len(self.examples)

    def sequence(self, step: int, draw: int, position: int) -> Sequence | None:
        index = self.order.index(position)
        rng = stream(self.seed, "sft-demo", step, draw)
        return demonstration(self.env, "train", index, rng, self.renderer, self.limit)


def demonstration(
    env: Environment, split: str, index: int, rng: np.random.Generator, renderer: ChatRenderer, limit: Limit
) -> Sequence | None:
    example = env.split(split)[index]
    where = f"environment {env.id}, {split} example {index}"
    content = env.demonstrate(example, rng)
    answer: list[Message] = [{"role": "assistant", "content": content}] if isinstance(content, str) else content
    messages = [*example.prompt, *answer]
    return limit.apply(tokenize(renderer, messages, len(example.prompt), where, env.tool_schemas), where)


def next_batch(source: Source, step: int, position: int, data: SFTDataConfig) -> tuple[list[Sequence], int]:
    """Return one step's sequences, read from `position` on, and the position where the next step starts."""
    rows = RowPacker(data.batch_size, data.seq_len) if data.pack else None
    taken: list[Sequence] = []
    start = position
    while rows is not None or len(taken) < data.batch_size:
        sequence = source.sequence(step, position - start, position)
        if sequence is not None:
            if rows is not None and not rows.add(sequence):
                break
            taken.append(sequence)
        position += 1
        if not taken and position - start >= len(source):
            raise UserError("every example of the data is longer than the limit and was dropped: raise data.seq_len.")
    return (taken if rows is None else rows.sequences()), position


def prepare(source: DatasetSource, data: SFTDataConfig, max_steps: int, advance: Callable[[int], None]) -> None:
    """Tokenize each row that a run will use, before the run starts. Calls `advance` with the number of rows done."""
    position = 0
    for step in range(max_steps):
        _, position = next_batch(source, step, position, data)
        advance(min(position, len(source)))
        if position >= len(source):
            break


def hold_out_rows(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Return (training rows, validation rows). Equal rows get into the same part.

    Distinct rows are ranked by a keyed hash of their content, and the lowest `fraction` is held out for validation, in
    order of rank. So added rows move few other rows between the parts.
    """
    ranks = np.array([key(seed, "sft-val", content_hash(row)) for row in rows], dtype=np.uint64)
    distinct = np.unique(ranks)
    if len(distinct) < 2:
        raise UserError("the data has fewer than two different rows, so none can be held out: leave out `val`.")
    held_out = min(max(round(fraction * len(distinct)), 1), len(distinct) - 1)
    is_val = ranks < distinct[held_out]
    val = np.flatnonzero(is_val)
    return rows.take(np.flatnonzero(~is_val).tolist()), rows.take(val[np.argsort(ranks[val], kind="stable")].tolist())


def validation_set(held_out: Rows, renderer: ChatRenderer, limit: Limit, max_examples: int) -> list[Sequence]:
    count = min(max_examples, len(held_out))
    return _some([row_sequence(held_out, i, renderer, limit) for i in range(count)])


def validation_demonstrations(source: DemonstrationSource, max_examples: int) -> list[Sequence]:
    count = min(max_examples, len(source.env.split("eval")))
    rngs = [stream(source.seed, "sft-val-demo", i) for i in range(count)]
    return _some([demonstration(source.env, "eval", i, rngs[i], source.renderer, source.limit) for i in range(count)])


def _some(candidates: list[Sequence | None]) -> list[Sequence]:
    sequences = [sequence for sequence in candidates if sequence is not None]
    if not sequences:
        raise UserError("no validation example is left (there are none, or all are too long): leave out `val`.")
    return sequences
