"""Notices that another rank's process has ended.

When a process ends, gloo's collectives fail at once, but NCCL's only after ten minutes. torchrun ends only ranks on the
same machine: by SIGTERM, which all ranks except rank 0 ignore, and 30 seconds later by SIGKILL.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from hone.errors import RankLost

GRACE = 5.0
"""Seconds that the main thread has to leave the block after a peer was lost. Then the process ends."""


class PeerWatchdog:
    """Has one thread per peer, which waits to receive over gloo. The receive fails when the peer's process ends.

    Rank 0 is a peer of each other rank. Peers send only in `close`. If a peer is lost in a block of `armed`, the main
    thread has `GRACE` seconds to leave the block; then the process ends with exit code 1.
    """

    def __init__(self, rank: int, world: int, group: Any) -> None:
        self._group, self._peers = group, [0] if rank else list(range(1, world))
        self._changed = threading.Condition()
        self._armed = self._lost = False
        self._threads = [threading.Thread(target=self._listen, args=(peer,), daemon=True) for peer in self._peers]
        for thread in self._threads:
            thread.start()

    def _listen(self, peer: int) -> None:
        try:
            torch.distributed.recv(torch.zeros(1), src=peer, group=self._group)
        except RuntimeError:
            with self._changed:
                self._lost = True
                if not self._changed.wait_for(lambda: not self._armed, GRACE):
                    print(RankLost(), file=sys.stderr, flush=True)
                    os._exit(1)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Watch peers in the block. Raises RankLost if a peer was lost before the block."""
        with self._changed:
            if self._lost:
                raise RankLost
            self._armed = True
        try:
            yield
        finally:
            with self._changed:
                self._armed = False
                self._changed.notify_all()

    def close(self) -> None:
        """Release the peers' threads, and wait for the threads of this rank. All ranks must call this."""
        for peer in self._peers:
            with suppress(RuntimeError):  # it is gone
                torch.distributed.send(torch.zeros(1), dst=peer, group=self._group)
        for thread in self._threads:
            thread.join()
