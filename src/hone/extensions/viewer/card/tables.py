"""The tables of a run card: settings, costs, checks, commands to repeat it, digests, and measures."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from hone.extension import gathered
from hone.extensions.viewer.card.measures import Change, Level
from hone.runs import settings, summary, view
from hone.runs.files import sha256
from hone.runs.progress import duration
from hone.runs.summary import Summary

Facts = Mapping[str, str | list[str]]
"""Maps a label to a text, or to lines of text. Labels with an empty text are left out."""


def tables(run: Summary, events: list[dict[str, Any]]) -> dict[str, Facts]:
    found: dict[str, Facts] = {"What was run": _about(run), "What it took": _costs(run)}
    if run.kind != "eval":
        found["What was checked"] = _checks(run, events)
    found["To repeat it"] = {"commands": _commands(run), "run": run.info["id"]}
    found["Digests"] = _digests(run)
    return {title: {label: text for label, text in facts.items() if text} for title, facts in found.items()}


def _about(run: Summary) -> Facts:
    info, config = run.info, run.config
    model, parent = config.get("model", ""), info.get("parent")
    data: dict[str, Any] = config.get("data", {})
    args = config.get("env_args") or config.get("orchestrator", data).get("env", {}).get("args")
    whole = [f"{name}={summary.shortened(value)}" for name, value in settings.flat(config).items()]
    return {
        "model": str(model.get("name", "") if isinstance(model, Mapping) else model),
        "task": run.task or "",
        "task arguments": json.dumps(args, ensure_ascii=False) if args else "",
        "examples": info.get("profile", ""),
        "data": "" if run.task else str(data.get("name") or data.get("path") or data.get("run") or ""),
        "settings": ", ".join(whole if run.kind == "eval" else [*summary.settings_in_words(run), "else the defaults"]),
        "seed": str(info["seed"]),
        "parent": f"step {parent['step']} of run {parent['id']}" if parent else "",
        "machine": summary.machine_in_words(info),
        "code": summary.code_in_words(info),
    }


def _costs(run: Summary) -> Facts:
    tokens, usd = run.spent.tokens, run.spent.usd
    return {
        "tokens": f"{tokens:,}, prompts included" if tokens else "",
        "time": duration(run.seconds),
        "cost": "" if usd is None else f"{usd:.2f} USD",
    }


def _checks(run: Summary, events: list[dict[str, Any]]) -> Facts:
    info, path = run.info, run.path
    certificate = summary.certificate_in_words(path)
    again = "" if certificate or not info["exact"] else "; not executed again yet"
    verify = f"none: hone verify {shlex.quote(str(path))} --steps 3 executes random steps again"
    records = gathered("RECORDS", {}).items()
    return {
        "reproducible": [summary.exactness(info) + again],
        "audit of the task": summary.audit_in_words(path),
        "rewards graded again": summary.regraded_in_words(info),
        "alarms": [str(alarm) for alarm in summary.alarms_in(events)] or "none",
        **{name: [" ".join(line.split()) for line in record.in_words(info, path)] for name, record in records},
        "certificate": certificate or verify,
        "resumed": [f"at step {one['step']}, {summary.local_time(one['time'])}" for one in info.get("resumes", [])],
    }


def _digests(run: Summary) -> Facts:
    facts: dict[str, str | list[str]] = {}
    if run.kind != "eval":
        for line in run.files.hashes()[-1:]:
            facts[f"weights of version {line['step']}, fingerprint"] = str(line["weights"])
        facts |= {f"{name}, digest": str(digest) for name, digest in run.info.get("sources", {}).items()}
        facts["settings that decide the numbers, SHA-256"] = settings.digest(run.config)
    files = [run.path / name for name in (view.METRICS, view.HASHES, view.RESULTS)]
    return facts | {f"{file.name}, SHA-256": sha256(file) for file in files if file.is_file()}


def _commands(run: Summary) -> list[str]:
    git, versions, path = run.info.get("git"), run.info["versions"], shlex.quote(str(run.path))
    packages = [f"{name}=={versions[name]}" for name in ("torch", "numpy", "transformers") if versions.get(name)]
    lines = [f"# python {versions.get('python')}, {', '.join(packages)}", summary.typed(run.info["command"])]
    if git:
        lines.insert(0, f"git checkout {git['revision']}" + ("  # and what was changed in it" if git["dirty"] else ""))
    if run.kind != "eval":
        lines.append(f"# or, from the resolved config: hone {run.kind} @ {path}/config.toml")
        lines.append(f"hone verify {path} --steps 3")
    return lines


_NAMES = {
    "reward": "mean reward",
    "correct": "correct (pass@1)",
    "strict reward": "reward, strict",
    "lenient reward": "reward, lenient: skill",
    "reward gap": "lenient minus strict: format",
    "strict": "correct, strict",
    "lenient": "correct, lenient: skill",
    "gap": "lenient minus strict: format",
}
"""Measures in words; pass@k keeps its name."""


def measure_rows(measures: Mapping[str, Change], compared: bool) -> list[list[str]]:
    """Return a table's rows: name, before, after and change; or, if not `compared`, name and value."""
    rows = []
    for name, one in measures.items():
        before, after, share = one.before, one.after, "reward" not in name
        words = [level_words(before, share), level_words(after, share), difference_words(one.difference, share)]
        rows.append([_NAMES.get(name, name), *(words if compared else words[1:2])])
    return rows


def level_words(one: Level, share: bool) -> str:
    """Return a text such as `0.947 (0.935 to 0.959)` or, if `share` is true, `52.3 % (46.1 to 58.4)`."""
    return _words(one, 100, ".1f", " %") if share else _words(one, 1, ".3f")


def difference_words(one: Level, share: bool = False, label: str = "", digits: int = 3) -> str:
    """Return a text such as `+0.534 (LABEL+0.490 to +0.579)`; if `share`, `+48.0 points (LABEL+41.4 to +54.7)`."""
    return _words(one, 100, "+z.1f", " points", label) if share else _words(one, 1, f"+z.{digits}f", "", label)


def _words(one: Level, factor: int, form: str, unit: str = "", label: str = "") -> str:
    mean, *span = (format(factor * value, form) for value in (one.mean, one.low, one.high) if value is not None)
    return f"{mean}{unit}" + (f" ({label}{span[0]} to {span[1]})" if span else "")
