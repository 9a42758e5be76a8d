"""What a run directory holds in the end, and what must not get lost on the way."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from hone.runs.checkpoint import Checkpoints
from hone.runs.files import TMP_PREFIX
from hone.runs.view import LOCK

LOGS = ("metrics.jsonl", "hashes.jsonl")
VERSIONED = ("weights", "checkpoints")
_FREE = ("output_dir", "display")


def fingerprint(run: Path) -> dict[str, str]:
    """SHA-256 by file of what is the same in every exact run."""
    files = [run / name for name in LOGS if (run / name).exists()]
    for pattern in ("rollouts/*", "tokens/*", "evals/*", "weights/**/*", "checkpoints/*/*"):
        files += sorted(file for file in run.glob(pattern) if file.is_file())
    return {str(file.relative_to(run)): sha256(file) for file in files}


def assert_ended_like(run: Path, unbroken: Path, stopped: bool = False) -> None:
    """`run` is complete and, in every byte that exactness covers, the run that was never broken.

    One that was `stopped` on purpose also saved where it stopped: of its versions only the last one is compared.
    """
    mine, wanted = fingerprint(run), fingerprint(unbroken)
    different = [name for name in sorted(mine.keys() | wanted.keys()) if mine.get(name) != wanted.get(name)]
    if stopped:
        last = f"step_{max(intact_checkpoints(unbroken))}"
        different = [name for name in different if name.split("/")[0] not in VERSIONED or last in name]
    assert not different, f"missing, surplus or different: {different}"
    info, like = read_json(run / "run.json"), read_json(unbroken / "run.json")  # a teacher's scores are never exact
    assert (info["status"], info["exact"], info["inexact"]) == ("done", like["exact"], like["inexact"]), info
    assert config(run) == config(unbroken)
    assert steps(run / "timings.jsonl") == steps(unbroken / "timings.jsonl")
    assert not list(run.rglob(f"{TMP_PREFIX}*"))


def everything(folder: Path) -> dict[str, str]:
    """SHA-256 by path of each file in a folder, but for the lock."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != LOCK)
    return {str(file.relative_to(folder)): sha256(file) for file in files}


def is_done(run: Path) -> bool:
    return (run / "run.json").exists() and read_json(run / "run.json")["status"] == "done"


def contents(run: Path) -> dict[tuple[str, int, str], str]:
    """What a run has produced, by (where, step, name), with its SHA-256: whole lines of logs, and whole files."""
    found = {}
    for log in (*LOGS, "timings.jsonl"):
        for line in whole_lines(run / log):
            found[log, json.loads(line)["step"], ""] = hashlib.sha256(line).hexdigest()
    kinds = ("rollouts/step_*", "tokens/step_*", "evals/step_*", "weights/step_*/*")
    for file in (path for kind in kinds for path in run.glob(kind)):
        found[file.relative_to(run).parts[0], _step(file), file.name] = sha256(file)
    for file in sorted(run.glob("checkpoints/step_*/*")):
        found["checkpoints", _step(file), file.name] = sha256(file)
    return found


def assert_nothing_lost(before: dict[tuple[str, int, str], str], run: Path, keep_last: int) -> None:
    """What was there before a resume is there still: in its place if it was kept, else among what was superseded.

    Left out are checkpoints and weights that `keep_last` lets go.
    """
    resumes = read_json(run / "run.json")["resumes"]
    start = resumes[-1]["step"] if resumes else 0  # killed before run.json was there, it begins anew
    places = [contents(place) for place in sorted((run / "superseded").glob("*"))]
    now = contents(run)
    last = sorted(Checkpoints(run / "checkpoints").steps())[-keep_last:]
    for (where, step, name), content in before.items():
        item = where, step, name
        if any(place.get(item) == content for place in places):
            continue
        stays = step <= start if where in VERSIONED else step < start
        if stays and where in VERSIONED and step not in last:
            continue
        assert stays and now.get(item) == content, f"{item} was lost by the resume at step {start}"


def intact_checkpoints(run: Path) -> list[int]:
    """Steps whose checkpoint is there to the last byte. Fails if one that the run's events tell of, unpruned, isn't."""
    checkpoints = Checkpoints(run / "checkpoints")
    steps = [step for path in sorted((run / "checkpoints").glob("step_*")) if (step := _step(path)) is not None]
    for step in steps:
        assert not checkpoints.problems(step), f"checkpoint step_{step} is in its place, but damaged"
    return sorted(steps)


def read_json(path: Path) -> dict:
    return json.loads(path.read_text())


def config(run: Path) -> dict:
    """The config in config.toml, but for where and by which thread it was written, and how it was shown."""
    values = tomllib.loads((run / "config.toml").read_text())
    values["ckpt"].pop("background")
    return {name: value for name, value in values.items() if name not in _FREE}


def whole_lines(path: Path) -> Iterator[bytes]:
    """The lines of a log that end, as bytes."""
    if path.exists():
        yield from (line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n"))


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in whole_lines(path)]


def steps(path: Path) -> list[int]:
    return [line["step"] for line in lines(path)]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _step(path: Path) -> int:
    for name in (path.name, path.parent.name):
        if match := re.match(r"step_(\d+)", name):
            return int(match.group(1))
    raise AssertionError(f"no step in {path}")
