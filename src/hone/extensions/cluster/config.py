"""The section `cluster` of `hone rl` and `hone eval`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from hone.config.base import BaseConfig
from hone.errors import UserError


class ClusterConfig(BaseConfig):
    """Many machines: Ray places trainer ranks, inference replicas and graders on them (pip install 'ray>=2.59')."""

    bare = "address"

    address: str | None = None
    """The Ray cluster: HOST:PORT, or `auto` for a cluster that runs here. By default hone starts Ray here.
    Implies mode cluster."""
    cpus: int = Field(default=1, ge=1)
    """Cores for each trainer rank and each replica, even if it has a GPU."""
    graders: int = Field(default=0, ge=0, le=4096)
    """Grading processes on the nodes, one core each. With 0, this machine grades with `grading.workers`."""


class EvalClusterConfig(ClusterConfig):
    """Many machines: Ray places model servers and graders on them (pip install 'ray>=2.59')."""

    replicas: int = Field(default=1, ge=1, le=256)
    """Number of model servers."""
    port: int = Field(default=8000, ge=1, le=65535)
    """Port on this machine through which all servers answer."""


class RLKeys(BaseConfig):
    """Keys of `hone rl`."""

    cluster: ClusterConfig | None = None
    """The cluster; off unless given."""

    @model_validator(mode="after")
    def _check_cluster(self: Any) -> Any:
        if self.mode == "cluster" and self.cluster is None:
            self.cluster = ClusterConfig()
        if self.cluster is None:
            return self
        if self.mode == "colocated":
            raise UserError("mode colocated is one process, so it can't use a cluster: leave out one of the two")
        if self.orchestrator.client.urls:
            raise UserError(
                "a cluster starts the run's servers, but orchestrator.client.base_url names running ones: leave out "
                "one of the two"
            )
        self.mode = "split"
        return self


class EvalKeys(BaseConfig):
    """Keys of `hone eval`."""

    cluster: EvalClusterConfig | None = None
    """Serve the model on the nodes of a Ray cluster; off unless given."""

    @model_validator(mode="after")
    def _check_cluster(self: Any) -> Any:
        if self.cluster is not None and self.base_url is not None:
            raise UserError("a cluster serves the model, but base_url names a running server: leave out one")
        return self
