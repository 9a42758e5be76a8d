"""Sends weights into the memory of servers' nodes, through Ray's object store: one copy per node.

Fleet(servers, carry=Carrier(roles, memory))
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hone.client import ServerUnavailable
from hone.errors import Halt

SECONDS, LOOK_SECONDS = 600.0, 20.0
"""Seconds that a node has to get a version of the weights, and to say if it has a version."""


class Carrier:
    """Copies a version of the weights to a server's node. `roles[number]` is the role of server `number`.

    Each node has the versions in its folder `memory`. If there was no room in memory, the version must be on a file
    system that all nodes share.
    """

    def __init__(self, roles: Sequence[str], memory: Path | None) -> None:
        self.roles, self.memory = roles, memory
        self._stored: tuple[Path, Any] | None = None
        self._storing = threading.Lock()

    def __call__(self, number: int, folder: Path) -> None:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            host = ray.get_actor(self.roles[number])
            if ray.get(host.has.remote(str(folder)), timeout=LOOK_SECONDS):
                return
            if self.memory is None or not folder.is_relative_to(self.memory):
                raise Halt(
                    f"the node of {self.roles[number]} does not see {folder}: put output_dir on a file system that all "
                    "nodes share, or free space in /dev/shm for weights"
                )
            ray.get(host.take.remote(str(folder), self._store(folder)), timeout=SECONDS)
        except RayTaskError as error:  # an error on the node
            if not isinstance(error.cause, OSError):
                raise
            raise Halt(
                f"{folder} can't be put into memory on the node of {self.roles[number]} ({error.cause}): free space "
                f"in {folder.parent.parent} on that node"
            ) from error
        except (ValueError, RayError) as error:
            raise ServerUnavailable(
                f"{self.roles[number]} is not on any node now ({type(error).__name__})", None
            ) from error

    def _store(self, folder: Path) -> Any:
        """Return a reference to a version's files in the object store, stored once. Drops the previous version."""
        import ray

        with self._storing:
            if self._stored is None or self._stored[0] != folder:
                files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
                contents = {str(path.relative_to(folder)): np.fromfile(path, np.uint8) for path in files}
                self._stored = folder, ray.put(contents)
            return self._stored[1]
