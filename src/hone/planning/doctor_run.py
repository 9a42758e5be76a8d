"""What a config's run needs: its model, its task or data, room for what it writes.

The work is done in a child (this module as a program), for it loads the task and what it imports; the hub is not asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hone.planning.doctor import Finding, Subject, gib, hub_cache

_SECONDS = 35.0


def of_config(subject: Subject) -> Iterator[Finding]:
    """Nothing without a config."""
    if subject.config is None:
        return
    from hone.config.dump import to_toml

    env = dict(subject.env) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-m", "hone.planning.doctor_run", subject.kind]
    try:
        text = to_toml(subject.config)
        done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        yield Finding("run", "config", "warning", f"model and task could not be loaded within {_SECONDS:.0f} s")
        return
    for line in done.stdout.splitlines():
        if line.startswith('{"area": '):  # not what the task has printed
            yield Finding(**json.loads(line))
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [""])[-1]
        yield Finding("run", "config", "error", f"can't be looked at: {said[:200]}")


def _examine(kind: str, table: dict[str, Any]) -> Iterator[Finding]:
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig

    config = (RLConfig if kind == "rl" else SFTConfig).model_validate(table)
    yield from _model(config)
    task = config.orchestrator.env if isinstance(config, RLConfig) else config.data.env
    if task is not None:
        yield from _task(task, kind)
    elif isinstance(config, SFTConfig) and config.data.path is not None:
        yield _file(config.data.path)
    elif isinstance(config, SFTConfig):
        yield Finding("run", "data", "ok", f"{config.data.name}: is fetched from the hub if it is not in its cache")


def _model(config: Any) -> Iterator[Finding]:
    """Whether it is here, and whether there is room for its checkpoints."""
    from hone.errors import UserError
    from hone.model.files import TINY, is_hub_id
    from hone.planning.arithmetic import checkpoints_kept
    from hone.planning.memory import checkpoint_bytes, weight_bytes
    from hone.planning.shape import Shape

    name = config.model.name
    if is_hub_id(name) and not _cached(name):
        yield Finding(
            "run", "model", "warning", f"{name} is not in the hub's cache: the run fetches it", f"hf download {name}"
        )
    elif name != TINY and not is_hub_id(name) and not Path(name).is_dir():
        what = (
            "hone sft @ …   # makes it?"
            if "weights/step_" in name
            else f"hone init-model {name}   # or another --model.name"
        )
        yield Finding("run", "model", "error", f"there is no folder {name}", what)
        return
    try:
        shape = Shape.of(name, config.model.init)
    except UserError as error:
        if not is_hub_id(name):
            yield Finding("run", "model", "error", str(error))
        return
    if _cached(name) or not is_hub_id(name):
        yield Finding("run", "model", "ok", f"{name}: {shape.parameters / 1e6:,.1f}M parameters")
    kept = max(1, checkpoints_kept(config)) if config.ckpt else 1
    each = weight_bytes(shape, config.precision) + (checkpoint_bytes(shape, config.precision) if config.ckpt else 0)
    yield _room(config.output_dir, kept * each, kept)


def _cached(name: str) -> bool:
    return any((hub_cache(os.environ) / f"models--{name.replace('/', '--')}").glob("snapshots/*/*.safetensors"))


def _room(folder: Path, needed: int, versions: int) -> Finding:
    import shutil

    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    text = f"{gib(needed)} for {versions} saved version{'s' if versions > 1 else ''}; {gib(free)} are free at {there}"
    if needed > free:
        return Finding("run", "disk", "error", text, "--ckpt.keep-last 2   # or another --output-dir")
    return Finding(
        "run",
        "disk",
        "warning" if needed > 0.8 * free else "ok",
        text,
        "" if needed <= 0.8 * free else "--ckpt.keep-last 2",
    )


def _task(task: Any, kind: str) -> Iterator[Finding]:
    from hone.environments.loading import configured
    from hone.errors import UserError

    key = "orchestrator.env" if kind == "rl" else "data.env"
    try:
        env = configured(task.id, task.args, task.template, f"{key}.template")
    except UserError as error:
        yield Finding("run", "task", "error", str(error), f"hone audit {task.id}   # says more")
        return
    try:
        count = len(env.split("train"))
    except UserError as error:
        text = f"{task.id} loads, but its data are not here ({error})"
        yield Finding("run", "task", "warning", text[:300], "hone audit " + task.id + "   # fetches them")
        return
    yield Finding("run", "task", "ok", f"{task.id}: {count:,} training examples")


def _file(path: Path | str) -> Finding:
    if Path(path).expanduser().exists():
        return Finding("run", "data", "ok", str(path))
    return Finding("run", "data", "error", f"data.path {path} does not exist", "--data.path FILE.jsonl")


if __name__ == "__main__":
    import tomllib

    for finding in _examine(sys.argv[1], tomllib.loads(sys.stdin.read())):
        print(json.dumps(finding.record()), flush=True)
