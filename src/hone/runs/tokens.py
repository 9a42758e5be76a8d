"""`tokens/step_N.parquet`: what the train step computed of each token, a row for each row of `rollouts/step_N.parquet`.

It follows from rollouts and weights, so no hash covers it; a run goes on without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hone.errors import UserError
from hone.runs.checked import open_file
from hone.runs.files import write_file
from hone.runs.outputs import TOKENS

if TYPE_CHECKING:
    import pyarrow

_VALUES = {"entropies": np.float16, "trainer_logprobs": np.float32}
_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    # As in `hone.runs.rollouts`: the exponents compress, if they lie together. DuckDB can't read float16 so.
    "column_encoding": {"trainer_logprobs.list.element": "BYTE_STREAM_SPLIT"},
    "write_statistics": False,
    "store_schema": False,
}


def tokens_path(folder: Path, step: int) -> Path:
    """Where those of a step of the run in `folder` lie."""
    return folder / TOKENS / f"step_{step:06d}.parquet"


def write_tokens(folder: Path, step: int, rows: Sequence[dict[str, Any]]) -> tuple[Path, str]:
    """Write those of a step of the run in `folder`; returns the file and its SHA-256. Equal rows give equal bytes;
    about 5 bytes a token.

    Rows have `sample_id`, and `entropies` (written as float16) and `trainer_logprobs` (float32), natural log, with a
    value for each token that was sampled, in order; None where the completion was not trained on.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"sample_id": pa.array([row["sample_id"] for row in rows], pa.string())}
    columns |= {name: _lists([row[name] for row in rows], kind) for name, kind in _VALUES.items()}
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, **_OPTIONS)
    (folder / TOKENS).mkdir(exist_ok=True)
    content = sink.getvalue().to_pybytes()
    write_file(tokens_path(folder, step), content)
    return tokens_path(folder, step), hashlib.sha256(content).hexdigest()


def _lists(values: Sequence[np.ndarray | None], kind: type) -> pyarrow.Array:
    """A list array of a NumPy type; None becomes null."""
    import pyarrow as pa

    parts = [np.zeros(0, kind) if part is None else np.asarray(part, kind) for part in values]
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)
    flat = pa.array(np.concatenate([np.zeros(0, kind), *parts]))
    missing = pa.array([part is None for part in values], pa.bool_())
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=missing)


def read_tokens(folder: Path, step: int) -> pyarrow.Table | None:
    """Those of a step of the run in `folder`; None if they were not recorded. UserError if the file is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tokens_path(folder, step)
    if not path.exists():
        return None
    open_file(path).close()  # or a pipe would be waited for
    try:
        return pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} is damaged ({str(error).splitlines()[0]}): delete it, nothing needs it") from None
