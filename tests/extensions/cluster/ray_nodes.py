"""A real Ray cluster on this machine, whose nodes come, and are killed as by a power cut."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import until
from split_runs import Run, alive

from hone.processes import free_port

RAY = Path(sys.executable).with_name("ray")


class Node:
    """A node, with all that runs on it. `apart`: with a /dev/shm of its own, and an empty folder over these paths."""

    def __init__(self, arguments: list[str], apart: list[Path] | None = None) -> None:
        self.mark = f"node-{time.monotonic_ns()}"
        command = [str(RAY), "start", "--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1", *arguments]
        if apart is not None:
            mounts = "".join(f"mount -t tmpfs tmpfs '{path}' && " for path in ["/dev/shm", *apart])
            command = ["unshare", "--mount", "sh", "-c", f'{mounts}exec "$@"', "sh", *command]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (as long as the node)
        env = os.environ | {"NODE_MARK": self.mark, "RAY_raylet_start_wait_time_s": "120"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, **streams, env=env, start_new_session=True)

    def started(self) -> None:
        until(lambda: "Ray runtime started" in self.words() or self.process.poll() is not None)
        assert self.process.poll() is None, self.words()

    def words(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def pids(self, command: str) -> list[int]:
        return [pid for pid, line in alive(self.mark).items() if command in line]

    def kill(self) -> None:
        while found := alive(self.mark):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        self.process.wait()


class Nodes:
    """The nodes of one cluster; the first is its head."""

    def __init__(self, cpus: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))  # Ray's sockets have room for short paths only
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        head = ["--head", f"--port={self.address.partition(':')[2]}", f"--temp-dir={self.folder}", f"--num-cpus={cpus}"]
        self.all = [Node([*head, "--include-dashboard=false"])]
        self.all[0].started()

    def add(self, cpus: int, apart: list[Path] | None = None) -> Node:
        self.all.append(Node([f"--address={self.address}", f"--num-cpus={cpus}"], apart))
        self.all[-1].started()
        return self.all[-1]

    def close(self) -> None:
        for node in self.all:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class ClusterRun(Run):
    """`rl` on a cluster. Its processes are marked on all nodes: variables of hone's names travel there."""

    def __init__(self, argv: list[str], out: Path) -> None:
        self.on_nodes = f"run-{time.monotonic_ns()}"
        super().__init__(argv, out, HONE_MARK=self.on_nodes)

    def pids(self, role: str) -> list[int]:
        """The processes of a role on all nodes; of `inference-1` that server's alone."""
        words = f"/{role}.toml" if "-" in role else f" hone.cli {role} @ "
        return sorted(pid for pid, command in alive(self.on_nodes).items() if words in command)

    def ended(self) -> int:
        code = super().ended()
        until(lambda: not alive(self.on_nodes))
        return code
