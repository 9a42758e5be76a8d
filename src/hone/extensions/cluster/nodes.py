"""Places the roles of a run on nodes of a Ray cluster, for its launcher, and watches their processes.

    with Cluster(config.cluster, roles, say) as cluster:
        Launch(..., child=cluster.child).run()

The trainer's rank 0 runs on the launcher's node, which has the run directory; servers and other ranks run on any node.
If a role's node is lost, the role waits until another node has room.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from hone.errors import UserError
from hone.extensions.cluster.tunnel import Gate, Tunnels
from hone.loops.child import ORCHESTRATOR, TRAINER, Child, Log

if TYPE_CHECKING:
    from hone.extensions.cluster.config import ClusterConfig

VARIABLE = "HONE_CLUSTER"
"""Environment variable of the orchestrator with the cluster's address, a space and the run's namespace."""
TOKEN = Path.home() / ".ray" / "auth_token"
"""Ray's file with the token of this user's clusters."""
SAY_AFTER = 10.0
"""Seconds that a role waits for room before a line reports the wait."""
CONNECT = 10.0
"""Seconds that the head of the cluster may take to answer."""
ENDING = 5.0
"""Seconds that an actor has to end its process."""
TRAVEL = ("HONE_", "HF_", "TRANSFORMERS_", "TORCH_", "NCCL_", "GLOO_", "VLLM_")
"""Prefixes of environment variables that a node's process gets from this machine. The others are the node's."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^(Raylet is terminated|The node with node id|A worker died)",
}
"""Settings of Ray: no usage statistics, and no lines about dead nodes, which the launcher reports."""
LOST = -9


@dataclass(frozen=True)
class Needs:
    """Cores and GPUs that one process of a role takes."""

    cpus: float
    gpus: float = 0

    @property
    def bundle(self) -> dict[str, float]:
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})

    @property
    def words(self) -> str:
        gpus = f" and {self.gpus:g} GPU{'s' if self.gpus > 1 else ''}" if self.gpus else ""
        return f"{self.cpus:g} core{'s' if self.cpus > 1 else ''}{gpus}"


class Cluster:
    """A run's connection to a cluster, as a context. `ranks` is the number of trainer ranks.

    `ports` maps a server's role to its port on this machine; servers may share a port. If `on_gpus` is true and the
    cluster has GPUs, a rank gets one GPU, and a server gets `server_gpus`. Raises UserError if Ray is missing, or if no
    cluster with this version of Ray is at the address.
    """

    def __init__(
        self,
        config: ClusterConfig,
        ports: Mapping[str, int],
        ranks: int = 0,
        server_gpus: int = 1,
        on_gpus: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.config, self.ports, self.ranks, self.server_gpus = config, ports, ranks, server_gpus
        self.on_gpus, self.say = on_gpus, say
        self.namespace = f"hone-{os.getpid()}-{time.time_ns():x}"
        self._rooms: dict[str, Any] = {}
        self._placing = Lock()
        self._children: list[RemoteChild] = []

    def __enter__(self) -> Cluster:
        config = self.config
        wanted = config.cpus * (self.ranks + len(self.ports)) + config.graders
        self.address = connect(config.address, self.namespace, wanted)
        import ray

        self._ray = ray
        self.node = ray.get_runtime_context().get_node_id()
        self.master = ray.util.get_node_ip_address()
        self.on_gpus = self.on_gpus and ray.cluster_resources().get("GPU", 0) > 0
        self.secret = secrets.token_bytes(32)
        self.tunnels = Tunnels(self.secret)
        if self.ranks:
            self._room(TRAINER)
        return self

    def needs(self, role: str) -> Needs:
        gpus = (1 if role == TRAINER else self.server_gpus) if self.on_gpus else 0
        return Needs(self.config.cpus, gpus)

    def __exit__(self, *_: object) -> None:
        for child in self._children:  # their threads need Ray
            child.join()
        self.tunnels.close()
        self._ray.shutdown()

    @property
    def variables(self) -> dict[str, str]:
        return {VARIABLE: f"{self.address} {self.namespace}"}

    def introduction(self) -> str:
        if self.config.address is None:
            return "Ray is started on this machine for this run alone (cluster.address names a running one)"
        nodes = self._nodes()
        cores = sum(node.get("CPU", 0) for node in nodes)
        gpus = sum(node.get("GPU", 0) for node in nodes)
        more = f" and {gpus:.0f} GPUs" if gpus else ""
        return f"Ray cluster at {self.address}: {len(nodes)} node{'s'[: len(nodes) != 1]} with {cores:.0f} cores{more}"

    def shortage(self, role: str) -> str:
        """Return a message if no node can hold a process of this role, else ""."""
        needs, nodes = self.needs(role), self._nodes(here=role == TRAINER and self.ranks == 1)
        fits = (all(node.get(name, 0) >= count for name, count in needs.bundle.items()) for node in nodes)
        if not nodes or any(fits):
            return ""
        most = Needs(*(max(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")))
        return f": no node allowed for it has {needs.words}; the most on one node are {most.words}"

    def _nodes(self, here: bool = False) -> list[dict[str, float]]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        return [node["Resources"] for node in alive if not here or node["NodeID"] == self.node]

    def child(
        self, role: str, rank: int | None, command: Sequence[str], env: dict[str, str], log: Log, echo: bool
    ) -> Child:
        """Start a process of a role: the orchestrator's on this machine, others on a node with room."""
        if role == ORCHESTRATOR:
            return Child(role, rank, command, env | self.variables, log, echo)
        if role in self.ports:
            self.tunnels.listen(self.ports[role])
        child = RemoteChild(self, role, rank, command, env, log)
        self._children = [other for other in self._children if other.watched] + [child]
        return child

    def host(self, role: str, rank: int | None) -> Any:
        """Return a new actor for a process of a role. The actor starts once a node has room."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from hone.extensions.cluster.host import Host

        needs = self.needs(role)
        room = PlacementGroupSchedulingStrategy(self._room(role), placement_group_bundle_index=rank or 0)
        options = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_concurrency": 1000}
        name = role if rank is None else f"{role}-{rank}"
        return self._ray.remote(Host).options(scheduling_strategy=room, name=self._fresh(name), **options).remote()

    def _room(self, role: str) -> Any:
        """Return a role's placement group, made at the first call. If a node is lost, Ray moves its bundles."""
        from ray.util.placement_group import placement_group

        with self._placing:
            if role not in self._rooms:
                bundles = [self.needs(role).bundle] * (self.ranks if role == TRAINER else 1)
                here = [{"ray.io/node-id": self.node}] if role == TRAINER else [{}]
                labels = [*here, *[{}] * (len(bundles) - 1)]
                self._rooms[role] = placement_group(bundles, "PACK", bundle_label_selector=labels)
            return self._rooms[role]

    def _fresh(self, name: str) -> str:
        """Kill the actor `name`, if it exists; return `name` once a new actor can have it."""
        try:
            self._ray.kill(self._ray.get_actor(name))
        except ValueError:
            return name
        while True:
            try:
                self._ray.get_actor(name)
            except ValueError:
                return name
            time.sleep(0.02)


class RemoteChild(Child):
    """A process on a node, as the launcher sees it. It counts as killed when its actor or its node is lost."""

    def __init__(
        self, cluster: Cluster, role: str, rank: int | None, command: Sequence[str], env: dict[str, str], log: Log
    ) -> None:
        self._set(role, rank, log)
        self.pid, self.node = 0, ""
        self._cluster, self._command, self._env = cluster, command, env
        self._host: Any = None
        self._ended: int | None = None
        self._lost, self._killed, self._deadline = "", Event(), float("inf")
        self._thread = Thread(target=self._live, name=f"watch-{role}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        where = f" on {self.node}" if self.node else ""
        return super().name.replace(f"(pid {self.pid})", f"(pid {self.pid}{where})" if self.pid else "(not placed yet)")

    @property
    def cause(self) -> str:
        return f"is lost with its node or its actor ({self._lost})" if self._lost else super().cause

    def send(self, signum: int) -> None:
        if self._host is None:  # not placed yet
            self.kill()
        elif self.code is None:
            self._host.send.remote(signum)

    def poll(self) -> int | None:
        if self.code is None:
            if self._ended is None and time.monotonic() > self._deadline:  # its node does not answer
                self._cluster._ray.kill(self._host)
                self._ended = LOST
            self.code = self._ended
        return self.code

    def kill(self) -> None:
        if self.code is None and not self._killed.is_set():
            self._killed.set()
            if self._host is not None:
                self._deadline = time.monotonic() + ENDING
                self._host.end.remote()
            else:
                self._ended = LOST

    @property
    def watched(self) -> bool:
        """True while the thread that watches the process still needs Ray."""
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(ENDING)

    def _live(self) -> None:
        ray, cluster, host = self._cluster._ray, self._cluster, None
        try:
            if cluster.ranks:  # servers must not take the trainer's cores
                self._wait(cluster._room(TRAINER).ready(), TRAINER)
            host = cluster.host(self.role, self.rank)
            facts = self._placed(host.facts.remote())
            check_versions(facts)
            self.node, self._host = facts["name"], host
            if self._killed.is_set():  # just now
                return
            self.pid = ray.get(host.start.remote(self.role, cluster.secret, *self._order()))
            code = None
            while code is None:
                lines, code, gate = ray.get(host.watch.remote())
                for line in lines:
                    self._pass_on(line)
                if gate is not None:
                    self._point(Gate(*gate))
            ray.get(host.end.remote(), timeout=ENDING)
            self._ended = code
        except UserError as error:
            self._pass_on(f"error: {error}\n".encode())
            self._ended = 2
        except Exception as error:  # Ray's: the actor, its worker or its node is gone
            if not self._killed.is_set():
                self._lost = type(error).__name__
            self._ended = LOST
        finally:
            self._point(None)
            if host is not None:
                ray.kill(host)

    def _point(self, gate: Gate | None) -> None:
        if self.role in self._cluster.ports:
            self._cluster.tunnels.point(self._cluster.ports[self.role], self.role, gate)

    def _wait(self, reference: Any, role: str) -> None:
        cluster, began, said = self._cluster, time.monotonic(), 0.0
        while not cluster._ray.wait([reference], timeout=0.5)[0]:
            if self._killed.is_set():
                raise UserError(f"{self.role} was not placed")
            waited = time.monotonic() - began
            if waited > max(SAY_AFTER, 2 * said) and role == self.role and not self.rank:
                said, needs = waited, f"{cluster.needs(role).words} free"
                if role == TRAINER:
                    needs += " on this machine" if cluster.ranks == 1 else f" for each of {cluster.ranks} ranks"
                else:
                    needs = f"a node with {needs}"
                cluster.say(f"{role} waits for {needs} ({waited:.0f} s){cluster.shortage(role)}")

    def _placed(self, facts: Any) -> dict[str, Any]:
        from ray.exceptions import RayActorError

        self._wait(facts, self.role)
        try:
            return self._cluster._ray.get(facts)
        except RayActorError as error:
            if not getattr(error, "actor_init_failed", False):
                raise
            reason = str(error).strip().splitlines()[-1]
            raise UserError(f"a node of the cluster can't load hone ({reason}): install it there, too") from None

    def _order(self) -> tuple[list[str], dict[str, str], dict[str, str], str]:
        read = [path for at, path in zip(self._command, self._command[1:], strict=False) if at == "@"]
        files = {path: Path(path).read_text(encoding="utf-8") for path in read}
        variables = {k: v for k, v in self._env.items() if os.environ.get(k) != v or k.startswith(TRAVEL)}
        if self.rank is not None:  # each rank sees its own GPU alone
            variables |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": self._cluster.master}
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # Ray says which
        command = [*self._command[1:]] if self._command[0] == sys.executable else [*self._command]
        return command, variables, files, os.getcwd()

    def _pass_on(self, line: bytes) -> None:
        self.log.write(b"[rank %d] %b" % (self.rank, line) if self.rank else line)
        self.lines.append(line.decode(errors="replace").rstrip())


def connect(address: str | None, namespace: str, cores: float | None = None) -> str:
    """Connect to the cluster at `address` or, if None, start one with `cores`. Return its address. Raises UserError."""
    if address is not None and address != "auto" and not address.rpartition(":")[2].isdecimal():
        raise UserError(f"cluster.address is {address!r}; it must be HOST:PORT, or auto")
    try:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # Ray does this for clusters that it starts, not for an address. It reads the variable at import.
        if address and (TOKEN.is_file() or "RAY_AUTH_TOKEN" in os.environ):
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        import ray
        from ray.exceptions import RayError
    except ImportError:
        raise UserError("a cluster needs Ray, which is not installed: pip install 'ray>=2.59'") from None
    start = {} if address else {"num_cpus": int(cores or 1), "include_dashboard": False}
    try:
        if address and ":" in address:  # without an answer Ray tries for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT).close()
        ray.init(address or "local", namespace=namespace, log_to_driver=False, logging_level=logging.ERROR, **start)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"no Ray cluster can be used at {address or 'this machine'} ({reason}): start one with `ray start --head`; "
            f"if it uses a token, copy it to {TOKEN}; or leave out cluster.address to start Ray on this machine"
        ) from None
    return ray.get_runtime_context().gcs_address


def check_versions(facts: Mapping[str, Any]) -> None:
    from hone.extensions.cluster.host import versions

    other = [f"{name} {facts[name]}" for name, version in versions().items() if facts[name] != version]
    if other:
        here = ", ".join(f"{name} {value}" for name, value in versions().items())
        raise UserError(f"node {facts['name']} has {', '.join(other)}, but this machine {here}: install the same there")
