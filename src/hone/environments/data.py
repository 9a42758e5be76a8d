"""The rows of a task, from JSONL, Parquet, the hub or a generator; their order, and the held-out part."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from hone import rng
from hone.errors import UserError, first_line
from hone.types import Example, content_hash

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
U = TypeVar("U")
Row = dict[str, Any]
Count = Annotated[int, Field(ge=1)]
Noise = Annotated[float, Field(ge=0, le=1 / 0.3)]
"""Scale of errors in demonstrations. At 0 there are none; at 1, each kind of error is in 30 % of demonstrations."""
HALF_A_PAIR = "a text holds half of a surrogate pair (such as \\ud800), which is no character; take it out"
SUFFIXES = (".jsonl", ".json", ".parquet")


class Rows(Sequence[T]):
    """Rows of a data set. `where(i)` names row i in error messages: "data.jsonl, line 4" or "USER/SET, row 3".

    `ragged`: rows may have different columns, so each row is checked. `generated`: a function makes the rows. `make`
    turns an item of `rows` into a row at each access.
    """

    def __init__(
        self,
        rows: Sequence[Any],
        where: Callable[[int], str],
        ragged: bool = False,
        generated: bool = False,
        make: Callable[[Any], T] = lambda row: row,
    ) -> None:
        self._rows, self.where, self.ragged, self.generated, self._make = rows, where, ragged, generated, make

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._make(self._rows[int(index)])

    def take(self, indices: Sequence[int]) -> Rows[T]:
        return Rows(indices, lambda i: self.where(indices[i]), self.ragged, self.generated, self.__getitem__)

    def map(self, change: Callable[[T, str], U]) -> Rows[U]:
        """Return the rows changed by `change(row, place)`, computed at each access."""

        def make(i: int) -> U:
            return change(self[i], self.where(i))

        return Rows(range(len(self)), self.where, self.ragged, self.generated, make)


def generated_rows(make: Callable[[np.random.Generator], Row], n: int, *, seed: int, env_id: str, split: str) -> Rows:
    """Return `n` rows of a generated task. Row i is `make(rng)`, where rng is the stream (seed, env_id, split, i)."""
    return indexed_rows(lambda i: make(rng.stream(seed, env_id, split, i)), n, f"{env_id} ({split})")


def indexed_rows(make: Callable[[int], Row], n: int, name: str) -> Rows:
    """Return `n` rows. Row i is `make(i)`, made at each access. `name` is for error messages."""
    return Rows(range(n), lambda i: f"{name}, row {i}", generated=True, make=make)


@dataclass
class DataSource:
    """Reads a split's rows and applies `change`, such as a template. `reads`: the rows come from a data set."""

    read: Callable[[Callable[[Rows], Rows]], Rows]
    reads: bool
    change: Callable[[Rows], Rows] = lambda rows: rows

    def __call__(self) -> Rows:
        return self.read(self.change)


def load_rows(source: str | Path | Rows, split: str = "train") -> Rows:
    """Read a data set: a local JSONL or Parquet file, a folder of them, or "USER/SET" or "USER/SET:CONFIG" of the hub.

    If a folder names its splits (`train-00000.parquet`, `train/…`), only files of `split` are read. Raises UserError if
    the data is missing, unreadable or empty.
    """
    if isinstance(source, Rows):
        return source
    path = Path(source).expanduser()
    if path.is_dir():
        rows = _read_files(_files_of_split(path, split), path)
    elif path.is_file():
        rows = _read_files([path], path)
    elif path.suffix in SUFFIXES or str(source).startswith(("/", ".", "~")) or str(source).count("/") > 1:
        raise UserError(f"{source} does not exist; give a JSONL or Parquet file, a folder of them, or a hub id")
    else:
        rows = _read_hub(str(source), split)
    if not len(rows):
        raise UserError(f"{source} holds no rows; give a data set with at least one")
    return rows


def given_rows(dataset: Any, name: str) -> str | Rows | None:
    """Return a program's rows in JSON's types, or the path or hub id to read. Raises UserError for other values."""
    if dataset is None or isinstance(dataset, str | Path | Rows):
        return str(dataset) if isinstance(dataset, Path) else dataset
    rows = dataset.to_list() if hasattr(dataset, "to_list") else dataset
    if hasattr(dataset, "to_dict") and hasattr(dataset, "columns"):  # a table of pandas
        rows = dataset.to_dict("records")
    if isinstance(rows, list | tuple) and not rows:
        raise UserError(f"{name} is empty: give at least one row")
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, dict) for row in rows):
        split = " of one split" if isinstance(dataset, dict) else ""
        raise UserError(
            f"{name} is a {type(dataset).__name__}: give a path, a hub id, or a list of dicts or a datasets.Dataset"
            f"{split} with at least one row"
        )
    where = f"{name}, row {{}}".format
    return Rows([_as_json(row, where(i)) for i, row in enumerate(rows)], where, ragged=True)


def _as_json(row: Row, where: str) -> Row:
    try:
        text = json.dumps(_plain(row), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UserError(f"{where}: {error}; a row can have only texts, numbers, lists and dicts") from None
    if not is_text(row):
        raise UserError(f"{where}: {HALF_A_PAIR}")
    return json.loads(text)


def _plain(value: Any) -> Any:
    """Convert a table's value to JSON's types: NaN, NaT and NA to null; dates, times and decimals to text."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if type(value).__name__ == "NAType" or (isinstance(value, float | Decimal | date) and value != value):
        return None
    return str(value) if isinstance(value, date | time | timedelta | Decimal) else value


def to_jsonl(rows: Rows) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def hold_out(rows: Rows, key: Callable[[Row], str], fraction: float = 0.1) -> tuple[Rows, Rows]:
    """Return (train, eval). The `fraction` of keys with the smallest hashes is held out: eval gets all their rows.

    Row order and seed don't matter. If there are several keys, at least one is held out. A KeyError of `key` is
    reported as a missing column.
    """
    digests = []
    for i, row in enumerate(rows):
        try:
            digests.append(hashlib.blake2b(key(row).encode(), digest_size=8).digest())
        except KeyError as error:
            raise bad_column(rows.where(i), row, error.args[0]) from None
    ranked = sorted(set(digests))
    count = max(1, round(len(ranked) * fraction)) if len(ranked) > 1 else 0
    chosen = set(ranked[:count])
    train = [i for i, digest in enumerate(digests) if digest not in chosen]
    return rows.take(train), rows.take([i for i, digest in enumerate(digests) if digest in chosen])


def train_and_eval(
    dataset: str | Rows | None,
    eval_dataset: str | Rows | None,
    dataset_split: str,
    eval_split: str,
    halve: Callable[[Rows], tuple[Rows, Rows]],
    builtin: Callable[[str], Rows],
) -> dict[str, DataSource]:
    """Return the arguments `dataset` and `eval_dataset` of an Environment, as functions that read the rows.

    Without `eval_dataset`, `halve` splits the rows of `dataset`, after the template. Without any data set, `builtin`
    makes the rows of "train" or "eval".
    """

    @functools.cache
    def halves(change: Callable[[Rows], Rows]) -> tuple[Rows, Rows]:
        assert dataset is not None
        return halve(change(load_rows(dataset, dataset_split)))

    def train(change: Callable[[Rows], Rows]) -> Rows:
        if dataset is None:
            return builtin("train")
        return change(load_rows(dataset, dataset_split)) if eval_dataset else halves(change)[0]

    def held_out(change: Callable[[Rows], Rows]) -> Rows:
        if eval_dataset is not None:
            return change(load_rows(eval_dataset, eval_split))
        return halves(change)[1] if dataset else builtin("eval")

    reads = bool(dataset or eval_dataset is not None)
    return {"dataset": DataSource(train, dataset is not None), "eval_dataset": DataSource(held_out, reads)}


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of `n` examples in one epoch: a permutation `[n]` int64."""
    return rng.stream(seed, "order", epoch).permutation(n)


class Draws:
    """Maps the number of a draw to an example's index. Each epoch has all `n` examples, in a new order from `seed`."""

    def __init__(self, n: int, seed: int) -> None:
        assert n > 0
        self.n = n
        self._order = functools.lru_cache(maxsize=1)(functools.partial(epoch_order, n, seed))

    def index(self, draw: int) -> int:
        epoch, position = divmod(draw, self.n)
        return int(self._order(epoch)[position])


@functools.cache
def common_words() -> tuple[str, ...]:
    """Return about 3,000 common English words of 3 to 8 lower-case letters, sorted (SCOWL size 10; words.LICENSE)."""
    lines = files("hone.environments").joinpath("words.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


@functools.cache
def split_words(held_out: float = 0.1) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (train, eval) words. The words with the smallest BLAKE2b hashes are held out, for every seed."""
    words = common_words()
    ranked = sorted(words, key=lambda word: hashlib.blake2b(word.encode(), digest_size=8).digest())
    eval_words = frozenset(ranked[: round(len(words) * held_out)])
    return tuple(w for w in words if w not in eval_words), tuple(w for w in words if w in eval_words)


@dataclass(frozen=True)
class Overlap:
    """The overlap of `checked` training examples with `held_out` evaluation examples.

    `rows`: ascending indices of the overlapping training examples. `identical`: how many of them also have the same
    answer and info. `pair`: the first overlap, as (training index, evaluation index).
    """

    checked: int
    held_out: int
    rows: tuple[int, ...] = ()
    identical: int = 0
    pair: tuple[int, int] | None = None


def find_overlap(
    train: Sequence[Example],
    held_out: Sequence[Example],
    train_indices: Sequence[int],
    held_out_indices: Sequence[int],
    advance: Callable[[int], None] = lambda done: None,
) -> Overlap:
    """Find training examples that have the prompt of a held-out example; the answers may differ.

    If most prompts are equal (a game that always begins with the same words), whole examples are compared. `advance` is
    called with the number of examples done.
    """
    others = list(_examples(held_out, held_out_indices))
    ids = {example.id: index for index, example in reversed(others)}
    prompts = {content_hash(example.prompt): index for index, example in reversed(others)}
    by_prompt = 2 * len(prompts) > len(ids)
    found: list[tuple[int, int]] = []
    identical = 0
    for done, (index, example) in enumerate(_examples(train, train_indices), start=1):
        other = ids.get(example.id)
        identical += other is not None
        if other is None and by_prompt:
            other = prompts.get(content_hash(example.prompt))
        if other is not None:
            found.append((index, other))
        advance(done)
    found.sort()
    rows = tuple(index for index, _ in found)
    return Overlap(len(train_indices), len(held_out_indices), rows, identical, found[0] if found else None)


def _examples(split: Sequence[Example], indices: Sequence[int]) -> Iterator[tuple[int, Example]]:
    for index in indices:
        try:
            yield index, split[index]
        except UserError:  # a row without an answer, say; if the run comes to it, it says so
            continue


def bad_column(where: str, row: Row, *names: str) -> UserError:
    """Return the error for a row without any of the columns `names`, or with an invalid value in one of them."""
    for name in names:
        if name in row:
            return UserError(f"{where}: {name!r} must be non-empty text, not {brief(row[name])}")
    wanted = " or ".join(map(repr, names))
    return UserError(f"{where}: no column {wanted}; the columns there are {', '.join(map(repr, row)) or 'none'}")


def brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def is_text(value: Any) -> bool:
    """Return False if a string in `value` has half a surrogate pair: JSON can encode it, UTF-8 can't."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _files_of_split(folder: Path, split: str) -> list[Path]:
    files = sorted(f for f in folder.rglob("*") if f.suffix in SUFFIXES and f.is_file())
    named = [f for f in files if f.parent.name == split or f.stem.split("-")[0] == split]
    if not files:
        raise UserError(f"{folder} holds no {', '.join(SUFFIXES)} file; put the data there or give another folder")
    return named or files


def _read_files(files: list[Path], source: Path) -> Rows:
    if all(f.suffix == ".parquet" for f in files):
        return _read_parquet(files, source)
    if any(f.suffix == ".parquet" for f in files):
        raise UserError(f"{source} mixes Parquet and JSON files; keep one format, or name one file")
    placed = [pair for file in files for pair in _json_rows(file)]
    return Rows([row for _, row in placed], lambda i: placed[i][0], ragged=True)


def _json_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Yield the place and the row of each line, or of each element of a `.json` file's array.

    It doesn't use `datasets`, which would give every row the union of all rows' `info` keys.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # with a byte order mark or without
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read as UTF-8 text: {error}") from None

    def parse(text: str, line: int) -> Any:
        try:
            return json.loads(text, parse_constant=lambda name: None if name == "NaN" else float(name))
        except json.JSONDecodeError as error:
            line += error.lineno - 1
            raise UserError(
                f"{file}, line {line}: not valid JSON ({error.msg}); each line must be one JSON object"
            ) from None

    if file.suffix == ".json" and text.lstrip().startswith("["):
        placed = [(f"{file}, element {i}", row) for i, row in enumerate(parse(text, 1))]
    else:
        numbered = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
        placed = [(f"{file}, line {n}", parse(line, n)) for n, line in numbered]
    may_be_half = "\\ud" in text or "\\uD" in text
    for place, row in placed:
        if not isinstance(row, dict):
            raise UserError(f"{place}: a {type(row).__name__}, but a row must be a JSON object with named columns")
        if may_be_half and not is_text(row):
            raise UserError(f"{place}: {HALF_A_PAIR}")
        yield place, row


def _read_parquet(files: list[Path], source: Path) -> Rows:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table: pyarrow.Table = pa.concat_tables([pq.read_table(f) for f in files], promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{source} cannot be read as Parquet: {first_line(error)}") from None
    rows = range(table.num_rows)
    return Rows(rows, lambda i: f"{source}, row {i}", make=lambda i: _plain(table.slice(i, 1).to_pylist()[0]))


def _read_hub(name: str, split: str) -> Rows:
    import datasets
    from datasets.exceptions import DatasetsError

    path, _, config = name.partition(":")
    try:
        rows = datasets.load_dataset(path, config or None, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"the data set {name!r} (split {split!r}) is no local file or folder, and cannot be loaded from the "
            f"hub: {first_line(error)}"
        ) from None
    return Rows(rows, lambda i: f"{name} ({split}), row {i}", make=_plain)  # type: ignore[arg-type]
