"""`hone doctor`: checks the machine for problems that break or slow runs, and prints fixes.

A check yields rows (name, status, text, fix). The status is `ok`, `warning` or `error`; the fix is a command, or "".
This module needs only the standard library, as packages may be missing. Packages are imported in separate processes,
as a broken package may crash or hang.
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
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

import hone
from hone.extensions.planning.devices import size
from hone.hardware import has_gpu_driver
from hone.web import is_local, shown_url

if TYPE_CHECKING:
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig

OLDEST = (3, 11)  # version of Python
SECONDS, NETWORK_SECONDS = 40.0, 5.0
"""Time limits: for an import (of torch from a slow disk, say), and for a request to another machine."""
CHECKOUT = Path(hone.__file__).resolve().parents[2]
IMPORTED = ("numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "datasets", "scipy", "pydantic", "rich")
"""Packages with compiled parts, which break when versions are mixed; torch has a separate check."""
TORCH = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
gpus = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in range(count)]
print(json.dumps([torch.__version__, torch.version.cuda or torch.version.hip, gpus]))
"""
GIB = 2**30

Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Finding:
    area: str
    name: str
    status: str
    text: str
    fix: str = ""


@dataclass(frozen=True)
class Subject:
    """The machine, and the run of `config`, if any. If `offline`, no other machine is contacted."""

    offline: bool = False
    config: RLConfig | SFTConfig | None = None


def diagnose(subject: Subject, areas: Iterable[str] = ()) -> list[Finding]:
    if sys.version_info < OLDEST:  # the others would only find what follows from that
        areas = ["python"]
    findings = []
    for area in areas or CHECKS:
        try:
            findings += [Finding(area, *row) for row in CHECKS[area](subject)]
        except Exception as error:
            findings.append(Finding(area, "check", "warning", f"failed ({type(error).__name__}: {error})"))
    return findings


def verdict(findings: Iterable[Finding], following: str) -> str:
    """Return the last line: numbers of errors and warnings, and the next command."""
    findings = list(findings)
    counts = {status: sum(f.status == status for f in findings) for status in ("error", "warning")}
    words = [f"{n} {status}{'s' if n > 1 else ''}" for status, n in counts.items() if n]
    if counts["error"]:
        return f"{' and '.join(words)}: fix the errors, then run `hone doctor` again."
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
                yield "fix", f"{indent}{'fix it' if f.status != 'ok' else 'if wanted'}: {f.fix}"


def judge(name: str, text: str, problem: str = "", fix: str = "", status: str = "warning") -> Row:
    """Return a row. Without a problem, its status is `ok`; with a problem, it has `status`, the problem and the fix."""
    return (name, status, f"{text}: {problem}" if text else problem, fix) if problem else (name, "ok", text, "")


def check_python(subject: Subject) -> Iterator[Row]:
    version = platform.python_version()
    old = "hone needs 3.11 or newer" if sys.version_info < OLDEST else ""
    yield judge("version", f"{version}, {sys.executable}", old, "python3.11 -m venv .venv", "error")
    isolated = sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX") == sys.prefix
    shared = "" if isolated else "other programs share these packages"
    yield judge("environment", sys.prefix, shared, "make install   # makes .venv in a checkout of hone")
    yield judge("hone", f"{hone.__version__}, from {Path(hone.__file__).parent}")


def check_packages(subject: Subject) -> Iterator[Row]:
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
        yield judge("required", f"all {len(required)} are installed, in versions that hone supports")
    there = [name for name in IMPORTED if util.find_spec(name) is not None]
    with ThreadPoolExecutor() as pool:
        tried = pool.map(run_apart, [f"import {name}" for name in there])
    for name, (_, problem) in zip(there, tried, strict=True):
        if problem:
            again = install_command("--force-reinstall", "--no-deps", name)
            yield judge(name, "is installed, but can't be imported", problem, again, "error")


def installed_version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def install_command(*packages: str) -> str:
    """Return the command that installs packages for this Python, with hone's pinned versions if there are any."""
    program = [sys.executable, "-m", "pip", "install"]
    if util.find_spec("pip") is None:
        program = ["uv", "pip", "install", "--python", sys.executable]
    constraints = CHECKOUT / "constraints.txt"
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    return shlex.join([*program, *pins, *packages])


def run_apart(program: str) -> tuple[str, str]:
    """Run a program in a separate Python. Return (output, problem); the problem is "" if the program succeeds."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, input="", capture_output=True, text=True, env=env, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"no answer within {SECONDS:.0f} s"
    errors = done.stderr.strip().splitlines() or ["it crashes the interpreter"]
    return done.stdout, errors[-1] if done.returncode else ""


def check_device(subject: Subject) -> Iterator[Row]:
    out, problem = run_apart(TORCH)
    if problem:
        yield judge("torch", "can't be imported", problem, install_command("torch>=2.11,<2.15"), "error")
        return
    version, build, gpus = json.loads(out.splitlines()[-1])
    yield judge("torch", f"{version}, a build for {f'CUDA {build}' if build else 'CPUs'}")
    for index, (name, free, total) in enumerate(gpus):
        taken = f"{size(total - free)} are taken by other processes" if total - free > GIB else ""
        fix = "CUDA_VISIBLE_DEVICES=…   # another GPU; or end the process that nvidia-smi names"
        yield judge(f"GPU {index}", f"{name}, {size(total)}, {size(free)} free", taken, fix)
    if gpus:
        return
    if not has_gpu_driver():
        yield judge("GPU", f"none that hone can use: runs use the CPU ({platform.machine()})")
    elif os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield "GPU", "ok", "CUDA_VISIBLE_DEVICES hides all GPUs: hone uses the CPU", "unset CUDA_VISIBLE_DEVICES"
    else:
        problem = f"this torch (CUDA {build}) can't use it" if build else "this torch is a build for CPUs"
        fix = "nvidia-smi   # does the driver answer, and is it new enough? In a container: docker run --gpus all"
        fix = fix if build else install_command("--force-reinstall", "torch>=2.11,<2.15")
        yield judge("GPU", "there is one", problem, fix, "error")


def check_threads(subject: Subject) -> Iterator[Row]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _text(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    share = max(1, int(quota) // int(period)) if quota.isdigit() else usable
    problem = f"the container's limit is {share}: more threads wait for each other"
    yield judge("cores", f"{usable} for this process", problem if share < usable else "", f"--threads {share}")
    named = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    fits = not named or (named.isdigit() and 0 < int(named) <= usable)
    text = named or "not set: hone chooses (1 for a model under 10M parameters)"
    problem = "" if fits else f"this process has {usable} cores"
    yield judge("OMP_NUM_THREADS", text, problem, f"export OMP_NUM_THREADS={usable}")


def check_memory(subject: Subject) -> Iterator[Row]:
    from hone.hardware import ram

    total, free = ram()
    little = "the quickstart takes 0.8 GiB, a model of 0.6B parameters about 12" if free < 2 * GIB else ""
    yield judge("RAM", f"{size(free)} free of {size(total)}", little, "ps aux --sort=-rss | head   # who uses it?")


def check_disk(subject: Subject) -> Iterator[Row]:
    output = subject.config.output_dir if subject.config else Path("outputs")
    for name, folder, elsewhere in (
        ("output", output, f"--output-dir ELSEWHERE   # {output} can't be used"),
        ("temporary", Path(tempfile.gettempdir()), "export TMPDIR=/somewhere/with/room"),
        ("hub cache", hub_cache(), "export HF_HOME=/somewhere/with/room"),
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
            yield judge(name, text, f"can't be written ({error.strerror})", elsewhere, "error")
            continue
        yield judge(name, text, "enough for tiny models only" if usage.free < 5 * GIB else "", elsewhere)


def hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser()


def check_system(subject: Subject) -> Iterator[Row]:
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = "a run with workers and a server needs more" if 0 <= now < 1024 else ""  # -1: no limit
    yield judge(
        "open files", "no limit" if now < 0 else f"{now:,}", few, f"ulimit -n {65536 if most < 0 else min(most, 65536)}"
    )


def check_ports(subject: Subject) -> Iterator[Row]:
    inference = getattr(subject.config, "inference", None)
    if subject.config is not None and inference is None:  # SFT has no server
        return
    first, count, flag = (inference.port, inference.replicas, "--inference.port") if inference else (8000, 1, "--port")
    for port in range(first, first + count):
        with socket.socket() as probe, socket.socket() as free:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", 0))
            try:
                probe.bind(("127.0.0.1", port))
                yield judge("server", f"{port} is free")
            except OSError as error:
                yield "server", "warning", f"{port} can't be used ({error.strerror})", f"{flag} {free.getsockname()[1]}"


def check_sandbox(subject: Subject) -> Iterator[Row]:
    from hone.errors import UserError
    from hone.extensions.sandbox.sandbox import Sandbox

    problem = fix = ""
    try:
        ran = Sandbox().run("print(6 * 7)")
        if ran.output != "42\n":
            problem = f"it printed {ran.output!r} ({ran.status})"
    except UserError as error:
        problem, _, remedy = str(error).partition(". Remedy: ")
        problem, fix = problem.partition("; isolation")[0], remedy.partition(". isolation")[0]
        fix = fix or "sudo apt-get install bubblewrap   # or: sudo dnf install bubblewrap"
    text = problem or "works: a model's code can run isolated"
    yield judge("bubblewrap", text, "only tasks that run code need it" if problem else "", fix)


def check_hub(subject: Subject) -> Iterator[Row]:
    url = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        yield "access", "ok", "HF_HUB_OFFLINE is set: only what is in the cache can be used", "unset HF_HUB_OFFLINE"
    elif subject.offline:
        yield judge("access", "not checked (--offline)")
    else:
        problem = ""
        try:
            proxies = [urllib.request.ProxyHandler({})] if is_local(url) else []
            urllib.request.build_opener(*proxies).open(url, timeout=NETWORK_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except OSError as error:
            problem = f"can't be reached ({error}); generated tasks, and models in folders, work without it"
        fix = "export HTTPS_PROXY=http://PROXY:PORT   # without a network: export HF_HUB_OFFLINE=1"
        yield judge("access", shown_url(url), problem, fix)


def check_wandb(subject: Subject) -> Iterator[Row]:
    wanted = getattr(subject.config, "wandb", None)
    mode = (wanted and wanted.mode) or os.environ.get("WANDB_MODE", "online")
    netrc = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    bad, asks = ("error", "the run needs it") if wanted else ("ok", "only --wandb needs it")
    if mode in ("offline", "disabled", "dryrun"):
        yield judge("login", f"not needed: mode {mode}")
    elif os.environ.get("WANDB_API_KEY") or "wandb" in _text(netrc):
        yield judge("login", "a key was found")
    else:
        yield "login", bad, f"not logged in; {asks}", "wandb login   # or --wandb.mode offline"


def check_run(subject: Subject) -> Iterator[Row]:
    """Check the run's model, task and data, and the free disk space. Contacts no hub."""
    config = subject.config
    if config is None:
        return
    os.environ["HF_HUB_OFFLINE"] = "1"
    from hone.environments.loading import configured
    from hone.errors import UserError
    from hone.extensions.planning.advice import disk_needed, free_disk, missing
    from hone.extensions.planning.data import tasks_of
    from hone.model.fetch import cache_folder, is_fetched
    from hone.model.files import is_hub_id
    from hone.model.shape import shape_of

    name, absent = config.model.name, missing(config)
    for what, text in absent.items():
        yield what, "error", text, ""
    cached = hub_cache() / f"models--{name.replace('/', '--')}"
    if is_hub_id(name) and not any(cached.glob("snapshots/*/*.safetensors")):
        yield "model", "warning", f"{name} is not in the hub's cache: the run fetches it", f"hf download {name}"
    if is_fetched(name) and not cache_folder(name).is_dir():
        fix = f"hone fetch-model {name} {cache_folder(name)}"
        yield "model", "warning", f"{name} is not in hone's cache: the run fetches it", fix
    with contextlib.suppress(UserError):  # without a model there is nothing to measure
        shape = shape_of(name, config.model.init, config.model.implementation)
        yield judge("model", f"{name}: {shape.parameters / 1e6:,.1f}M parameters")
        needs, free = disk_needed(config, shape), free_disk(config.output_dir)
        text, little = f"{size(needs)} for checkpoints and weights; {size(free)} are free", "that is too little"
        fix = "--ckpt.keep-last 2   # or another --output-dir"
        yield judge("disk", text, little if needs > free else "", fix)
    for key, task in ({} if "task" in absent else tasks_of(config)).items():
        try:
            env = configured(task.id, task.args, task.template, key)
            yield judge("task", f"{task.id}: {len(env.split('train')):,} training examples")
        except UserError as error:
            text = f"{task.id} loads, but its data are not here ({error})"
            yield "task", "warning", text, f"hone audit {task.id}   # fetches them"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


CHECKS: dict[str, Callable[[Subject], Iterator[Row]]] = {
    check.__name__.removeprefix("check_"): check
    for check in (
        *(check_python, check_packages, check_device, check_threads, check_memory, check_disk),
        *(check_system, check_ports, check_sandbox, check_hub, check_wandb, check_run),
    )
}
