"""The messages: `Session` and `Order` of the orchestrator, `Hello` and `Result` of the trainer.

Each is a file in NumPy's `.npz` format, whose members have checksums: its arrays, and the other fields as JSON.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

Record = TypeVar("Record", "Session", "Hello", "Order", "Result")
_FACTS = "facts"


@dataclass(frozen=True)
class Session:
    """One process of the orchestrator, from the opening of the run to its end. A trainer that sees one begins anew.

    `start` is the version that it starts from: that of `checkpoint` (a folder with the trainer's part of it), or 0 for
    the initial model. `shared` are keys that both roles must have equal, with their values. `temperature` is what
    rollouts are sampled at; `canary` are the token ids whose logprobs come with every result; `lag` is how many
    versions rollouts may be behind (`max_async_level`).
    """

    id: str
    start: int
    checkpoint: str | None
    output_dir: str
    shared: dict[str, Any]
    temperature: float
    canary: tuple[int, ...]
    lag: int = 0


@dataclass(frozen=True)
class Hello:
    """One trainer, from its start to its end: what it has before any session.

    `fingerprint` and `parameters` are those of the initial model; `pid` is that of rank 0 on `host`; `versions` are
    those of libraries; `settings` is the section `trainer` of its config.
    """

    id: str
    fingerprint: str
    parameters: int
    ranks: int
    device: str
    threads: int
    host: str
    pid: int
    versions: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """What the trainer is to do at version `step`: make an update on the batch in `arrays`, or end.

    `save` is a folder, which exists, for the trainer's part of the checkpoint of the version that it has then: `step` +
    1 after a batch, `step` at the end. `tokens` is what the batch counts as while it waits.
    """

    step: int
    kind: Literal["batch", "end"]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    save: str | None = None
    tokens: int = 0


@dataclass(frozen=True)
class Result:
    """Version `version` of the weights is there. The first of a session is of its `start`, with no metrics.

    `canary` are the logprobs of the session's canary tokens but the first, at its temperature. `seconds` by what they
    went to: "train", "wait" (idle, before the order came), "publish", "save". `saved`: the order's `save` was done.
    `arrays` are about the tokens of the step that made it (`TokenStats`), if they were recorded.
    """

    version: int
    metrics: dict[str, float]
    fingerprint: str
    canary: tuple[float, ...]
    seconds: dict[str, float]
    saved: bool = False
    arrays: dict[str, np.ndarray] = field(default_factory=dict)


def encode(record: Session | Hello | Order | Result) -> bytes:
    """Return the record as the bytes of a file. Floats are exact, NaN and infinities too."""
    facts = dict(vars(record))
    arrays: dict[str, Any] = facts.pop("arrays", {})
    text = json.dumps(facts, default=lambda value: value.item() if isinstance(value, np.generic) else str(value))
    buffer = io.BytesIO()
    np.savez(buffer, **{_FACTS: np.array(text)}, **arrays)
    return buffer.getvalue()


def decode(kind: type[Record], path: Path) -> Record:
    """Read a record from a file. ValueError if it is damaged; fields that this version doesn't know are left out."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        facts = json.loads(str(arrays.pop(_FACTS)))
        known: dict[str, Any] = {f.name: facts[f.name] for f in fields(kind) if f.name in facts}
        if "canary" in known:
            known["canary"] = tuple(known["canary"])
        if arrays:
            known["arrays"] = arrays
        return kind(**known)
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"not a {kind.__name__.lower()}: {error}") from None
