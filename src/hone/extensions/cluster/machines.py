"""The machines of a Ray cluster for runs and evaluations (implements `hone.extension.Machines`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hone.config.base import changed
from hone.errors import UserError

if TYPE_CHECKING:
    from hone.config.eval import EvalConfig
    from hone.config.rl import RLConfig
    from hone.config.shared import GradingConfig
    from hone.environments import Environment
    from hone.extensions.cluster.nodes import Cluster
    from hone.extensions.cluster.weights import Carrier


def of_config(config: Any) -> ClusterMachines | None:
    return None if config.cluster is None else ClusterMachines(config.cluster)


class ClusterMachines:
    place, process_place = "the nodes of a Ray cluster", "on a node of the cluster"

    def __init__(self, settings: Any) -> None:
        self.settings, self.cores, self.graders = settings, settings.cpus, settings.graders

    def use_graders(self, env: Environment, grading: GradingConfig) -> GradingConfig:
        if self.graders and env.all_inline:
            print(f"{env.label} needs no cluster.graders: its functions run in hone's process", file=sys.stderr)
        elif self.graders:
            from hone.environments.services import Service

            if services := [name for name, func in env.rubric.funcs.items() if isinstance(func, Service)]:
                raise UserError(f"{services[0]} is a service, which this machine asks: set cluster.graders = 0")
            from hone.extensions.cluster.graders import RemoteProcess

            grading, env.make_process = changed(grading, {"workers": self.graders}), RemoteProcess
        return grading

    @contextmanager
    def serve(self, config: EvalConfig) -> Iterator[EvalConfig]:
        from hone.commands.status import Status
        from hone.config.dump import to_toml
        from hone.config.shared import ModelConfig
        from hone.extensions.cluster.replicas import Replicas
        from hone.extensions.server.config import ServeConfig
        from hone.extensions.split.placement import server_roles
        from hone.hardware import CORES
        from hone.loops.child import INFERENCE
        from hone.loops.shared_memory import scratch_folder

        cluster = self.settings
        settings = {name: getattr(config, name) for name in ("precision", "threads", "kv_gib", "seed")}
        model = ModelConfig(name=config.model, chat_template=config.chat_template, special_tokens=config.special_tokens)
        status = Status(sys.stderr)
        with scratch_folder("eval") as scratch:
            served = scratch / "inference.toml"
            served.write_text(to_toml(ServeConfig(model=model, **settings)), encoding="utf-8")
            command = [sys.executable, "-P", "-m", "hone.cli", INFERENCE, "@", str(served)]
            commands = dict.fromkeys(server_roles(cluster.replicas), command)
            env = {CORES: str(cluster.cpus)}
            status(f"{cluster.replicas} servers of {config.model} are starting on the nodes")
            with Replicas(cluster, commands, cluster.port, env, say=partial(print, file=sys.stderr, flush=True)):
                status.clear()
                concurrency = config.concurrency * cluster.replicas
                url = {"base_url": f"http://127.0.0.1:{cluster.port}/v1", "concurrency": concurrency}
                yield changed(config, url)

    def nodes(self, config: RLConfig, say: Callable[[str], None]) -> Cluster:
        from hone.extensions.cluster.nodes import Cluster
        from hone.extensions.split.placement import server_roles

        inference, on_gpus = config.inference, config.model.device in ("auto", "cuda")
        ports = {name: inference.port + number for number, name in enumerate(server_roles(inference.replicas))}
        return Cluster(self.settings, ports, config.trainer.ranks, inference.gpus, on_gpus, say)

    def join(self) -> None:
        from hone.extensions.cluster.nodes import VARIABLE, connect

        address, namespace = os.environ[VARIABLE].split()
        connect(address, namespace)

    def carrier(self, servers: Sequence[str], memory: Path | None) -> Carrier:
        from hone.extensions.cluster.weights import Carrier

        return Carrier(servers, memory)
