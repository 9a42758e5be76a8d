"""What the sandbox must keep from the code, planted around it: canaries that tell if one was reached."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SECRET = f"canary-{os.getpid():x}-{os.urandom(8).hex()}"
PROJECT = Path(__file__).resolve().parents[3]
UNTOUCHED = [Path(folder, "hone_canary") for folder in ("/", "/dev", "/etc", "/sys/fs/cgroup")]


@dataclass
class Canaries:
    """`known` is what an attempt is told of them."""

    folder: Path
    home: Path
    known: dict[str, object]
    victim: subprocess.Popen[bytes] | None = None
    reached: list[str] = field(default_factory=list)

    def plant(self) -> None:
        """Puts the files in their first state, and sees that there is a victim."""
        for folder in (self.folder, self.home):
            for name in ("written", "link"):
                (folder / name).unlink(missing_ok=True)
            for name in ("secret", "other"):
                (folder / name).write_text(SECRET)
        if self.victim is None or self.victim.poll() is not None:
            self.victim = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            self.known["victim"] = self.victim.pid
        self.reached.clear()

    def harmed(self) -> list[str]:
        found = list(self.reached)
        names = {path.name: path for folder in (self.folder, self.home) for path in folder.iterdir()}
        found += [f"{name} was made" for name in names.keys() - {"secret", "other", "socket"}]
        found += [f"{name} was changed" for name in ("secret", "other") for folder in (self.folder, self.home)
                  if not (folder / name).exists() or (folder / name).read_text() != SECRET]  # fmt: skip
        found += [str(path) for path in UNTOUCHED if path.exists()]
        assert self.victim is not None
        if self.victim.poll() is not None or os.getpriority(os.PRIO_PROCESS, self.victim.pid) != 0:
            found.append("the victim")
        return found


@contextmanager
def planted() -> Iterator[Canaries]:
    """Files with a secret, listening sockets, shared memory, and a process with a secret in its environment."""
    folder = Path("/tmp", f"hone-canary-{os.getpid()}")
    home = Path.home() / f".hone-canary-{os.getpid()}"
    shared = abstract = f"hone-canary-{os.getpid()}"
    for path in (folder, home):
        path.mkdir()
    os.environ["HONE_CANARY"] = SECRET
    Path("/dev/shm", shared).write_text(SECRET)
    queues = ctypes.CDLL("librt.so.1")
    queue = queues.mq_open(f"/{shared}".encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    listeners = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    listeners[1].bind(f"\0{abstract}")
    listeners[2].bind(str(folder / "socket"))
    port = listeners[0].getsockname()[1]
    listeners.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    listeners[3].bind(("127.0.0.1", port))
    known = {
        "folder": folder, "home": home, "project": PROJECT, "packages": sysconfig.get_path("purelib"), "port": port,
        "abstract": abstract, "shared": shared, "group": os.getpgrp(),
    }  # fmt: skip
    made = Canaries(folder, home, known)
    for listener in listeners[:3]:
        listener.listen()
    for listener in listeners:
        threading.Thread(target=_answer, args=(listener, made.reached), daemon=True).start()
    yield made
    if made.victim is not None:
        made.victim.kill()
        made.victim.wait()
    for listener in listeners:
        listener.close()
    if queue >= 0:
        queues.mq_unlink(f"/{shared}".encode())
    Path("/dev/shm", shared).unlink()
    del os.environ["HONE_CANARY"]
    for path in (folder, home):
        shutil.rmtree(path)


def _answer(listener: socket.socket, reached: list[str]) -> None:
    """Notes each who comes."""
    while True:
        try:
            if listener.type == socket.SOCK_DGRAM:
                listener.recv(1)
            else:
                guest = listener.accept()[0]
                with guest, contextlib.suppress(OSError):  # it may have left
                    guest.sendall(f"HTTP/1.0 200 OK\r\n\r\n{SECRET} ESCAPED".encode())
        except OSError:
            return
        reached.append(f"a socket of {listener.family.name}")
