"""The completions of a run, from `rollouts/step_*.parquet`: those of a step, one of them, those that a search finds.

A run may be at work meanwhile, or be rolled back: files appear, vanish, or are damaged. What can't be read is left out,
and named in a sentence.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hone.errors import UserError
from hone.runs.checkpoint import step_of
from hone.runs.reader import Run
from hone.viewer.duck import SECONDS, TooSlow, duck, literal_path
from hone.viewer.query import PAGE, Query, clean

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Row = dict[str, Any]
"""A completion: columns of `hone.runs.rollouts.schema`, with `row` (its place in its file) and `tokens` (sampled)."""
LIGHT = (
    "step", "draw", "group", "sample_id", "example_id", "reward", "components", "weights", "outcome", "detail",
    "advantage", "state", "stop_reason", "prompt", "text", "answer", "completion", "sampled_mask",
)  # fmt: skip
"""What lists of completions show: no ids of tokens, no logprobs."""
_FACTS = ("step", "sample_id", "reward", "outcome", "advantage", "state", "stop_reason", "text", "sampled_mask")
_MOST_DAMAGED = 20
_KEPT_SEARCHES = 8
_searches: OrderedDict[Any, tuple[np.ndarray, np.ndarray, list[str]]] = OrderedDict()
_searches_lock = threading.Lock()

Stamps = dict[int, tuple[str, int, int]]
"""The files by step: name, time of the last change in ns, bytes."""


@dataclass(frozen=True)
class Found:
    """A page of a search: how many there are in all, the rows of this page, and what could not be read, in words."""

    total: int
    rows: list[Row]
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """A step at which an example was seen: the row of its first completion there, their number, rewards."""

    step: int
    row: int
    completions: int
    reward: float | None
    solved: int


class Store:
    """The completions of the run in `folder`. Cheap to make: what is kept between pages is kept by files' stamps."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)
        self.folder = folder / "rollouts"

    def stamps(self, first: int | None = None, last: int | None = None) -> Stamps:
        """The files that are there, of a range of steps or all."""
        import os

        found: Stamps = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    step = step_of(Path(entry.name)) if entry.name.endswith(".parquet") else None
                    if (
                        step is None
                        or not entry.is_file()
                        or (first is not None and step < first)
                        or (last is not None and step > last)
                    ):
                        continue
                    try:
                        stat = entry.stat()
                    except FileNotFoundError:
                        continue
                    found[step] = (entry.name, stat.st_mtime_ns, stat.st_size)
        except FileNotFoundError:
            return {}
        return dict(sorted(found.items()))

    def steps(self) -> list[int]:
        """Steps whose completions are there, ascending."""
        return list(self.stamps())

    def rows(self, step: int, columns: Sequence[str] = LIGHT) -> list[Row]:
        """The completions of a step, in order. UserError if there are none, or its file is damaged."""
        return _rows(self._table(step, columns))

    def sample(self, step: int, row: int) -> Row:
        """One completion with all columns. UserError if there is none."""
        table = self._table(step, None)
        if not 0 <= row < len(table):
            raise UserError(f"step {step} has no completion {row}: they are numbered from 0 to {len(table) - 1}")
        return _rows(table.slice(row, 1), row)[0]

    def _table(self, step: int, columns: Sequence[str] | None) -> pyarrow.Table:
        try:
            return self.run.rollouts(step, columns)
        except FileNotFoundError:
            raise UserError(f"the completions of step {step} have just gone: the run was rolled back") from None
        except KeyError as error:
            raise UserError(f"step {step} cannot be shown: its file lacks a column ({error})") from None

    def search(self, query: Query) -> Found:
        """The page of completions that `query` asks for. UserError for an expression that is none; TooSlow."""
        check_patterns(query.patterns())
        steps, rows, skipped = self._hits(query)
        start = (query.page - 1) * PAGE
        page = slice(start, start + PAGE)
        found, gone = self._at(steps[page], rows[page], query.column)
        return Found(len(steps), found, skipped + gone)

    def _hits(self, query: Query) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Steps and rows of all that is found, in order. Turning a page costs nothing."""
        stamps = self.stamps(query.first, query.last)
        key = (str(self.folder), tuple(stamps.values()), query.address(page=1))
        with _searches_lock:
            if key in _searches:
                _searches.move_to_end(key)
                return _searches[key]
        condition, values = query.where()
        sql = (
            "SELECT step, file_row_number AS row FROM read_parquet($files, file_row_number = true) "
            f"WHERE {condition} ORDER BY {query.order}"
        )
        columns, skipped = self._scan(duck().columns, sql, values, stamps)
        none = np.zeros(0, np.int32)
        hits = (
            np.asarray(columns["step"] if columns else none, np.int32),
            np.asarray(columns["row"] if columns else none, np.int32),
            skipped,
        )
        with _searches_lock:
            _searches[key] = hits
            while len(_searches) > _KEPT_SEARCHES:
                _searches.popitem(last=False)
        return hits

    def _at(self, steps: np.ndarray, rows: np.ndarray, column: str = "text") -> tuple[list[Row], list[str]]:
        """The completions at these places, with the column that words were looked for in; and what has gone."""
        found: dict[tuple[int, int], Row] = {}
        gone = []
        for step in dict.fromkeys(steps.tolist()):
            try:
                table = self._table(step, list(dict.fromkeys((*_FACTS, column))))
                here = [row for at, row in zip(steps.tolist(), rows.tolist(), strict=True) if at == step]
                wanted = [row for row in here if row < len(table)]
                read = _rows(table.take(wanted))
            except UserError as error:
                gone.append(str(error))
                continue
            for row, one in zip(wanted, read, strict=True):
                found[step, row] = one | {"row": row}
        places = zip(steps.tolist(), rows.tolist(), strict=True)
        return [found[place] for place in places if place in found], gone

    def seen(self, example_id: str) -> tuple[list[Seen], list[str]]:
        """The steps at which an example was seen, ascending, and what could not be read."""
        sql = (
            "SELECT step, min(file_row_number), count(*), avg(reward), count(*) FILTER (outcome = 'correct') "
            "FROM read_parquet($files, file_row_number = true) WHERE example_id = $example GROUP BY step ORDER BY step"
        )
        rows, skipped = self.scan(sql, {"example": clean(example_id)})
        return [Seen(*row) for row in rows], skipped

    def scan(
        self, sql: str, values: Mapping[str, Any], stamps: Stamps | None = None, seconds: float = SECONDS
    ) -> tuple[list[tuple[Any, ...]], list[str]]:
        """What a statement over `read_parquet($files, …)` gives, and sentences about files that could not be read.

        `stamps` are the files, by default all. TooSlow after `seconds`.
        """
        rows, skipped = self._scan(duck().rows, sql, values, self.stamps() if stamps is None else stamps, seconds)
        return rows or [], skipped

    def _scan(
        self, ask: Callable[..., T], sql: str, values: Mapping[str, Any], stamps: Stamps, seconds: float = SECONDS
    ) -> tuple[T | None, list[str]]:
        """The same by a method of `Duck`; None if no file can be read."""
        import duckdb

        skipped: list[str] = []
        while stamps:
            try:
                return ask(sql, {**values, "files": self._files(stamps)}, seconds), skipped
            except duckdb.Error as error:
                bad = self._damaged(stamps, sql, values)
                if not bad:
                    raise UserError(f"this cannot be looked up ({str(error).splitlines()[0]})") from None
                skipped += [f"{self.folder / stamps[step][0]} is left out: {why}" for step, why in sorted(bad.items())]
                stamps = {step: stamp for step, stamp in stamps.items() if step not in bad}
        return None, skipped

    def _files(self, stamps: Stamps) -> list[str]:
        return [literal_path(str(self.folder / name)) for name, _, _ in stamps.values()]

    def _damaged(self, stamps: Stamps, sql: str, values: Mapping[str, Any]) -> dict[int, str]:
        """The steps whose files stand in the way of a statement, and why: those without a readable end; if there are
        none, those for which the statement fails.
        """
        import pyarrow.parquet as pq

        bad: dict[int, str] = {}
        for step, (name, _, _) in stamps.items():
            try:
                pq.read_metadata(self.folder / name)
            except FileNotFoundError:
                bad[step] = "it has gone meanwhile"
            except Exception:  # pyarrow raises errors of several families for what isn't Parquet
                bad[step] = "it is damaged; restore it from a copy"
        return bad or dict(self._halves(list(stamps), stamps, sql, values, [0]))

    def _halves(
        self, steps: list[int], stamps: Stamps, sql: str, values: Mapping[str, Any], found: list[int]
    ) -> Iterable[tuple[int, str]]:
        """Those of `steps` for whose files the statement fails, by halving. `found` counts them."""
        import duckdb

        try:
            duck().rows(sql, {**values, "files": self._files({step: stamps[step] for step in steps})})
        except TooSlow:
            raise
        except duckdb.Error as error:
            if len(steps) > 1:
                middle = len(steps) // 2
                yield from self._halves(steps[:middle], stamps, sql, values, found)
                yield from self._halves(steps[middle:], stamps, sql, values, found)
                return
            found[0] += 1
            if found[0] > _MOST_DAMAGED:
                raise UserError(f"many files of {self.folder} cannot be read: restore them from a copy") from None
            yield steps[0], f"it cannot be read ({str(error).splitlines()[0][:200]})"


def matches(query: Query, texts: Sequence[str]) -> list[str]:
    """What the first word of the query found in each text, as it stands there; empty texts without words."""
    patterns = query.patterns()
    if not patterns or not texts:
        return [""] * len(texts)
    sql = "SELECT regexp_extract(one, $pattern, 0, 'i') FROM (SELECT unnest($texts) AS one)"
    return [found for (found,) in duck().rows(sql, {"pattern": patterns[0], "texts": list(texts)})]


def check_patterns(patterns: Sequence[str]) -> None:
    """UserError for a regular expression that isn't one."""
    import duckdb

    for pattern in patterns:
        try:
            duck().rows("SELECT regexp_matches('', $pattern, 'i')", {"pattern": pattern})
        except duckdb.Error as error:
            why = str(error).splitlines()[0].removeprefix("Invalid Input Error: ")
            raise UserError(
                f"/{pattern[:100]}/ is no regular expression ({why}): mend it, or put it in quotes"
            ) from None


def _rows(table: pyarrow.Table, first: int = 0) -> list[Row]:
    """Rows as Python values: maps as dicts, `tokens` in place of the mask where no ids of tokens are asked for."""
    tokens = None
    if "sampled_mask" in table.column_names:
        tokens = _counts(table["sampled_mask"])
        if "token_ids" not in table.column_names:
            table = table.drop_columns(["sampled_mask"])
    without = dict.fromkeys(LIGHT)  # a file that hone did not write may lack any column
    rows = [without | row for row in table.to_pylist()]
    for i, row in enumerate(rows):
        row["row"] = first + i
        for name in ("components", "weights"):
            row[name] = {key: value for key, value in row.get(name) or () if value is not None}
        row["tokens"] = 0 if tokens is None else int(tokens[i])
        if "token_ids" not in table.column_names:
            del row["sampled_mask"]
        for name in ("text", "outcome", "detail", "stop_reason", "state", "answer", "sample_id", "example_id"):
            row[name] = row.get(name) or ""
    return rows


def _counts(mask: pyarrow.ChunkedArray) -> np.ndarray:
    """How many are True in each list."""
    import pyarrow as pa

    one: Any = mask.combine_chunks()
    if isinstance(one, pa.ChunkedArray):
        one = pa.concat_arrays(one.chunks) if one.num_chunks else pa.array([], mask.type)
    ends = np.concatenate([[0], np.cumsum(one.values.to_numpy(zero_copy_only=False), dtype=np.int64)])
    offsets = one.offsets.to_numpy()
    return ends[offsets[1:]] - ends[offsets[:-1]]
