"""Origin of a run: code revision, package versions, hardware, ranks; and the command to resume it."""

from __future__ import annotations

import functools
import os
import platform
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import hone
from hone import digests
from hone.errors import UserError
from hone.runs.budget import Spent
from hone.runs.view import CONFIG

NUMERICS = 6
"""Incremented when a change of hone may change a run's bytes, or results computed from them; run.json records it.

1 hone 0.1 2 hone 0.2: top_p is applied after top_k; how a math answer is found; intervals of evaluations; a sample
whose grader was killed is graded again; bf16 products of a CPU without AVX-512; `eval/ENV/exact` is `eval/ENV/correct`
3 the vocabulary head is one function, whose gradient products are in the step's precision; gradients of bf16 weights
are summed in fp32; several ranks reduce gradients once a step 4 standard deviations of rewards divide by n - 1, plus
1e-4; tokens are weighed before their losses are summed 5 a function of `completions` gets its group; numbers of
mathematics are compared exactly; special tokens in texts of data are text; thoughts and weights of SFT messages; a KL
or entropy term trains groups of equal rewards; a KL in the reward comes before baseline and scale; reinforce++
normalises over tokens; intervals of shares; the end of schedules 6 on a CPU: the head from packed weights in training,
queries of a shared prompt once; the default precision without products in bf16 is fp32; on a GPU: the head's cache,
fused kernels, sampling with an adapter
"""
_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "safetensors", "pyarrow")


def now(ago: float = 0.0) -> str:
    """Return the time `ago` seconds before now: ISO 8601, in UTC, to the second."""
    return (datetime.now(UTC) - timedelta(seconds=ago)).isoformat(timespec="seconds")


def new_id() -> str:
    """Return a readable, unique id that sorts by time. Equal runs have different ids."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def git() -> dict[str, Any] | None:
    """Return the git `revision` of the current directory, and `dirty` if tracked files differ; None without git."""
    command = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]  # REVISION or REVISION-dirty
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    revision, _, dirty = done.stdout.strip().partition("-")
    return {"revision": revision, "dirty": bool(dirty)}


def numerics(info: Mapping[str, Any]) -> Any:
    """Return NUMERICS of a run.json; 1 if it is missing (older runs)."""
    return info.get("numerics", 1)


def other_numerics(info: Mapping[str, Any]) -> str | None:
    """Return why the steps of a run with other NUMERICS can't be repeated by this hone; else None."""
    made = numerics(info)
    return None if made == NUMERICS else f"made under numerics {made}, this is {NUMERICS}"


def refuse_other_numerics(info: Mapping[str, Any], folder: Path) -> None:
    """Raise UserError, naming the hone to use, if NUMERICS of the run in `folder` differ from this hone's."""
    if (problem := other_numerics(info)) is None:
        return
    version = (info.get("versions") or {}).get("hone-rl") or "that began it"
    git = info.get("git")
    source = f", git revision {git['revision']}" if git else ""
    raise UserError(
        f"{folder} was {problem}: a resume would make the run inexact. Go on with hone {version}"
        f"{source} (check it out and run make install), or leave out --resume to begin anew"
    )


def versions() -> dict[str, str | None]:
    """Return versions of packages that can change a run's numbers; None if a package isn't installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "hone-rl": hone.__version__}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


@functools.cache
def code() -> str:
    """Return the SHA-256 over hone's source files, because an edit doesn't change the version number."""
    return digests.of_source(Path(hone.__file__).parent)


def hardware() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    cpu = models[0] if models else platform.processor() or platform.machine()
    facts: dict[str, Any] = {"cpu": cpu, "cores": cores, "memory_gib": memory, "gpu": None}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpu"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def variables() -> dict[str, str]:
    """Return the environment variables that select kernels. Other kernels round differently."""
    prefixes = ("ATEN_", "CUBLAS_", "DNNL_", "MKL_", "NVIDIA_TF32_", "ONEDNN_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def threads() -> int | None:
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


def most_ranks(info: Mapping[str, Any]) -> int:
    """Return the largest number of ranks that trained a step of the run; rolled-back steps don't count."""
    parts = [(0, info.get("ranks", 1))]
    for resume in info.get("resumes", []):
        parts = [part for part in parts if part[0] < resume["step"]] + [(resume["step"], resume.get("ranks", 1))]
    return max(ranks for _, ranks in parts)


def resume_command(folder: Path, info: Mapping[str, Any], *more: str) -> str:
    """Return the command to resume a run: `hone rl @ outputs/config.toml --resume`, or torchrun for SFT on ranks."""
    ranks = ranks_of(info)
    program = ["hone", info["kind"]]
    if ranks > 1 and info["kind"] == "sft":
        program = ["torchrun", "--nproc-per-node", str(ranks), "-m", "hone.trainer.sft"]
    return shlex.join([*program, "@", str(folder / CONFIG), "--resume", *more])


def ranks_of(info: Mapping[str, Any]) -> int:
    return [info, *info.get("resumes", [])][-1].get("ranks", 1)


def larger_budget(limits: Mapping[str, Any], spent: Spent) -> list[str]:
    """Return flags such as `--budget.hours 4`, for twice the budget or, if more, twice what is spent."""
    used = {"hours": spent.seconds / 3600, "usd": spent.usd or 0.0, "tokens": spent.tokens}
    doubled = {name: 2 * max(limits[name], used[name]) for name in used if limits.get(name) is not None}
    words = {name: str(value) if isinstance(value, int) else f"{value:.3g}" for name, value in doubled.items()}
    return [word for name, value in words.items() for word in (f"--budget.{name}", value)]
