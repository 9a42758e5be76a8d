"""Reads a run's completions from `rollouts/step_*.parquet`: all of a step, a single one, or the hits of a search.

The run may write files or be rolled back meanwhile: a search leaves out unreadable files, and names them.

DuckDB searches many files in a tenth of the time of loops over pyarrow, as it reads only the needed columns and rows.
DuckDB gets user input as parameters, never in SQL text.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.errors import UserError, first_line
from hone.extensions.viewer.query import PAGE, SORTS, Query
from hone.runs.reader import Run
from hone.runs.view import ROLLOUTS, stamp, steps_in

if TYPE_CHECKING:
    import pyarrow

Row = dict[str, Any]
"""A completion: columns of `hone.runs.rollouts.schema`, `row` (its index in the file), `tokens` (number sampled)."""
Stamps = dict[int, tuple[str, int, int]]
"""Files by step: path, time of the last change in ns, size in bytes."""
LIGHT = (
    "step", "draw", "group", "sample_id", "example_id", "reward", "components", "weights", "outcome", "detail",
    "advantage", "state", "stop_reason", "prompt", "text", "answer", "completion", "sampled_mask",
)  # fmt: skip
"""Columns for lists of completions, without token ids and logprobs."""
_TEXTS = ("text", "outcome", "detail", "stop_reason", "state", "answer", "sample_id", "example_id")
_FACTS = ("step", "sample_id", "reward", "outcome", "advantage", "state", "stop_reason", "text", "sampled_mask")
_SECONDS = 10.0
"""Time limit of a query, in seconds."""
_CONFIG = {
    "threads": 2,
    "memory_limit": "200MB",
    "temp_directory": "",  # nothing spills to a disk
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}
_MOST_DAMAGED = 20


@cache
def _database() -> tuple[Any, threading.Semaphore]:
    import duckdb

    made = duckdb.connect(":memory:", config=_CONFIG)  # pyright: ignore[reportArgumentType]
    for setting in ("enable_progress_bar = false", "parquet_metadata_cache = true", "lock_configuration = true"):
        made.execute(f"SET {setting}")
    return made, threading.Semaphore(2)


def ask(sql: str, parameters: Mapping[str, Any], seconds: float = _SECONDS) -> dict[str, Any]:
    """Return the result of an SQL statement as arrays by column, which take a hundredth of the memory of tuples.

    Raises UserError after `seconds`, or if memory runs out.
    """
    import duckdb

    database, free = _database()
    with free, database.cursor() as cursor:
        timer = threading.Timer(seconds, cursor.interrupt)
        timer.start()
        try:
            return cursor.execute(sql, dict(parameters)).fetchnumpy()
        except duckdb.InterruptException:
            raise UserError(f"this took more than {seconds:g} s: search fewer steps, or rarer words") from None
        except duckdb.OutOfMemoryException:
            raise UserError("this takes more memory than the viewer may use: search fewer steps") from None
        finally:
            timer.cancel()


@dataclass(frozen=True)
class Hits:
    """A page of a search: the number of all hits, the rows of this page, the first word's match in each row, and
    sentences about unreadable files.
    """

    total: int = 0
    rows: Sequence[Row] = ()
    found: Sequence[str] = ()
    skipped: Sequence[str] = ()


class Store:
    """The completions of the run in `folder`. Searches are cached as long as the files' stamps are the same."""

    def __init__(self, folder: Path) -> None:
        self.run = Run(folder)

    def stamps(self, first: int | None = None, last: int | None = None) -> Stamps:
        found: Stamps = {}
        for step, path in steps_in(self.run.path / ROLLOUTS, ".parquet").items():
            if (first or 0) <= step <= (step if last is None else last) and (known := stamp(path)):
                found[step] = (str(path), *known)
        return found

    def rows(self, step: int, columns: Sequence[str] = LIGHT) -> list[Row]:
        """Return a step's completions, in order. Raises UserError if the step's file is missing or damaged."""
        return _rows(self._table(step, columns))

    def sample(self, step: int, row: int) -> Row:
        """Return one completion with all columns. Raises UserError if it does not exist."""
        table = self._table(step, None)
        if not 0 <= row < len(table):
            raise UserError(f"step {step} has no completion {row}: completions are 0 to {len(table) - 1}")
        return _rows(table.slice(row, 1))[0] | {"row": row}

    def _table(self, step: int, columns: Sequence[str] | None) -> pyarrow.Table:
        try:
            return self.run.rollouts(step, columns)
        except FileNotFoundError:
            raise UserError(f"the completions of step {step} were just removed: the run was rolled back") from None
        except KeyError as error:
            raise UserError(f"step {step} cannot be shown: its file lacks a column ({error})") from None

    def search(self, query: Query) -> Hits:
        """Return the query's page of hits. Raises UserError for an invalid regular expression."""
        import duckdb

        patterns = query.patterns()
        for pattern in patterns:
            try:
                ask("SELECT regexp_matches('', $pattern, 'i')", {"pattern": pattern})
            except duckdb.Error as error:
                why = first_line(error).removeprefix("Invalid Input Error: ")
                raise UserError(
                    f"/{pattern[:100]}/ is not a regular expression ({why}): correct it, or use quotes"
                ) from None
        files = tuple(self.stamps(query.first, query.last).items())
        steps, rows, skipped = _search(files, replace(query, page=1))
        page = slice((query.page - 1) * PAGE, query.page * PAGE)
        shown, gone = self.at(steps[page], rows[page])
        found = [""] * len(shown)
        if patterns and shown:
            sql = "SELECT regexp_extract(one, $pattern, 0, 'i') AS found FROM (SELECT unnest($texts) AS one)"
            parameters = {"pattern": patterns[0], "texts": [row["text"] for row in shown]}
            found = ask(sql, parameters)["found"].tolist()
        return Hits(len(steps), shown, found, [*skipped, *gone])

    def at(self, steps: np.ndarray, rows: np.ndarray) -> tuple[list[Row], list[str]]:
        """Return the completions at these (step, row) pairs, and sentences about missing files."""
        places = list(zip(steps.tolist(), rows.tolist(), strict=True))
        found: dict[tuple[int, int], Row] = {}
        gone = []
        for step in dict.fromkeys(steps.tolist()):
            try:
                table = self._table(step, _FACTS)
                wanted = [row for at, row in places if at == step and row < len(table)]
                read = _rows(table.take(wanted))
            except UserError as error:
                gone.append(str(error))
                continue
            found |= {(step, row): one | {"row": row} for row, one in zip(wanted, read, strict=True)}
        return [found[place] for place in places if place in found], gone


def scan(sql: str, values: Mapping[str, Any], stamps: Stamps) -> tuple[dict[str, np.ndarray], list[str]]:
    """Run a statement on `read_parquet($files, …)`; return its columns, and sentences about unreadable files."""
    import duckdb

    def read(steps: Sequence[int]) -> dict[str, np.ndarray]:
        # DuckDB reads `*`, `?` and `[` in a path as a pattern.
        files = ["".join(f"[{c}]" if c in "*?[" else c for c in stamps[step][0]) for step in steps]
        return ask(sql, {**values, "files": files})

    if not stamps:
        return {}, []
    try:
        return read([*stamps]), []
    except duckdb.Error as error:
        problem = first_line(error)
    bad: dict[int, str] = {}
    for step, (file, _, _) in stamps.items():
        try:
            read([step])
        except duckdb.Error as error:
            gone = not Path(file).exists()
            why = "it was removed meanwhile" if gone else f"it is damaged ({first_line(error)[:200]})"
            bad[step] = f"{file} is left out: {why}"
        if len(bad) > _MOST_DAMAGED:
            raise UserError(f"many files in {Path(file).parent} cannot be read: restore them from a backup")
    if not bad:
        raise UserError(f"this search failed ({problem})")
    columns, more = scan(sql, values, {step: stamps[step] for step in stamps if step not in bad})
    return columns, [*bad.values(), *more]


@lru_cache(maxsize=8)
def _search(files: tuple[Any, ...], query: Query) -> tuple[np.ndarray, np.ndarray, list[str]]:
    condition, values = query.where()
    sql = (
        "SELECT step, file_row_number AS row FROM read_parquet($files, file_row_number = true) "
        f"WHERE {condition} ORDER BY {SORTS[query.sort][1]}"
    )
    columns, skipped = scan(sql, values, dict(files))
    steps, rows = (np.asarray(columns.get(name, ()), np.int32) for name in ("step", "row"))
    return steps, rows, skipped


def _rows(table: pyarrow.Table) -> list[Row]:
    """Return rows as Python values, maps as dicts. Without token ids, the count `tokens` replaces the sampled mask."""
    tokens = _count_true(table["sampled_mask"]) if "sampled_mask" in table.column_names else [0] * len(table)
    if "sampled_mask" in table.column_names and "token_ids" not in table.column_names:
        table = table.drop_columns(["sampled_mask"])
    rows = [dict.fromkeys(LIGHT) | row for row in table.to_pylist()]  # a file of another program may lack any column
    for i, row in enumerate(rows):
        row |= {"row": i, "tokens": tokens[i]} | {name: row[name] or "" for name in _TEXTS}
        for name in ("components", "weights"):
            row[name] = {key: value for key, value in row[name] or () if value is not None}
    return rows


def _count_true(mask: pyarrow.ChunkedArray) -> list[int]:
    lists: Any = mask.combine_chunks()
    true = lists.flatten().to_numpy(zero_copy_only=False).astype(bool)
    return np.bincount(lists.value_parent_indices().to_numpy()[true], minlength=len(mask)).tolist()
