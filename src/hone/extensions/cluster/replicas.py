"""Model servers on a cluster, behind one port of this machine, for `hone eval`.

with Replicas(config.cluster, {role: command}, port, env, say):
    evaluate at http://127.0.0.1:PORT/v1
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from hone.errors import UserError
from hone.extensions.cluster.nodes import Cluster
from hone.extensions.split.launch import port_problem
from hone.loops.child import Child, Log

if TYPE_CHECKING:
    from hone.extensions.cluster.config import ClusterConfig

LOOK = 0.2
"""Seconds between checks of the servers."""
RESTARTS = 3
"""Maximum number of restarts of a killed server. A server that exits with a code is not restarted."""


class Replicas:
    """Servers on a cluster, by role in `commands`. Entering waits for the first server. Restarts killed servers."""

    def __init__(
        self,
        config: ClusterConfig,
        commands: Mapping[str, Sequence[str]],
        port: int,
        env: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.commands, self.port, self.env, self.say = commands, port, env, say
        self.cluster = Cluster(config, dict.fromkeys(commands, port), on_gpus=True, say=say)
        self._children: dict[str, Child] = {}
        self._restarts: Counter[str] = Counter()
        self._over = Event()
        self._watcher = Thread(target=self._watch, name="replicas", daemon=True)

    def __enter__(self) -> Replicas:
        if (problem := port_problem(self.port)) is not None:
            raise UserError(
                f"port {self.port} can't be listened on ({problem.strerror}): set another with --cluster.port"
            )
        self.cluster.__enter__()
        self._scratch = tempfile.TemporaryDirectory(prefix="hone-replicas-")
        try:
            for role in self.commands:
                self._start(role)
            while not self.cluster.tunnels.gates(self.port):
                self._check()
                time.sleep(LOOK)
        except BaseException:
            self.__exit__()
            raise
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._watcher.ident is not None:
            self._watcher.join()
        for child in self._children.values():
            child.kill()
        self.cluster.__exit__()
        self._scratch.cleanup()

    def _start(self, role: str) -> None:
        log = Log(Path(self._scratch.name) / f"{role}.log")
        self._children[role] = self.cluster.child(
            role, None, self.commands[role], {**os.environ, **self.env}, log, False
        )

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self._replace()

    def _replace(self) -> None:
        for role, child in list(self._children.items()):
            if (code := child.poll()) is None:
                continue
            if code < 0 and self._restarts[role] < RESTARTS:
                self._restarts[role] += 1
                self.say(f"{child.name} {child.cause}: starting it again ({self._restarts[role]} of {RESTARTS})")
                self._start(role)
            else:
                del self._children[role]
                left = "going on without it" if self._children else "no server is left"
                self.say(f"{child.name} {child.cause}: {left}")

    def _check(self) -> None:
        for child in self._children.values():
            if (code := child.poll()) is not None and code >= 0:
                raise UserError(f"{child.name} {child.cause} while it loaded")
        self._replace()
        if not self._children:
            raise UserError("no server could be started: see the lines above")
