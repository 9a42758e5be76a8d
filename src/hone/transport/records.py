"""The messages: `Session` and `Order` of the orchestrator, `Hello` and `Result` of the trainer; and their files."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

Record = TypeVar("Record", "Session", "Hello", "Result")


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

    def __post_init__(self) -> None:
        assert self.kind in ("batch", "end") and (self.kind == "batch" or not self.arrays)


@dataclass(frozen=True)
class Result:
    """Version `version` of the weights is there. The first of a session is of its `start`, with no metrics.

    `canary` are the logprobs of the session's canary tokens but the first, at its temperature. `seconds` by what they
    went to: "train", "wait" (idle, before the order came), "publish", "save". `saved`: the order's `save` was done.
    `tokens`: arrays about the tokens of the step that made it come with it.
    """

    version: int
    metrics: dict[str, float]
    fingerprint: str
    canary: tuple[float, ...]
    seconds: dict[str, float]
    saved: bool = False
    tokens: bool = False


def to_json(record: Session | Hello | Result) -> bytes:
    """Write the record as JSON. Floats are exact; those that JSON doesn't know stand as "nan", "inf", "-inf"."""
    return json.dumps(_plain(asdict(record)), ensure_ascii=False, allow_nan=False).encode()


def from_json(kind: type[Record], data: bytes) -> Record:
    """Read what `to_json` made. ValueError if it is anything else; keys that this version doesn't know are left out."""
    value = json.loads(data)
    try:
        known = {field.name: value[field.name] for field in fields(kind) if field.name in value}
        for name in ("metrics", "seconds"):
            if name in known:
                known[name] = {key: float(number) for key, number in known[name].items()}
        if "canary" in known:
            known["canary"] = tuple(float(n) if kind is Result else int(n) for n in known["canary"])
        return kind(**known)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"not a {kind.__name__.lower()}: {error}") from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_order(order: Order) -> bytes:
    """Write the order as a safetensors file."""
    facts = {"step": order.step, "kind": order.kind, "save": order.save, "tokens": order.tokens}
    return write_arrays(order.arrays, {"order": json.dumps(facts)})


def read_order(path: Path) -> Order:
    """Read what `write_order` wrote to a file. ValueError if it is torn."""
    arrays, facts = read_arrays(path)
    return Order(arrays=arrays, **json.loads(facts["order"]))


def write_arrays(arrays: dict[str, np.ndarray], facts: dict[str, str] | None = None) -> bytes:
    """Write arrays as a safetensors file, with a digest of them: a file with a hole in it is not taken for whole."""
    from safetensors.numpy import save

    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return save(arrays, (facts or {}) | {"digest": _digest(arrays)})


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read what `write_arrays` wrote to a file: arrays and facts. ValueError if it is torn."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if facts.get("digest") != _digest(arrays):
        raise ValueError("its content is not what was written")
    return arrays, facts


def _digest(arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
