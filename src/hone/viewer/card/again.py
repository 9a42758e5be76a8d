"""How to have a run again: its command, its config, and the hashes by which to tell that it is the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hone.runs import Run
from hone.runs.files import sha256
from hone.runs.settings import digest
from hone.runs.summary import Summary
from hone.runs.words import typed


@dataclass(frozen=True)
class Again:
    """`commands` to paste; `hashes`, (name, value); `config`, the resolved config as TOML."""

    commands: str = ""
    hashes: tuple[tuple[str, str], ...] = ()
    config: str = ""


def of(run: Summary) -> Again:
    """Of a run or an evaluation."""
    file = run.path / "config.toml"
    config = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    return Again("\n".join(_commands(run)), tuple(_hashes(run, config)), config)


def _commands(run: Summary) -> Iterator[str]:
    git, versions = run.info.get("git"), run.info["versions"]
    if git:
        yield f"git checkout {git['revision']}" + ("  # and what was changed in it" if git["dirty"] else "")
    if git and (files := run.info.get("untracked")):
        has = "is" if len(files) == 1 else "are"
        yield f"# git does not track {' and '.join(files)}, which {has} in no revision: keep a copy"
    packages = [f"{name}=={versions[name]}" for name in ("torch", "numpy", "transformers") if versions.get(name)]
    if packages:
        yield f"# python {versions.get('python')}, " + ", ".join(packages)
    yield typed(run.info["command"])
    if run.kind != "eval":
        yield f"# or, from the resolved config: hone {run.kind} @ {shlex.quote(str(run.path / 'config.toml'))}"
        yield f"hone verify {shlex.quote(str(run.path))} --steps 3"


def _hashes(run: Summary, config: str) -> Iterator[tuple[str, str]]:
    if run.kind == "eval":
        if (results := run.path / "results.jsonl").is_file():
            yield "results.jsonl, SHA-256", sha256(results)
        return
    yield "run", run.info["id"]
    for line in Run(run.path).hashes()[-1:]:
        yield f"weights of version {line['step']}, fingerprint", str(line["weights"])
    if task := run.info.get("sources", {}).get("environment"):
        yield "the task's file, SHA-256", str(task)
    if config:
        yield "settings that decide the numbers, SHA-256", digest(run.config)
    yield from _files(run.path)


def _files(path: Path) -> Iterator[tuple[str, str]]:
    for name in ("metrics.jsonl", "hashes.jsonl"):
        if (path / name).is_file():
            yield f"{name}, SHA-256", sha256(path / name)
