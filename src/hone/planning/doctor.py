"""`hone doctor`: looks at the machine for what breaks or slows runs, and names the command that mends it.

A check yields (name, status, text) or (name, status, text, fix): what was looked at, `ok`, `warning` or `error`, how it
is, and the command that mends it. This module needs the standard library only, for packages may be missing; they are
imported in processes of their own, for a broken one may crash or hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hone

if TYPE_CHECKING:
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig

OLDEST = (3, 11)
"""Version of Python."""
SECONDS = 40.0
"""The most that an import may take: torch from a slow disk, say."""
NETWORK_SECONDS = 5.0
"""The most that a question to another machine may take."""
CHECKOUT = Path(hone.__file__).resolve().parents[2]
IMPORTED = ("numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "datasets", "scipy", "pydantic", "rich")
"""Packages with parts that are compiled, which break when versions are mixed; torch has a check of its own."""
TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
gpus = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in range(count)]
print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip, gpus]))
"""
HUB = """
import contextlib, urllib.error, urllib.request
with contextlib.suppress(urllib.error.HTTPError):  # it answers
    urllib.request.urlopen({!r})
"""
MIB, GIB = 2**20, 2**30

Rows = Iterator[tuple[str, ...]]


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    area: str
    name: str
    status: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Subject:
    """What is looked at: the machine and, if there is one, the run of `config`; `offline` asks no other machine."""

    offline: bool = False
    config: RLConfig | SFTConfig | None = None


def diagnose(subject: Subject, areas: Iterable[str] = ()) -> list[Finding]:
    """Return the findings of these areas, by default of all that apply."""
    if sys.version_info < OLDEST:  # the others would only find what follows from that
        areas = ["python"]
    findings = []
    for area in areas or CHECKS:
        try:
            findings += [Finding(area, *row) for row in CHECKS[area](subject)]
        except Exception as error:
            findings.append(Finding(area, "check", "warning", f"could not be done ({type(error).__name__}: {error})"))
    return findings


def verdict(findings: Iterable[Finding], following: str) -> str:
    """Return the last line: how many errors and warnings, and what to do now."""
    findings = list(findings)
    counts = {status: sum(f.status == status for f in findings) for status in ("error", "warning")}
    words = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
    if counts["error"]:
        return f"{' and '.join(words)}: mend what is an error, then run `hone doctor` again."
    return f"{'Ready, with ' + words[0] if words else 'Ready'}. Next: {following}"


def lines(findings: Iterable[Finding], width: int) -> Iterator[tuple[str, str]]:
    """Yield (status, line) of the report, wrapped to `width`; a heading has the status ""."""
    findings = list(findings)
    names = max((len(f.name) for f in findings), default=0)
    indent = " " * (2 + 9 + names + 2)
    for area in dict.fromkeys(f.area for f in findings):
        yield "", area
        for f in (f for f in findings if f.area == area):
            wrapped = textwrap.wrap(f.text, max(width - len(indent), 40), break_on_hyphens=False) or [""]
            yield f.status, f"  {f.status:<9}{f.name:<{names}}  {wrapped[0]}"
            yield from ((f.status, indent + line) for line in wrapped[1:])
            if f.fix:  # not wrapped: it is there to be pasted
                yield "fix", f"{indent}{'mend it' if f.status != 'ok' else 'if wanted'}: {f.fix}"


def python(subject: Subject) -> Rows:
    version = platform.python_version()
    if sys.version_info < OLDEST:
        yield "version", "error", f"{version}; hone needs 3.11 or newer", "python3.11 -m venv .venv"
    else:
        yield "version", "ok", f"{version}, {sys.executable}"
    own = sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX") == sys.prefix
    problem = "others use and change these packages"
    fix = "make install   # makes .venv in a checkout of hone"
    yield _judge("environment", own, sys.prefix, problem, fix)
    yield "hone", "ok", f"{hone.__version__}, from {Path(hone.__file__).parent}"


def packages(subject: Subject) -> Rows:
    """Look at what hone requires: whether it is there, new enough, and can be imported."""
    try:
        required = [text for text in metadata.requires("hone-rl") or [] if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        import tomllib

        required = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    wrong = {}
    for text in required:
        name, bounds = re.sub(r"^([\w.-]+)(\[.*?\])?\s*([^;]*).*", r"\1 \3", text).split(" ", 1)
        version, fits = installed_version(name), True
        with contextlib.suppress(ImportError):  # without it, that a version is there has to do
            from packaging.specifiers import SpecifierSet

            fits = version is None or SpecifierSet(bounds).contains(version, prereleases=True)
        if version is None or not fits:
            wrong[f"{name}{bounds}"] = f"{name} {version or 'is missing'}"
    if wrong:
        text = f"{len(wrong)} of {len(required)} are missing or of a wrong version: {', '.join(wrong.values())}"
        yield "required", "error", text, install_command(*wrong)
    else:
        yield "required", "ok", f"all {len(required)} are there, in versions that hone takes"
    there = {name: f"import {name}" for name in IMPORTED if util.find_spec(name) is not None}
    for name, (_out, problem) in run_apart(there).items():
        if problem:
            again = install_command("--force-reinstall", "--no-deps", name)
            yield name, "error", f"is installed, but can't be imported: {problem}", again


def installed_version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def install_command(*packages: str) -> str:
    """Return what installs these with this Python, within the pinned versions where hone's checkout has them."""
    program = [sys.executable, "-m", "pip", "install"]
    if util.find_spec("pip") is None:
        program = ["uv", "pip", "install", "--python", sys.executable]
    constraints = CHECKOUT / "constraints.txt"
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    return shlex.join([*program, *pins, *packages])


def has_gpu_driver() -> bool:
    """Return True if a driver of NVIDIA's is loaded."""
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvidiactl"))


def run_apart(programs: Mapping[str, str], seconds: float | None = None) -> dict[str, tuple[str, str]]:
    """Run each program in a Python of its own, side by side; return what each printed, and what went wrong or ""."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    children = {
        name: subprocess.Popen([sys.executable, "-c", code], **pipes, text=True, env=env)
        for name, code in programs.items()
    }
    results, seconds = {}, seconds or SECONDS
    deadline = time.monotonic() + seconds
    for name, child in children.items():
        try:
            out, errors = child.communicate(timeout=max(0.1, deadline - time.monotonic()))
            problem = "" if child.returncode == 0 else (errors.strip().splitlines() or ["it ends the interpreter"])[-1]
        except subprocess.TimeoutExpired:
            child.kill()
            out, problem = "", f"no answer within {seconds:.0f} s"
        results[name] = out, problem
    return results


def device(subject: Subject) -> Rows:
    """Look at torch, and at the GPUs that it finds or doesn't."""
    out, problem = run_apart({"torch": TORCH})["torch"]
    if problem:
        yield "torch", "error", f"can't be imported: {problem}", install_command("torch>=2.11")
        return
    version, build, gpus = json.loads(out.splitlines()[-1])
    yield "torch", "ok", f"{version}, a build for {f'CUDA {build}' if build else 'CPUs'}"
    for index, (name, free, total) in enumerate(gpus):
        text = f"{name}, {size(total)}, {size(free)} free"
        fix = "CUDA_VISIBLE_DEVICES=…   # another one; or end the process that nvidia-smi names"
        yield _judge(f"GPU {index}", total - free <= GIB, text, f"{size(total - free)} are taken by others", fix)
    if gpus:
        return
    if not has_gpu_driver():
        yield "GPU", "ok", f"none that hone uses: it runs on the CPU ({platform.machine()})"
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield "GPU", "ok", "CUDA_VISIBLE_DEVICES hides all: hone uses the CPU", "unset CUDA_VISIBLE_DEVICES"
    elif not build:
        text = "there is one, but this torch is a build for CPUs: runs would leave it unused"
        yield "GPU", "error", text, install_command("--force-reinstall", "torch>=2.11")
    else:
        fix = "nvidia-smi   # does the driver answer, and is it new enough? In a container: docker run --gpus all"
        yield "GPU", "error", f"there is one, but this torch (CUDA {build}) can't use it", fix


def threads(subject: Subject) -> Rows:
    """Look at cores and OMP_NUM_THREADS."""
    cores = os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quota, _, period = _text(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    share = max(1, int(quota) // int(period)) if quota.isdigit() else own
    text = f"{own} for this process" + (f", of {cores} of the machine" if own < cores else "")
    problem = f"the container may use {share}, and with a thread on each they wait for each other"
    yield _judge("cores", share >= own, text, problem, f"--threads {share}")
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    fits = not named or (named.isdigit() and 0 < int(named) <= own)
    text = named or "not set: hone chooses (1 for a model under 10M parameters)"
    yield _judge("OMP_NUM_THREADS", fits, text, f"this process has {own} cores", f"export OMP_NUM_THREADS={own}")


def memory(subject: Subject) -> Rows:
    from hone.planning.devices import ram

    total, free = ram()
    problem = "the quickstart takes 0.8 GiB, a model of 0.6B parameters about 12"
    fix = "ps aux --sort=-rss | head   # who has it?"
    yield _judge("RAM", free >= 2 * GIB, f"{size(free)} free of {size(total)}", problem, fix)


def disk(subject: Subject) -> Rows:
    """Look at where runs, models and temporary files go: rights and room."""
    output = subject.config.output_dir if subject.config else Path("outputs")
    for name, folder, elsewhere in (
        ("output", output, f"--output-dir ELSEWHERE   # {output} can't be used"),
        ("hub cache", hub_cache(os.environ), "export HF_HOME=/somewhere/with/room"),
        ("temporary", Path(tempfile.gettempdir()), "export TMPDIR=/somewhere/with/room"),
    ):
        there = folder.absolute()
        there = next(path for path in (there, *there.parents) if os.path.lexists(path))
        if not there.is_dir():
            yield name, "error", f"{there} is a file, where a folder is needed", elsewhere
            continue
        usage = shutil.disk_usage(there)
        text = f"{folder}: {size(usage.free)} free of {size(usage.total)}"
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            yield name, "error", f"{text}: can't be written ({error.strerror})", elsewhere
            continue
        yield _judge(name, usage.free >= 5 * GIB, text, "enough for tiny models only", elsewhere)


def system(subject: Subject) -> Rows:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited, value = resource.RLIM_INFINITY, 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    text = "no limit" if now == unlimited else f"{now:,}"
    problem = "a run with workers and a server needs more"
    yield _judge("open files", now == unlimited or now >= 1024, text, problem, f"ulimit -n {value}")


def ports(subject: Subject) -> Rows:
    """Look at the port of the server."""
    inference = getattr(subject.config, "inference", None)
    if subject.config is not None and inference is None:  # SFT has no server
        return
    port, flag = (inference.port, "--inference.port") if inference else (8000, "--port")
    with socket.socket() as probe, socket.socket() as free:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        try:
            probe.bind(("127.0.0.1", port))
            yield "server", "ok", f"{port} is free"
        except OSError as error:
            yield "server", "warning", f"{port} can't be used ({error.strerror})", f"{flag} {free.getsockname()[1]}"


def sandbox(subject: Subject) -> Rows:
    """Make a sandbox once."""
    from hone.errors import UserError
    from hone.grading.sandbox import Sandbox

    problem, fix = "", "sudo apt-get install bubblewrap   # or: sudo dnf install bubblewrap"
    try:
        ran = Sandbox().run("print(6 * 7)")
        problem = "" if ran.output == "42\n" else f"it ran, but printed {ran.output!r} ({ran.status})"
    except UserError as error:
        problem, _, remedy = str(error).partition(" Remedy: ")
        problem, fix = problem.partition("; isolation")[0], remedy.partition(". isolation")[0] or fix
    text = problem or "works: code of a model can be run apart"
    yield _judge("bubblewrap", not problem, text, "only tasks that run code need it", fix)


def hub(subject: Subject) -> Rows:
    """Look at whether the Hugging Face hub answers."""
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        yield "access", "ok", "HF_HUB_OFFLINE is set: only what is in the cache can be used", "unset HF_HUB_OFFLINE"
    elif subject.offline:
        yield "access", "ok", "not asked (--offline)"
    elif problem := run_apart({"hub": HUB.format(url)}, NETWORK_SECONDS)["hub"][1]:
        text = f"{url} can't be reached ({problem}): tasks that are made here, and models in folders, work without it"
        fix = "export HTTPS_PROXY=http://PROXY:PORT   # without a network: export HF_HUB_OFFLINE=1"
        yield "access", "warning", text, fix
    else:
        yield "access", "ok", f"{url} answers"


def hub_cache(env: Mapping[str, str]) -> Path:
    """Return where the hub's models and data are."""
    home = env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(env.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def wandb(subject: Subject) -> Rows:
    """Look at whether a run that asks for W&B would be logged in."""
    wanted = subject.config.wandb if subject.config else None
    mode = (wanted and wanted.mode) or os.environ.get("WANDB_MODE", "online")
    if installed_version("wandb") is None:
        if wanted:
            text = "the run asks for it (wandb), but the package is not installed"
            yield "login", "error", text, install_command("wandb")
    elif mode in ("offline", "disabled", "dryrun"):
        yield "login", "ok", f"not needed: mode {mode}"
    elif os.environ.get("WANDB_API_KEY") or "wandb" in _text(Path(os.environ.get("NETRC") or "~/.netrc").expanduser()):
        yield "login", "ok", "a key is there"
    else:
        text = "the run asks for it, and nobody is logged in" if wanted else "nobody is logged in; needed for --wandb"
        yield "login", "error" if wanted else "ok", text, "wandb login   # or --wandb.mode offline"


def run(subject: Subject) -> Rows:
    """Look at what the config's run needs: its model, its task or data, room for what it writes. Asks no hub."""
    config = subject.config
    if config is None:
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    from hone.config.rl import RLConfig
    from hone.environments.loading import configured
    from hone.errors import UserError
    from hone.model.files import is_hub_id
    from hone.planning.advice import disk_needed, free_disk, missing
    from hone.planning.shape import Shape

    name, absent = config.model.name, missing(config)
    for what, text in absent.items():
        yield what, "error", text
    cached = hub_cache(os.environ) / f"models--{name.replace('/', '--')}"
    if is_hub_id(name) and not any(cached.glob("snapshots/*/*.safetensors")):
        yield "model", "warning", f"{name} is not in the hub's cache: the run fetches it", f"hf download {name}"
    with contextlib.suppress(UserError):  # without a model there is nothing to measure
        shape = Shape.of(name, config.model.init)
        yield "model", "ok", f"{name}: {shape.parameters / 1e6:,.1f}M parameters"
        needs, free = disk_needed(config, shape), free_disk(config.output_dir)
        text = f"{size(needs)} for what it saves; {size(free)} are free"
        yield _judge(
            "disk", needs <= free, text, "that is too little", "--ckpt.keep-last 2   # or another --output-dir"
        )
    task = config.orchestrator.env if isinstance(config, RLConfig) else config.data.env
    if task is not None and "task" not in absent:
        try:
            env = configured(task.id, task.args, task.template, "env.template")
            yield "task", "ok", f"{task.id}: {len(env.split('train')):,} training examples"
        except UserError as error:
            text = f"{task.id} loads, but its data are not here ({error})"
            yield "task", "warning", text, f"hone audit {task.id}   # fetches them"


def _judge(name: str, good: bool, text: str, problem: str, fix: str) -> tuple[str, ...]:
    """Return `text` as ok, or as a warning with what is wrong and what mends it."""
    return (name, "ok", text) if good else (name, "warning", f"{text}: {problem}", fix)


def size(count: float) -> str:
    """Return bytes in a fitting unit: `512 MiB`, `1.3 GiB`, `138 GiB`."""
    gib = count / GIB
    return f"{gib:,.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB" if abs(gib) >= 1 else f"{count / MIB:.0f} MiB"


def _text(path: Path) -> str:
    """Return what a file holds; "" if it can't be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


CHECKS: dict[str, Callable[[Subject], Rows]] = {
    check.__name__: check
    for check in (python, packages, device, threads, memory, disk, system, ports, sandbox, hub, wandb, run)
}
