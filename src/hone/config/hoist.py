"""Keys that set other keys: `reward` and `data` (the task), `algorithm`, and top-level keys that sections share.

Shared keys (`model`, `max_steps`, `ckpt`, …) are top-level keys of the RL config, but the file of a role may also set
them, so that this file can be used alone. It is an error if two files disagree. A top-level flag (`--max-steps 5`)
overrides files.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

from hone.config.algorithms import ALGORITHMS
from hone.config.base import Path, Setting, Settings, dotted, flag, shared_keys
from hone.errors import UserError

SERVER_THAT_IS_UP = "http://localhost:8000/v1"
"""URL of the sampler if section files are given, but no file for the section `inference`."""
TASK_KEYS = {
    "reward": "rewards",
    "agent": "agent",
    "agent_command": "agent_command",
    "data": "data",
    "eval_data": "eval_data",
    "reward_weights": "weights",
    "system_prompt": "system_prompt",
    "reference": "reference",
}
"""Top-level keys of a task without a task file → the argument of the task that the key sets."""
NEEDED = ("reward", "agent", "agent_command", "data")
"""A task without a task file needs one of these keys."""
FUNCTIONS = "functions"
"""Id of a task made from reward functions and a data set (hone.environments.functions)."""
ENV = ("orchestrator", "env")
EVAL = ("orchestrator", "eval")
SECTIONS = ("trainer", "orchestrator", "inference")


def task_label(env_id: str, args: Mapping[str, Any]) -> str:
    """Return a task's name: its id, or for a task without a file its first reward function, agent or data file."""
    if env_id != FUNCTIONS:
        return env_id
    rewards = args.get("rewards") or args.get("agent") or ""
    first = str(rewards[0] if isinstance(rewards, list | tuple) else rewards)
    command = PurePath(next((word for word in str(args.get("agent_command") or "").split() if "." in word), "")).stem
    return first.rpartition(":")[2] or command or PurePath(str(args.get("data") or "")).stem or env_id


def task_of_run(kind: str, table: dict[str, Any], template: str) -> dict[str, Any]:
    """Return the task in `table`, the config.toml of a run of `hone KIND`; if it has no task, return `table`.

    `template`: the key of the task's template in the result. Raises UserError if the run has several tasks.
    """
    section = table.get({"rl": "orchestrator", "sft": "data"}.get(kind, ""), {})
    if len(section.get("envs", [])) > 1:
        raise UserError("the run has several tasks: name one of them, and give its arguments with -a")
    env = section.get("env", {})
    found = {"env": env.get("id"), "env_args": env.get("args"), template: env.get("template")}
    return {name: value for name, value in found.items() if value} if found["env"] else table


def compose(settings: Settings, cls: type[BaseModel]) -> dict[str, Any]:
    """Merge settings into one tree. Section files set mode split; without a file for `inference`, a server must run."""
    tree, files = hoist(settings, cls).tree(), settings.section_files
    if any(section in SECTIONS for section in files) and tree.setdefault("mode", "split") == "split":
        client = tree.setdefault("orchestrator", {}).setdefault("client", {})
        if "inference" in files and client.get("base_url"):
            raise UserError(
                "--inference @ FILE starts a server, but orchestrator.client.base_url names a running server: leave "
                "out one of the two (the started server listens at inference.port)"
            )
        if "inference" not in {*files, *(path[0] for path in settings)}:
            client.setdefault("base_url", SERVER_THAT_IS_UP)
    return tree


def hoist(settings: Settings, cls: type[BaseModel]) -> Settings:
    """Move sections' shared keys to the top level; ignore a key set to null. Raises UserError if two values differ."""
    name_task(settings)
    name_algorithm(settings)
    shared = shared_keys(cls)
    flagged = [
        path for path, setting in settings.items() if path[0] in shared and setting.is_flag and setting.value != {}
    ]
    hoisted, claims = Settings(), dict[Path, Path]()
    for path, setting in settings.items():
        key = path
        if path[0] in SECTIONS and len(path) > 1 and path[1] in shared:
            key = path[1:]
            if (setting.is_off and len(key) == 1) or any(key[: len(above)] == above for above in flagged):
                continue
        if key[0] in shared:
            place = claims.setdefault(key, path)
            first, second = settings[place].value, setting.value
            if str(first) != str(second):  # as text: a flag's value is not yet typed
                raise UserError(
                    f"{dotted(place)} = {first!r}{settings.origin(place)} and {dotted(path)} = {second!r}"
                    f"{settings.origin(path)} disagree: set {dotted(key)} once, at top level, or override both with "
                    f"{flag(key)}"
                )
        hoisted.put(key, setting)
    return hoisted


def name_algorithm(settings: Settings) -> None:
    """Set the algorithm's keys that are unset. If a flag names the algorithm, its keys also override files."""
    named = settings.get(("algorithm",))
    if named is None or named.is_off:
        return
    keys = ALGORITHMS.get(str(named.value), {})
    kind = settings.get(("trainer", "loss", "type"))
    if kind is not None and (kind.is_flag or not named.is_flag) and kind.value != keys.get("trainer.loss.type"):
        bounds = dict.fromkeys(("trainer.loss.eps_low", "trainer.loss.eps_high"))  # the type's defaults
        keys = keys | bounds if keys else keys
    for key, value in keys.items():
        path = tuple(key.split("."))
        known = settings.get(path)
        if known is None or (named.is_flag and not known.is_flag):
            settings.put(path, Setting(value, named.source))


def name_task(settings: Settings) -> None:
    """Replace the task's id by the task that `reward` and `data` describe, unless a flag sets another id.

    `eval_data` turns evaluation on. Raises UserError if flags set both tasks, or if a value is not a text.
    """
    given = {name: setting for name in TASK_KEYS if (setting := settings.pop((name,), None))}
    for name, kind, objects in (
        ("reward", "takes MODULE:FUNCTION, or a list of them", "functions as reward_funcs"),
        ("data", "takes a file, a folder or a hub id", "rows as dataset"),
    ):
        value = given[name].value if name in given else None
        several = value if name == "reward" and isinstance(value, list) else [value]
        if not all(isinstance(one, str | PurePath | None) for one in several):
            raise UserError(f"{name} {kind}; from Python, pass {objects}")
    task = settings.get((*ENV, "id"), Setting(FUNCTIONS))
    if task.value != FUNCTIONS and given and not given.keys() & set(NEEDED):
        name = next(iter(given))
        raise UserError(
            f"{name} is for a task of reward functions, but the task is {task.value}: add {flag(('reward',))} and "
            f"{flag(('data',))}, or set arguments of this task in orchestrator.env.args"
        )
    if task.is_flag and task.value != FUNCTIONS:
        if any(setting.is_flag for setting in given.values()):
            raise UserError("the task is set twice: leave out --orchestrator.env.id, or --reward, --agent and --data")
        return
    given = {(*ENV, "args", TASK_KEYS[name]): setting for name, setting in given.items() if not setting.is_off}
    if not given:
        return
    for path in [path for path, setting in settings.items() if path[:2] == ENV and not setting.is_flag]:
        if task.value != FUNCTIONS:
            del settings[path]  # arguments of the other task
    settings.put((*ENV, "id"), Setting(FUNCTIONS))
    if (*ENV, "args", "eval_data") in given and not any(path[:2] == EVAL for path in settings):
        settings.put(EVAL, Setting({}))
    rewarding = [(*ENV, "args", name) for name in ("rewards", "agent", "agent_command")]
    if any(path in given and given[path].is_flag for path in rewarding):  # the flags override files
        for found, path in itertools.product((given, settings), rewarding):
            if path in found and not found[path].is_flag:
                del found[path]
    for path, setting in given.items():
        if path[-1] == "weights":
            setting = setting._replace(value=_numbers(setting.value))
        if path[-1] == "rewards" and isinstance(setting.value, str):
            setting = setting._replace(value=[setting.value])
        settings.put(path, setting)


def _numbers(value: Any) -> list[float]:
    try:
        return [float(one) for one in (value if isinstance(value, list) else [value])]
    except (TypeError, ValueError):
        raise UserError(f"reward_weights is {value!r}; it takes numbers, one per function, such as 1.0 0.5") from None
