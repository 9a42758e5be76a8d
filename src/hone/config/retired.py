"""Keys of older versions and of missing extensions: a run's config.toml has all keys of the version that wrote it."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, NamedTuple

from hone.errors import UserError
from hone.extension import lacking


class Retired(NamedTuple):
    """A retired key. Its `harmless` values in files are dropped; other uses raise UserError with the text `instead`."""

    harmless: tuple[Any, ...]
    instead: str


_SAPO = "sapo always uses its paper's temperatures, 1.0 and 1.05: leave it out"
_PREFIXES = "the server always takes 2,048 prompt tokens at once, and 0.5 GiB for prefixes: leave it out"

RETIRED: dict[str, Retired] = {
    "push_to_hub": Retired(
        ("None",),
        "hone does not push weights: leave this key out, and run `hf upload USER/NAME outputs/weights/step_100`",
    ),
    "orchestrator.refill.cut": Retired(
        (0.0,), "a refill waits for all its rollouts: leave this key out, or use the hone version that began the run"
    ),
    "orchestrator.grading.overlap": Retired(
        (None, "None", False, True),
        "each rollout is graded when it ends, with the same scores: leave this key out",
    ),
    "trainer.loss.tau_positive": Retired((1.0,), _SAPO),
    "trainer.loss.tau_negative": Retired((1.05,), _SAPO),
    "serve.prefill_tokens": Retired((2048,), _PREFIXES),
    "serve.prefix_gib": Retired((0.5,), _PREFIXES),
}
"""Retired keys by dotted name, or by COMMAND.KEY for one command. A section's name stands for all its keys."""
_GONE = "it comes with the extension {} of hone, which is not installed: leave it out"
_ALARMS = "02395552f2895dca9470ffb4793d49665fd319fa7e75e8854df25e22db1e4a2c"
OF_EXTENSIONS: dict[str, Retired] = {
    "report": Retired((True,), _GONE.format("viewer")),
    "audit": Retired((True,), _GONE.format("audit")),
    "predict": Retired(([],), _GONE.format("alarms")),
    "alarms": Retired((_ALARMS,), _GONE.format("alarms")),
    "wandb": Retired((), _GONE.format("trackers")),
    "trackio": Retired((), _GONE.format("trackers")),
    "teacher": Retired((), _GONE.format("services")),
    "cluster": Retired((), _GONE.format("cluster")),
    "inference.dtype": Retired(("auto",), _GONE.format("vllm")),
    "inference.tensor_parallel": Retired((1,), _GONE.format("vllm")),
}
"""Keys of hone's extensions, retired while the extension is missing. For a section, `harmless` has its SHA-256."""


def check_retired(command: str, path: tuple[str, ...], source: str) -> None:
    if (old := retired(command, path)) and not lacks(command, path):
        raise UserError(f"{source or '.'.join(path)}: {old.instead}")


def is_dropped(command: str, path: tuple[str, ...], value: Any, file: str) -> bool:
    """Return True if a file's key is retired and its value harmless. Raises UserError if the value is not harmless."""
    old = retired(command, path)
    if old is not None and value not in old.harmless and digest(value) not in old.harmless:
        raise UserError(f"{'.'.join(path)} is {value!r} in {file}: {old.instead}")
    return old is not None


def digest(section: Any) -> str:
    return sha256(json.dumps(section, sort_keys=True, default=str).encode()).hexdigest()


def lacks(command: str, path: tuple[str, ...]) -> str:
    """If the extension with this key needs a missing extension, say so; else return ""."""
    return next(filter(None, (lacking("KEYS", f"{at}.{path[0].replace('-', '_')}") for at in ("run", command))), "")


def retired(command: str, path: tuple[str, ...]) -> Retired | None:
    names = [part.replace("-", "_") for part in path]
    keys = [".".join(names[:end]) for end in range(len(names), 0, -1)]
    old = RETIRED | OF_EXTENSIONS
    return next((old[at] for key in keys for at in (f"{command}.{key}", key) if at in old), None)


def without_retired(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        name: without_retired(value, (*path, name)) if isinstance(value, dict) else value
        for name, value in table.items()
        if not ((old := RETIRED.get(".".join((*path, name)))) and value in old.harmless)
    }
