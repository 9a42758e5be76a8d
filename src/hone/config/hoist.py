"""Keys that stand for others: `reward` and `data` for the task, and shared keys that sections accept too.

Shared keys (`model`, `max_steps`, `ckpt`, …) live at the top of the RL config. So each role's file stands alone, and
the three together still mean one thing: what the sections say moves to the top, and files that disagree are an error. A
flag at the top (`--max-steps 5`) overrides them all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from hone.config.schema import Path, dotted, flag
from hone.config.sources import Sources, merge, nest
from hone.errors import UserError

SHARED = ("model", "max_steps", "seq_len", "ckpt", "seed", "output_dir", "precision", "transport")
SERVER_THAT_IS_UP = "http://localhost:8000/v1"
"""Where the sampler is, if files of sections are given, and none for inference."""
FUNCTIONS = "functions"
"""Id of the task that is made of reward functions and a data set (hone.environments.functions)."""
SECTIONS = ("trainer", "orchestrator", "inference")


def compose(sources: Sources) -> dict[str, Any]:
    """One tree from files and flags, shared keys at the top.

    Sections given as files of their own choose split mode; without one for inference, the server is one that is up.
    """
    files, flags = copy.deepcopy(sources.files), copy.deepcopy(sources.flags)
    for name in SHARED:
        for section in SECTIONS:
            if name in flags:
                _drop(files.get(section), name, flags[name])
                _drop(flags.get(section), name, flags[name])
    tree = hoist(merge(files, flags), sources)
    if any(section in SECTIONS for section in sources.section_files):
        tree.setdefault("mode", "split")
        client = tree.get("orchestrator", {}).get("client", {})
        if tree["mode"] == "split" and "inference" in sources.section_files and client.get("base_url"):
            raise UserError(
                "--inference @ FILE starts a server, orchestrator.client.base_url names one that is up: leave out one "
                "of them (inference.port is where the run's own server listens)"
            )
        if tree["mode"] == "split" and "inference" not in tree:
            client = tree.setdefault("orchestrator", {}).setdefault("client", {})
            client.setdefault("base_url", SERVER_THAT_IS_UP)
    return tree


def hoist(tree: dict[str, Any], sources: Sources | None = None) -> dict[str, Any]:
    """`tree` with the sections' shared keys moved to the top; null in a section means that it says nothing.

    Raises UserError if two places give one key different values.
    """
    sources = sources or Sources()
    result = name_task({name: _as_dict(value) for name, value in tree.items()}, sources)
    claims: dict[Path, tuple[Path, Any]] = {}
    for name in SHARED:
        if name in result:
            _claim(claims, (name,), result.pop(name), sources)
        for section in SECTIONS:
            if isinstance(result.get(section), dict):
                value = _as_dict(result[section].pop(name, None))
                if value not in (None, "None"):
                    _claim(claims, (section, name), value, sources)
    for key, (_, value) in claims.items():
        result = merge(result, nest(key, value))
    return result


def name_task(tree: dict[str, Any], sources: Sources) -> dict[str, Any]:
    """Return `tree` with the task that `reward` and `data` describe in the place of the one that it names.

    A flag that names another task goes before files that describe one. UserError if flags do both.
    """
    given = {ours: tree.pop(key, None) for key, ours in (("reward", "rewards"), ("data", "data"))}
    given = {name: value for name, value in given.items() if value not in (None, "None")}
    flagged = _as_dict(_as_dict(sources.flags.get("orchestrator", {})).get("env", {}))
    other = flagged.get("id", FUNCTIONS) != FUNCTIONS
    if other and sources.flags.keys() & {"reward", "data"}:
        raise UserError("--reward and --data say what the task is, and so does --orchestrator.env.id: leave out one")
    if not given or other:
        return tree
    orchestrator = _as_dict(tree.get("orchestrator", {}))
    env = _as_dict(orchestrator.get("env", {}))
    if env.get("id", FUNCTIONS) != FUNCTIONS:
        env = flagged
    if isinstance(rewards := given.get("rewards"), str):
        given["rewards"] = [rewards]
    return tree | {"orchestrator": orchestrator | {"env": env | {"id": FUNCTIONS, "args": env.get("args", {}) | given}}}


def _claim(claims: dict[Path, tuple[Path, Any]], place: Path, value: Any, sources: Sources) -> None:
    """Enter the leaves of `value`, found at `place`, under their keys at the top."""
    for below, leaf in _leaves(value):
        path = place + below
        key = path if path[0] in SHARED else path[1:]
        for other, (other_path, other_leaf) in claims.items():
            shorter = leaf if len(key) < len(other) else other_leaf
            related = key[: len(other)] == other[: len(key)]
            # As text, for a flag's value is not yet typed. An empty section only switches it on: its keys agree.
            if str(leaf) != str(other_leaf) if key == other else related and shorter != {}:
                raise UserError(
                    f"{dotted(other_path)} = {other_leaf!r}{sources.origin(other_path)} and "
                    f"{dotted(path)} = {leaf!r}{sources.origin(path)} disagree: "
                    f"set {dotted(key)} once at the top, or override both with {flag(key)}"
                )
        claims.setdefault(key, (path, leaf))


def _leaves(value: Any, below: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(_as_dict(item), (*below, name))
    else:
        yield below, None if value == "None" else value


def _drop(holder: Any, name: str, over: Any) -> None:
    """Remove from `holder[name]` what `over` sets."""
    if not isinstance(holder, dict) or name not in holder:
        return
    if isinstance(over, dict):
        for key, value in over.items():
            _drop(holder[name], key, value)
    else:
        del holder[name]


def _as_dict(value: Any) -> Any:
    """A config object as the tree of what was set in it; a copy of a dict; anything else as it is."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    return dict(value) if isinstance(value, dict) else value
