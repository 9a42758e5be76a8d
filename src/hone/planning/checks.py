"""The checks of `hone doctor`, by area (`CHECKS`, at the end).

Each yields (name, status, text) or (name, status, text, fix): what was looked at, `ok`, `warning` or `error`, how it
is, and the command that mends it. Of a name the last one counts, and one without a text is left out.
"""

from __future__ import annotations

import importlib
import importlib.util
import locale
import math
import netrc
import os
import platform
import re
import resource
import shlex
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

import hone
from hone.planning.doctor import OLDEST, Subject

CHECKOUT = Path(hone.__file__).resolve().parents[2]
IMPORTED = ("numpy", "pyarrow", "tokenizers", "safetensors", "transformers", "datasets", "scipy", "pydantic", "rich")
"""Packages with parts that are compiled, which break when versions are mixed; torch has a check of its own."""
EXTRAS = {
    "wandb": "W&B",
    "trackio": "Trackio",
    "peft": "LoRA in other libraries",
    "ray": "clusters",
    "reasoning-gym": "tasks reasoning-gym:NAME",
    "vllm": "sampling with vLLM",
    "verifiers": "tasks verifiers:NAME",
}
"""Packages that hone can do without, and what for."""
NETWORK_SECONDS = 3.0
"""The most that a question to another machine may take."""
MIB, GIB = 2**20, 2**30

Found = Iterator[tuple[str, ...]]


def python(_: Subject) -> Found:
    version = platform.python_version()
    if sys.version_info < OLDEST:
        yield "version", "error", f"{version}; hone needs 3.11 or newer", "python3.11 -m venv .venv"
    else:
        yield "version", "ok", f"{version}, {sys.executable}"
    conda = os.environ.get("CONDA_PREFIX")
    if sys.prefix != sys.base_prefix:
        yield "environment", "ok", f"virtual environment {sys.prefix}"
    elif conda and Path(conda).resolve() == Path(sys.prefix).resolve():
        yield "environment", "ok", f"conda environment {conda}"
    else:
        text = f"none: packages are those of {sys.prefix}, which others use and change"
        yield "environment", "warning", text, "make install   # makes .venv in a checkout of hone"
    yield "hone", "ok", f"{hone.__version__}, from {Path(hone.__file__).parent}"


def packages(_: Subject) -> Found:
    """Look at what hone requires: whether it is there, new enough, and can be imported."""
    try:
        required = [text for text in metadata.requires("hone-rl") or [] if "extra ==" not in text]
    except metadata.PackageNotFoundError:
        import tomllib

        required = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["dependencies"]
    wrong = []
    for text in required:
        name, bounds = re.sub(r"^([\w.-]+)(\[.*?\])?\s*([^;]*).*", r"\1 \3", text).split(" ", 1)
        version = _version(name)
        if version is None or not _is_within(version, bounds):
            wrong.append(f"{name}{bounds}")
            state = "is not installed" if version is None else f"{version} is installed"
            yield name, "error", f"{state}; hone needs {bounds or 'it'}", install_command(wrong[-1])
    shown = ", ".join(f"{name} {_version(name)}" for name in ("torch", "transformers", "datasets", "numpy"))
    if wrong:
        text = f"{len(wrong)} of {len(required)} are missing or of a wrong version"
        yield "required", "error", text, install_command(*wrong)
    else:
        yield "required", "ok", f"all {len(required)} are there, in versions that hone takes ({shown})"
    for name in IMPORTED:
        if importlib.util.find_spec(name) is None:
            continue
        again = install_command("--force-reinstall", "--no-deps", name)
        yield name, "error", "is installed, but ends the interpreter when it is imported", again
        try:
            importlib.import_module(name)
            yield name, "ok", ""
        except Exception as error:
            yield name, "error", f"is installed, but can't be imported: {_one_line(error)}", again


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _is_within(version: str, bounds: str) -> bool:
    """Return False if a version is not within bounds; True where that can't be told."""
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:
        return True
    return SpecifierSet(bounds).contains(version, prereleases=True)


def install_command(*packages: str) -> str:
    """Return what installs these with this Python, within the pinned versions where hone's checkout has them."""
    program = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None:
        program = ["uv", "pip", "install", "--python", sys.executable]
    constraints = CHECKOUT / "constraints.txt"
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    is_torch = any(package.partition(">")[0] == "torch" for package in packages)
    index = "" if has_gpu_driver() or not is_torch else " --extra-index-url https://download.pytorch.org/whl/cpu"
    return shlex.join([*program, *pins, *packages]) + index


def has_gpu_driver() -> bool:
    """Return True if a driver of NVIDIA's is loaded."""
    return any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvidia0", "/dev/nvidiactl"))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def device(subject: Subject) -> Found:
    """Look at torch and the GPUs that it finds, and those that it doesn't."""
    again = install_command("torch>=2.11")
    yield "torch", "error", "ends the interpreter when it is imported", again
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            import torch
        except Exception as error:
            yield "torch", "error", f"can't be imported: {_one_line(error)}", again
            return
        usable = torch.cuda.is_available()
    hip = torch.version.hip
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "ROCm" if hip else "CPU"
    yield "torch", "ok", f"{torch.__version__}, a build for {build}"
    named = subject.env.get("CUDA_VISIBLE_DEVICES")
    if usable:
        for i in range(count := torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(i)
            free, total = torch.cuda.mem_get_info(i)
            archs = [] if hip else torch.cuda.get_arch_list()
            yield look_at_gpu(f"GPU {i}", gpu.name, (gpu.major, gpu.minor), free, total, archs)
        if count > 1:
            text = f"{count}: `rl` takes one for sampling and {count - 1} for training (mode split)"
            yield "GPUs", "ok", text, "--mode colocated --model.device cuda:0   # one alone"
    elif named in ("", "-1"):
        yield "GPU", "ok", "CUDA_VISIBLE_DEVICES hides all: hone uses the CPU", "unset CUDA_VISIBLE_DEVICES"
    elif has_gpu_driver():
        yield unused_gpu(torch.version.cuda, [str(one.message) for one in caught], named)
    else:
        yield "GPU", "ok", f"none that hone uses: it runs on the CPU ({platform.machine()})"


def look_at_gpu(
    key: str, name: str, capability: tuple[int, int], free: int, total: int, archs: list[str]
) -> tuple[str, ...]:
    """Return what is to say of a GPU that torch finds; `archs` are those that torch has code for, if it tells."""
    text = f"{name}, {gib(total)}, {gib(free)} free, compute capability {capability[0]}.{capability[1]}"
    if archs and not _is_covered(10 * capability[0] + capability[1], archs):
        what = f"{text}: this build of torch has no code for it ({', '.join(archs)})"
        return key, "error", what, _cuda_command()
    if total - free > GIB:
        fix = "CUDA_VISIBLE_DEVICES=…   # another one; or end the process that nvidia-smi names"
        return key, "warning", f"{text}: {gib(total - free)} are taken by others", fix
    if capability < (8, 0):
        return key, "warning", f"{text}: it has no bf16, which is then emulated slowly", "--precision fp32"
    return key, "ok", text


def _is_covered(number: int, archs: list[str]) -> bool:
    """Return True if one of torch's architectures runs there: of its major version, or PTX of an older one."""
    known = [(arch.partition("_")[0], int(re.sub(r"\D", "", arch) or 0)) for arch in archs]
    return any(n <= number and (kind == "compute" or n // 10 == number // 10) for kind, n in known)


def unused_gpu(build: str | None, caught: list[str], named: str | None) -> tuple[str, ...]:
    """Return why torch, a `build` for CUDA or None, does not use the GPU that there is."""
    reason = next((text for text in caught if "driver" in text.lower() or "CUDA" in text), "it gives no reason")[:200]
    if not build:
        text = "there is one, but this torch is a build for CPUs: runs would leave it unused"
        return "GPU", "error", text, _cuda_command()
    if "too old" in reason or "older" in reason:
        fix = "sudo apt-get install nvidia-driver-580   # or a torch for an older CUDA: " + _cuda_command("cu126")
        return "GPU", "error", f"the driver is too old for this torch (CUDA {build}): {reason}", fix
    if named is not None:
        text = f"there is one, but torch finds none that CUDA_VISIBLE_DEVICES={named} names"
        return "GPU", "error", text, "unset CUDA_VISIBLE_DEVICES   # or one that nvidia-smi -L lists"
    fix = "nvidia-smi   # does the driver answer? In a container: docker run --gpus all"
    return "GPU", "error", f"there is one, but torch can't use it: {reason}", fix


def _cuda_command(build: str = "") -> str:
    """Return what puts a build of torch for CUDA in place of the one that is there, with the libraries it needs."""
    command = install_command("--force-reinstall", "torch>=2.11").partition(" --extra-index-url")[0]
    return command + (f" --extra-index-url https://download.pytorch.org/whl/{build}" if build else "")


def threads(subject: Subject) -> Found:
    """Look at cores, the load, and variables that choose threads."""
    env, cores = subject.env, os.cpu_count() or 1
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    quota = cpu_quota()
    if quota is not None and quota < own:
        share = max(1, math.floor(quota))
        text = f"{own} are seen, but the container may use {quota:g}: with a thread on each they wait for each other"
        yield "cores", "warning", text, f"--threads {share}   # for other programs: export OMP_NUM_THREADS={share}"
    else:
        yield "cores", "ok", f"{own} for this process" + (f", of {cores} of the machine" if own < cores else "")
    load = os.getloadavg()[0]
    text = f"{load:.1f} processes were at work over the last minute, on {cores} cores"
    problem = "runs will be slower than they could be"
    yield _judge("load", load <= 0.75 * cores, text, problem, "top   # who is it?")
    name, first = "OMP_NUM_THREADS", env.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not first:
        yield name, "ok", "not set: hone chooses (1 for a model under 10M parameters)"
    elif not first.isdigit() or int(first) < 1:
        yield name, "warning", f"{first!r} is no number of threads", f"unset {name}"
    elif int(first) > own:
        text = f"{first}, but this process has {own} cores: threads wait for each other"
        yield name, "warning", text, f"export {name}={own}"
    else:
        yield name, "ok", f"{first}; in a run `threads` decides"
    for name, most, fix in (
        ("GOMP_SPINCOUNT", 10_000, "unset GOMP_SPINCOUNT   # then hone sets 3000"),
        ("OMP_WAIT_POLICY", 0, "export OMP_WAIT_POLICY=PASSIVE"),
        ("KMP_BLOCKTIME", 200, "export KMP_BLOCKTIME=0"),
    ):
        value = env.get(name, "").upper()
        if value == "ACTIVE" or value.startswith("INF") or (value.isdigit() and int(value) > most):
            yield name, "warning", f"{value}: idle threads keep their core, and other processes wait for it", fix


def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processors that the cgroup (version 2, or 1) may use at a time; None without a limit."""
    own = re.search(r"^0::/(.*)$", _text(Path("/proc/self/cgroup")), re.M)
    for folder in (root / (own[1] if own else ""), root):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if quota.isdigit():
            return int(quota) / int(period)
    quota, period = (_text(root / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdigit() and int(quota) > 0 else None


def memory(_: Subject) -> Found:
    from hone.planning.devices import ram

    total, free = ram()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limited = f" (the container's limit; the machine has {gib(machine)})" if total < machine else ""
    text = f"{gib(free)} free of {gib(total)}{limited}"
    problem = "the quickstart takes 0.8 GiB, a model of 0.6B parameters about 12"
    yield _judge("RAM", free >= 2 * GIB, text, problem, "ps aux --sort=-rss | head   # who has it?")
    if Path("/dev/shm").is_dir():
        shared = shutil.disk_usage("/dev/shm")
        text = f"{gib(shared.free)} free of {gib(shared.total)}"
        fix = "docker run --shm-size 8g …   # or: sudo mount -o remount,size=8G /dev/shm"
        yield _judge("/dev/shm", shared.free >= 64 * MIB, text, "several GPUs (NCCL) and vLLM need more", fix)


def disk(subject: Subject) -> Found:
    """Look at where runs, models and temporary files go: room, rights, speed."""
    output = Path(subject.output_dir)
    yield _look_at_folder("output", output, f"--output-dir ELSEWHERE   # {output} can't be used", 64 * MIB)
    yield _look_at_folder("hub cache", hub_cache(subject.env), "export HF_HOME=/somewhere/with/room", 1)
    yield _look_at_folder("temporary", Path(tempfile.gettempdir()), "export TMPDIR=/somewhere/with/room", 1)


def _look_at_folder(name: str, folder: Path, elsewhere: str, written: int) -> tuple[str, ...]:
    """Write and flush so many bytes where the folder is or would be made, and return what is to say of it."""
    there = folder.absolute()
    there = next(path for path in (there, *there.parents) if os.path.lexists(path))
    if not there.is_dir():
        return name, "error", f"{there} is a file, where a folder is needed", elsewhere
    usage, kind = shutil.disk_usage(there), file_system(there)
    text = f"{folder}: {gib(usage.free)} free of {gib(usage.total)}{f', {kind}' if kind else ''}"
    began, speed = time.perf_counter(), float("inf")
    try:
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(os.urandom(min(written, usage.free // 4)))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return name, "error", f"{text}: can't be written ({error.strerror})", elsewhere
    if written > 1:
        speed = min(written, usage.free // 4) / (time.perf_counter() - began)
        text += f", {speed / 1e6:.0f} MB/s"
    if usage.free < 256 * MIB:
        return name, "error", f"{text}: that is too little for a checkpoint", elsewhere
    if usage.free < 5 * GIB:
        return name, "warning", f"{text}: enough for tiny models only", elsewhere
    if speed < 50e6:
        return name, "warning", f"{text}: slow, so checkpoints take long", elsewhere
    if written > 1 and kind in ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "9p", "fuse.sshfs", "beegfs"):
        fix = "--output-dir /a/local/disk   # copy runs afterwards"
        return name, "warning", f"{text}: a file system of the network; checkpoints wait for it", fix
    return name, "ok", text


def file_system(folder: Path) -> str:
    """Return the kind of file system that a folder lies in; "" where the system does not tell."""
    rows = [line.split() for line in _text(Path("/proc/self/mounts")).splitlines()]
    path = folder.resolve()
    above = [(len(row[1]), row[2]) for row in rows if path.is_relative_to(row[1].replace("\\040", " "))]
    return max(above, key=lambda pair: pair[0])[1] if above else ""


def system(subject: Subject) -> Found:
    """Look at limits of the user, encoding and clock."""
    for name, limit, least, wanted, flag in (
        ("open files", resource.RLIMIT_NOFILE, 1024, 65536, "-n"),
        ("processes", resource.RLIMIT_NPROC, 256, 4096, "-u"),
    ):
        now, most = resource.getrlimit(limit)
        value = wanted if most == resource.RLIM_INFINITY else min(most, wanted)
        good, text = now == resource.RLIM_INFINITY, "no limit" if now == resource.RLIM_INFINITY else f"{now:,}"
        problem = "a run with workers and a server needs more"
        yield _judge(name, good or now >= least, text, problem, f"ulimit {flag} {value}")
    env, encoding = subject.env, locale.getpreferredencoding(False)
    named = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "not set"
    if encoding.lower().replace("-", "") == "utf8" == (sys.stdout.encoding or "utf-8").lower().replace("-", ""):
        yield "encoding", "ok", f"UTF-8 (locale {named})"
    else:
        text = f"locale {named}, encoding {encoding}, output {sys.stdout.encoding}: completions hold any character"
        yield "encoding", "warning", text, "export LC_ALL=C.UTF-8 PYTHONUTF8=1"
    right, problem = time.time() >= min(Path(__file__).stat().st_mtime, 1.75e9), "certificates of servers fail"
    yield _judge("clock", right, time.strftime("%Y-%m-%d %H:%M %Z"), problem, "sudo timedatectl set-ntp true")


def ports(subject: Subject) -> Found:
    """Look at the port of the server, and that by which ranks find each other."""
    if subject.kind != "sft":
        flag = "--inference.port {}" if subject.kind else "--port {0}   # of `rl`: --inference.port {0}"
        yield _look_at_port("server", subject.port, flag)
    master = subject.env.get("MASTER_PORT", "29500")
    if not master.isdigit() or not 0 < int(master) < 65536:
        yield "MASTER_PORT", "warning", f"{master!r} is no port", "unset MASTER_PORT"
    else:
        yield _look_at_port("torchrun", int(master), "torchrun --master-port {} …")


def _look_at_port(name: str, port: int, remedy: str) -> tuple[str, ...]:
    with socket.socket() as probe, socket.socket() as free:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return name, "warning", f"{port} can't be used ({error.strerror})", remedy.format(free.getsockname()[1])
    return name, "ok", f"{port} is free"


def extras(subject: Subject) -> Found:
    """Look at what hone can do without, so that its lack is no fault, and make a sandbox once."""
    for package, purpose in EXTRAS.items():
        folders = [root / f".venv-{package}" for root in (Path.cwd(), CHECKOUT)]
        version, own = _version(package), next((folder for folder in folders if folder.is_dir()), None)
        if version or own:
            yield package, "ok", f"{version or f'in {own}'}, for {purpose}"
        else:
            makes = package in ("vllm", "verifiers")  # they have an environment of their own
            fix = f"make {package}-env" if makes else install_command(package)
            yield package, "ok", f"not installed; for {purpose}", fix
    from hone.errors import UserError
    from hone.grading.sandbox import Sandbox

    try:
        ran = Sandbox().run("print(6 * 7)")
        problem = "" if ran.output == "42\n" else f"it ran, but printed {ran.output!r} ({ran.status})"
    except UserError as error:
        problem = str(error)
    if not problem:
        yield "sandbox", "ok", "works (bubblewrap): code of a model can be run apart"
        return
    reason, _, remedy = problem.partition(" Remedy: ")
    fix = remedy.partition(". isolation")[0] or "see docs/tasks.md"
    if "no bwrap" in problem:
        fix = "sudo apt-get install bubblewrap   # or: sudo dnf install bubblewrap"
    reason = reason.partition("; isolation")[0].partition(": install it")[0]
    yield "sandbox", "warning", f"{reason}; only tasks that run code need it", fix


def hub(subject: Subject) -> Found:
    """Look at the Hugging Face hub: what is here, who is logged in, whether it answers."""
    env, cache = subject.env, hub_cache(subject.env)
    models = sorted(cache.glob("models--*"))
    size = sum(file.stat().st_size for folder in models for file in (folder / "blobs").glob("*") if file.is_file())
    held = f"{len(models)} model{'s' if len(models) != 1 else ''}, {gib(size)}" if models else "empty"
    yield "cache", "ok", f"{cache}: {held}"
    if env.get("HF_TOKEN") or _text(Path(env.get("HF_TOKEN_PATH") or hub_home(env) / "token").expanduser()):
        yield "login", "ok", "a token is there" + (" (HF_TOKEN)" if env.get("HF_TOKEN") else "")
    else:
        yield "login", "ok", "none: public models and data need none", "hf auth login"
    url = env.get("HF_ENDPOINT") or "https://huggingface.co"
    if env.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        yield "access", "ok", "HF_HUB_OFFLINE is set: only what is in the cache can be used", "unset HF_HUB_OFFLINE"
    elif subject.offline:
        yield "access", "ok", "not asked (--offline)"
    elif problem := unreachable(url):
        text = f"{url} can't be reached ({problem}): tasks that are made here, and models in folders, work without it"
        proxy = env.get("HTTPS_PROXY") or env.get("https_proxy")
        fix = "unset HTTPS_PROXY https_proxy   # or mend it" if proxy else "export HTTPS_PROXY=http://PROXY:PORT"
        yield "access", "warning", text, f"{fix}   # without a network: export HF_HUB_OFFLINE=1"
    else:
        yield "access", "ok", f"{url} answers"


def hub_home(env: Mapping[str, str]) -> Path:
    """Return where the hub's client keeps its token and, unless another place is set, its cache."""
    return Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface").expanduser()


def hub_cache(env: Mapping[str, str]) -> Path:
    """Return where the hub's models and data are."""
    return Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or hub_home(env) / "hub").expanduser()


def unreachable(url: str) -> str:
    """Return why a server gives no answer within `NETWORK_SECONDS`; "" if it gives any."""
    found: list[str] = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=NETWORK_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            found.append(str(getattr(reason, "strerror", None) or reason) or type(reason).__name__)
            return
        found.append("")

    asking = threading.Thread(target=ask, daemon=True)  # a name may be looked up for long
    asking.start()
    asking.join(NETWORK_SECONDS)
    return found[0] if found else f"no answer within {NETWORK_SECONDS:g} s"


def wandb(subject: Subject) -> Found:
    """Look at whether a run that asks for W&B would be logged in."""
    env, wanted = subject.env, subject.wandb is not None
    mode = subject.wandb or env.get("WANDB_MODE", "online")
    host = (env.get("WANDB_BASE_URL") or "https://api.wandb.ai").rstrip("/")
    if _version("wandb") is None:
        text = "the run asks for it (wandb), but the package is not installed" if wanted else ""
        yield "login", "error", text, install_command("wandb")
        return
    if mode in ("offline", "disabled", "dryrun"):
        yield "login", "ok", f"not needed: mode {mode}"
        return
    try:
        keys = netrc.netrc(Path(env.get("NETRC") or "~/.netrc").expanduser())
        has_key = keys.authenticators(host.partition("://")[2].partition("/")[0]) is not None
    except (OSError, netrc.NetrcParseError):
        has_key = False
    if env.get("WANDB_API_KEY") or has_key:
        yield "login", "ok", f"a key is there ({'WANDB_API_KEY' if env.get('WANDB_API_KEY') else 'netrc'})"
    else:
        text = "the run asks for it, and nobody is logged in" if wanted else "nobody is logged in; needed for --wandb"
        yield "login", "error" if wanted else "ok", text, "wandb login   # or --wandb.mode offline"
    if wanted and not subject.offline and (problem := unreachable(host)):
        yield "access", "warning", f"{host} can't be reached ({problem})", "--wandb.mode offline   # then: wandb sync"


def run(subject: Subject) -> Found:
    """Look at what the config's run needs: its model, its task or data, room for what it writes. Asks no hub."""
    if not subject.config:
        return
    import tomllib

    os.environ["HF_HUB_OFFLINE"] = "1"
    from hone.config.rl import RLConfig
    from hone.config.sft import SFTConfig
    from hone.environments.loading import configured
    from hone.errors import UserError
    from hone.model.files import is_hub_id
    from hone.planning.advice import free_disk, missing
    from hone.planning.arithmetic import checkpoints_kept
    from hone.planning.memory import checkpoint_bytes, weight_bytes
    from hone.planning.shape import Shape

    config = (RLConfig if subject.kind == "rl" else SFTConfig).model_validate(tomllib.loads(subject.config))
    name, each = config.model.name, 0
    absent = missing(config)
    for text in absent:
        what = "model" if "model folder" in text else "data" if "no file" in text else "task"
        yield what, "error", text
    try:
        shape = Shape.of(name, config.model.init)
        each = weight_bytes(shape, config.precision)
        each += checkpoint_bytes(shape, config.precision) if config.ckpt else 0
        yield "model", "ok", f"{name}: {shape.parameters / 1e6:,.1f}M parameters"
    except UserError as error:
        if not absent and not is_hub_id(name):
            yield "model", "error", str(error)
    folder = hub_cache(os.environ) / f"models--{name.replace('/', '--')}"
    if is_hub_id(name) and not any(folder.glob("snapshots/*/*.safetensors")):
        yield "model", "warning", f"{name} is not in the hub's cache: the run fetches it", f"hf download {name}"
    kept = max(1, checkpoints_kept(config)) if config.ckpt else 1
    free = free_disk(config.output_dir)
    if each:
        text = f"{gib(kept * each)} for {kept} saved version{'s' if kept > 1 else ''}; {gib(free)} are free"
        if kept * each > 0.8 * free:
            status = "error" if kept * each > free else "warning"
            yield "disk", status, text, "--ckpt.keep-last 2   # or another --output-dir"
        else:
            yield "disk", "ok", text
    task = config.orchestrator.env if isinstance(config, RLConfig) else config.data.env
    if task is not None and not absent:
        try:
            env = configured(task.id, task.args, task.template, "env.template")
            yield "task", "ok", f"{task.id}: {len(env.split('train')):,} training examples"
        except UserError as error:
            text = f"{task.id} loads, but its data are not here ({error})"
            yield "task", "warning", text[:300], f"hone audit {task.id}   # fetches them"


def _judge(name: str, good: bool, text: str, problem: str, fix: str) -> tuple[str, ...]:
    """Return `text` as ok, or as a warning with what is wrong and what mends it."""
    return (name, "ok", text) if good else (name, "warning", f"{text}: {problem}", fix)


def gib(count: float) -> str:
    """Return `23.5 GiB`, `512 MiB`."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _text(path: Path) -> str:
    """Return what a file holds; "" if it can't be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


CHECKS: dict[str, Callable[[Subject], Found]] = {
    check.__name__: check
    for check in (python, packages, device, threads, memory, disk, system, ports, extras, hub, wandb, run)
}
