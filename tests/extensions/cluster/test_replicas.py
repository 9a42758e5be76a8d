"""Servers of an evaluation on a cluster: which are started again, and how often. The cluster is a stand-in."""

from __future__ import annotations

import pytest

from hone.errors import UserError
from hone.extensions.cluster.config import ClusterConfig

pytest.importorskip("ray")
from hone.extensions.cluster.replicas import RESTARTS, Replicas


class Dead:
    def __init__(self, role: str, code: int) -> None:
        self.name, self.code, self.cause = role, code, f"ended with {code}"

    def poll(self) -> int:
        return self.code


def replicas(monkeypatch, codes: dict[str, int]) -> tuple[Replicas, list[str], list[str]]:
    """Servers that all end at once, each with its code; which were started again, and what was said."""
    started, said = [], []
    found = Replicas(ClusterConfig(), {role: [] for role in codes}, 1, {}, said.append)
    found._children = {role: Dead(role, code) for role, code in codes.items()}  # type: ignore[assignment]
    monkeypatch.setattr(found, "_start", started.append)
    return found, started, said


def test_a_killed_server_is_started_again_so_often(monkeypatch):
    found, started, said = replicas(monkeypatch, {"inference-0": -9})
    for _ in range(RESTARTS + 2):
        found._replace()
    assert started == ["inference-0"] * RESTARTS
    assert said[-1] == "inference-0 ended with -9: no server is left" and len(said) == RESTARTS + 1


def test_a_server_that_ends_by_itself_is_not_started_again(monkeypatch):
    found, started, said = replicas(monkeypatch, {"inference-0": 1, "inference-1": -9})
    found._replace()
    assert started == ["inference-1"] and said[0] == "inference-0 ended with 1: going on without it"


def test_before_one_is_up_a_server_that_ends_by_itself_ends_the_evaluation(monkeypatch):
    found, *_ = replicas(monkeypatch, {"inference-0": 2})
    with pytest.raises(UserError, match="ended with 2 while it loaded"):
        found._check()
