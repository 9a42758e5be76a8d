"""What lies beside the machine: ports, extras, the sandbox, the hub, W&B."""

from __future__ import annotations

import importlib.util
import netrc
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from hone.planning.doctor import NETWORK_SECONDS, Finding, Subject, gib, hub_cache, hub_home
from hone.planning.doctor_python import CHECKOUT, install_command

EXTRAS = {
    "wandb": ("wandb", "W&B"),
    "trackio": ("trackio", "Trackio"),
    "peft": ("peft", "LoRA in other libraries"),
    "ray": ("ray", "clusters"),
    "reasoning_gym": ("reasoning-gym", "tasks reasoning-gym:NAME"),
}
"""Modules that hone can do without: the package, and what for."""
_MASTER_PORT = "29500"


def ports(subject: Subject) -> Iterator[Finding]:
    """The port of the server, and that by which ranks find each other."""
    if subject.kind != "sft":
        remedy = "--inference.port {free}" if subject.kind else "--port {free}   # of `rl`: --inference.port {free}"
        yield _port("server", subject.port, remedy)
    master = subject.env.get("MASTER_PORT", _MASTER_PORT)
    if not master.isdigit() or not 0 < int(master) < 65536:
        yield Finding("ports", "MASTER_PORT", "warning", f"{master!r} is no port", "unset MASTER_PORT")
    else:
        yield _port("torchrun", int(master), "torchrun --master-port {free} …")


def _port(name: str, port: int, remedy: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            text = f"{port} can't be used ({error.strerror}){_listener(port)}"
            return Finding("ports", name, "warning", text, remedy.format(free=_free_port()))
    return Finding("ports", name, "ok", f"{port} is free")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _listener(port: int) -> str:
    """`: process 123 (python -m …) listens there`, where Linux tells it to this user."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue
        inodes |= {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").glob("[0-9]*") if wanted else ():
        try:
            if any(os.readlink(handle) in wanted for handle in (process / "fd").iterdir()):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                return f": process {process.name} listens there ({words[:80]})"
        except OSError:
            continue
    return ": a process of another user listens there" if wanted else ""


def extras(_: Subject) -> Iterator[Finding]:
    """Libraries that hone can do without. That one is missing is no fault."""
    for module, (package, purpose) in EXTRAS.items():
        try:
            there = importlib.util.find_spec(module) is not None
        except (ImportError, ValueError):
            there = False
        version = _version(package) if there else None
        if there:
            yield Finding("extras", package, "ok", f"{version or 'there'}, for {purpose}")
        else:
            yield Finding("extras", package, "ok", f"not installed; for {purpose}", install_command(package))
    yield from _own_environments()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _own_environments() -> Iterator[Finding]:
    """vLLM and verifiers, which have Pythons of their own beside a checkout."""
    for name, folder, purpose in (
        ("vllm", ".venv-vllm", "sampling with vLLM"),
        ("verifiers", ".venv-verifiers", "tasks verifiers:NAME"),
    ):
        if importlib.util.find_spec(name) is not None:
            yield Finding("extras", name, "ok", f"{_version(name) or 'there'}, for {purpose}")
            continue
        pythons = [root / folder / "bin" / "python" for root in (Path.cwd(), CHECKOUT)]
        found = next((python for python in pythons if python.exists()), None)
        if found is None:
            yield Finding("extras", name, "ok", f"not installed; for {purpose}", f"make {name}-env")
        elif _runs(found, f"import importlib.util as u, sys; sys.exit(u.find_spec({name!r}) is None)"):
            yield Finding("extras", name, "ok", f"in {found.parent.parent}, for {purpose}")
        else:
            text = f"{found.parent.parent} is there, but has no {name} that runs"
            yield Finding("extras", name, "warning", text, f"rm -r {found.parent.parent} && make {name}-env")


def _runs(python: Path, code: str) -> bool:
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


_SANDBOX = """
import sys
from hone.errors import UserError
from hone.grading.sandbox import Sandbox
try:
    ran = Sandbox().run("print(6 * 7)")
except UserError as error:
    sys.exit(str(error))
sys.exit(None if ran.output == "42\\n" else f"it ran, but said {ran.output!r} ({ran.status}) {ran.errors[-200:]}")
"""


def sandbox(subject: Subject) -> Iterator[Finding]:
    """Whether code of a model can be run apart: really made, once."""
    if sys.platform != "linux":
        yield Finding(
            "extras", "sandbox", "ok", f"needs Linux; this is {sys.platform}: tasks that run code can't be used"
        )
        return
    env = dict(subject.env) | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-P", "-c", _SANDBOX]
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=30, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        yield Finding("extras", "sandbox", "warning", "gave no answer within 30 s")
        return
    if done.returncode == 0:
        yield Finding("extras", "sandbox", "ok", "works (bubblewrap): code of a model can be run apart")
        return
    said = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
    reason, _, remedy = said.partition(" Remedy: ")
    fix = (
        "sudo apt-get install bubblewrap   # or: sudo dnf install bubblewrap"
        if "no bwrap" in said
        else remedy.split(". isolation")[0]
    )
    text = reason.split("; isolation")[0].split(": install it")[0]
    yield Finding(
        "extras", "sandbox", "warning", f"{text}; only tasks that run code need it", fix or "see docs/sandbox.md"
    )


def hub(subject: Subject) -> Iterator[Finding]:
    """The Hugging Face hub: who asks, whether it can be reached, what is here already."""
    env = subject.env
    cache = hub_cache(env)
    token = env.get("HF_TOKEN") or _text(Path(env.get("HF_TOKEN_PATH") or hub_home(env) / "token").expanduser())
    offline = env.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    models = sorted(cache.glob("models--*")) if cache.is_dir() else []
    size = sum(file.stat().st_size for folder in models for file in (folder / "blobs").glob("*") if file.is_file())
    held = f"{len(models)} model{'s' if len(models) != 1 else ''}, {gib(size)}" if models else "empty"
    yield Finding("hub", "cache", "ok", f"{cache}: {held}")
    if token:
        yield Finding("hub", "login", "ok", "a token is there" + (" (HF_TOKEN)" if env.get("HF_TOKEN") else ""))
    else:
        yield Finding("hub", "login", "ok", "none: public models and data need none", "hf auth login")
    if offline:
        text = "HF_HUB_OFFLINE is set: only what is in the cache can be used"
        yield Finding("hub", "access", "ok", text, "unset HF_HUB_OFFLINE")
    elif subject.offline:
        yield Finding("hub", "access", "ok", "not asked (--offline)")
    else:
        yield _reached(
            env.get("HF_ENDPOINT") or "https://huggingface.co", env.get("HTTPS_PROXY") or env.get("https_proxy")
        )


def _reached(url: str, proxy: str | None) -> Finding:
    by = " through the proxy" if proxy else ""
    if problem := unreachable(url):
        text = (
            f"{url} can't be reached{by} ({problem}): tasks that are made here, and models in folders, work without it"
        )
        fix = "unset HTTPS_PROXY https_proxy   # or mend it" if proxy else "export HTTPS_PROXY=http://PROXY:PORT"
        return Finding("hub", "access", "warning", text, f"{fix}   # without a network: export HF_HUB_OFFLINE=1")
    return Finding("hub", "access", "ok", f"{url} answers{by}")


def unreachable(url: str) -> str:
    """Why a server gives no answer within `NETWORK_SECONDS`; "" if it gives any."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(_asked(url)), daemon=True)  # a name may be looked up for long
    asking.start()
    asking.join(NETWORK_SECONDS)
    return found[0] if found else f"no answer within {NETWORK_SECONDS:g} s"


def _asked(url: str) -> str:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=NETWORK_SECONDS).close()
    except urllib.error.HTTPError:
        return ""  # it answers
    except urllib.error.URLError as error:
        return str(getattr(error.reason, "strerror", None) or error.reason)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def wandb(subject: Subject) -> Iterator[Finding]:
    """Whether a run that asks for W&B would be logged in."""
    env = subject.env
    wanted = getattr(subject.config, "wandb", None) is not None
    mode = (wanted and subject.config.wandb.mode) or env.get("WANDB_MODE", "online")
    if importlib.util.find_spec("wandb") is None:
        if wanted:
            text = "the run asks for it (wandb), but the package is not installed"
            yield Finding("wandb", "login", "error", text, install_command("wandb"))
        return
    host = (env.get("WANDB_BASE_URL") or "https://api.wandb.ai").rstrip("/")
    if mode in ("offline", "disabled", "dryrun"):
        yield Finding("wandb", "login", "ok", f"not needed: mode {mode}")
        return
    if env.get("WANDB_API_KEY") or _in_netrc(host, env):
        where = "WANDB_API_KEY" if env.get("WANDB_API_KEY") else "netrc"
        yield Finding("wandb", "login", "ok", f"a key is there ({where})")
    elif wanted:
        yield Finding(
            "wandb",
            "login",
            "error",
            "the run asks for it, and nobody is logged in",
            "wandb login   # or --wandb.mode offline",
        )
    else:
        yield Finding(
            "wandb", "login", "ok", "nobody is logged in; needed for --wandb", "wandb login   # or --wandb.mode offline"
        )
    if wanted and not subject.offline and (problem := unreachable(host)):
        text = f"{host} can't be reached ({problem})"
        yield Finding("wandb", "access", "warning", text, "--wandb.mode offline   # then: wandb sync")


def _in_netrc(host: str, env: Mapping[str, str]) -> bool:
    path = Path(env.get("NETRC") or "~/.netrc").expanduser()
    try:
        return netrc.netrc(path).authenticators(host.partition("://")[2].partition("/")[0]) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
