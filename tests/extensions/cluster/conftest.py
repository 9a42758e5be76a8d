"""What the tests on a cluster share. Ray asks for addresses outside and listens on all interfaces, so they run in a
network namespace of their own: `make test-cluster`."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ray_nodes import ClusterRun, Nodes
from split_runs import Command, small_run, write_task

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
# Whoever reaches a cluster can run code on it, but for this.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cluster") is None:
        return
    interfaces = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"], "these tests are for a network namespace of their own: make test-cluster"
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP))


@pytest.fixture
def nodes() -> Iterator[Callable[[int], Nodes]]:
    begun: list[Nodes] = []

    def start(cpus: int) -> Nodes:
        begun.append(Nodes(cpus))
        return begun[-1]

    yield start
    for cluster in begun:
        cluster.close()


@pytest.fixture
def begin(tmp_path: Path, warm_model: Path) -> Iterator[Callable[..., ClusterRun]]:
    write_task(tmp_path)
    begun: list[Command] = []

    def start(*argv: object, out: str = "out") -> ClusterRun:
        begun.append(ClusterRun([*small_run(warm_model), *map(str, argv)], tmp_path / out))
        return begun[-1]

    yield start
    for command in begun:
        command.kill()
