"""DuckDB over the rollouts of runs: in memory, bounded in memory, threads and time; it writes and loads nothing.

DuckDB rather than loops over pyarrow: it reads only the columns and rows that a question needs, on two cores, in a
tenth of the time. Whatever a user typed reaches it as a parameter, never as part of the statement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from hone.errors import UserError

if TYPE_CHECKING:
    import numpy as np

SECONDS = 10.0
"""What a question may take."""
_CONFIG = {
    "threads": 2,
    "memory_limit": "200MB",
    "temp_directory": "",  # nothing spills to a disk
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


class TooSlow(UserError):
    """The question took longer than it may."""


class Duck:
    """One database in memory, for questions of several threads; two of them are answered at a time."""

    def __init__(self) -> None:
        import duckdb

        self._database = duckdb.connect(":memory:", config=_CONFIG)  # pyright: ignore[reportArgumentType]
        self._database.execute("SET enable_progress_bar = false")
        for setting in ("parquet_metadata_cache", "lock_configuration"):
            self._database.execute(f"SET {setting} = true")
        self._free = threading.Semaphore(2)

    def rows(self, sql: str, parameters: Mapping[str, Any], seconds: float = SECONDS) -> list[tuple[Any, ...]]:
        """The rows that a statement gives. TooSlow after `seconds`, UserError if its memory does not do."""
        return self._ask(sql, parameters, seconds, lambda answer: answer.fetchall())

    def columns(self, sql: str, parameters: Mapping[str, Any], seconds: float = SECONDS) -> dict[str, np.ndarray]:
        """As `rows`, but as arrays by column: a hundredth of the memory for many rows."""
        return self._ask(sql, parameters, seconds, lambda answer: answer.fetchnumpy())

    def _ask(self, sql: str, parameters: Mapping[str, Any], seconds: float, fetch: Callable[[Any], Any]) -> Any:
        import duckdb

        with self._free, self._database.cursor() as cursor:
            timer = threading.Timer(seconds, cursor.interrupt)
            timer.start()
            try:
                return fetch(cursor.execute(sql, dict(parameters)))
            except duckdb.InterruptException:
                raise TooSlow(
                    f"this took more than {seconds:g} s: narrow it down to fewer steps, or to rarer words"
                ) from None
            except duckdb.OutOfMemoryException:
                raise UserError("this takes more memory than the viewer allows itself: look at fewer steps") from None
            finally:
                timer.cancel()


@cache
def duck() -> Duck:
    """The one of this process."""
    return Duck()


def warm() -> None:
    """Load the libraries that pages of completions need, so that the first of them need not wait for that."""
    import pyarrow.parquet as pq  # noqa: F401

    duck().rows("SELECT 1", {})


def literal_path(path: str) -> str:
    """A path as DuckDB takes it, which reads `*`, `?` and `[` in it as a pattern."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)
