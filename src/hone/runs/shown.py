"""Tables of a run and its samples, for a notebook or a Python prompt."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hone.terminal import printable

if TYPE_CHECKING:
    import pyarrow

ROWS, WIDTH = 10, 40
"""Maximum number of rows to show, and of characters in a cell."""
COLUMNS = ("prompt", "text", "reward", "outcome", "detail")
"""Columns of samples to show, if the table has them."""


class Samples:
    """Completions of a step. Prints as rows, and has all methods and attributes of `table`, an Arrow table."""

    def __init__(self, table: pyarrow.Table) -> None:
        self.table = table

    def __getattr__(self, name: str) -> Any:
        if name == "table":  # of a copy that is being made
            raise AttributeError(name)
        found = getattr(self.table, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            made = found(*args, **kwargs)
            return Samples(made) if isinstance(made, type(self.table)) else made

        return call

    def __len__(self) -> int:
        return self.table.num_rows

    def __getitem__(self, key: Any) -> Any:
        return self.table[key]

    def __eq__(self, other: object) -> bool:
        return self.table == (other.table if isinstance(other, Samples) else other)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{text_table(self._shown())}\n{self._size()}"

    def _repr_html_(self) -> str:
        return f"{html_table(self._shown())}<p>{self._size()}</p>"

    def _shown(self) -> list[dict[str, Any]]:
        names = [name for name in COLUMNS if name in self.table.column_names] or self.table.column_names
        return self.table.select(names).slice(0, ROWS).to_pylist()

    def _size(self) -> str:
        return f"{self.table.num_rows} rows; columns: {', '.join(self.table.column_names)}"


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows, which have equal keys, as lines below a line of the keys."""
    return "\n".join(aligned([{name: _cell(value) for name, value in row.items()} for row in rows]))


def aligned(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Format rows, which have equal keys, as aligned lines below a line of the keys; [] without rows."""
    cells = [[*rows[0]], *([*row.values()] for row in rows)] if rows else []
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
    lines = ("".join(f"<td>{html.escape(_cell(value))}</td>" for value in row.values()) for row in rows)
    return f"<table><tr>{heads}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    text = f"{value:.4g}" if isinstance(value, float) else printable(" ".join(str(value).split()))
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 1]}…"
