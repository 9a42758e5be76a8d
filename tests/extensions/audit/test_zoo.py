"""Broken rewards, as people have written them, are each caught with the right verdict; sound ones are left in peace.

A broken task fails by the finding that names its defect, and by no other than those that follow from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made import ZOO, write_zoo_task

from hone.environments import load_environment
from hone.extensions.audit.environment import audit_before_training, audit_environment
from hone.extensions.audit.report import Report

pytestmark = pytest.mark.audit

TASKS: list[Any] = ["reverse-text", "char-count", "countdown", "scramble", "calculator", "gsm8k", "math-problems"]
TASKS += ["one-shot", pytest.param("math-python", marks=pytest.mark.sandbox)]


def failures(report: Report) -> str:
    lines = [f"{finding.name}: {finding.title} {finding.shown[:1]}" for finding in report.failures]
    return "\n".join(lines) or "no failure"


def audited(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, timeout: float = 1.0) -> Report:
    monkeypatch.chdir(folder)
    env = load_environment(write_zoo_task(folder, name))
    return audit_environment(env, num_examples=4, timeout=timeout, max_tokens=128)


@pytest.mark.parametrize("name", ZOO["broken"])
def test_a_broken_reward_is_caught_by_its_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, also = ZOO["broken"][name]["fails"], ZOO["broken"][name].get("also", "").split()
    report = audited(name, tmp_path, monkeypatch, timeout=0.5 if "hangs" in (expected, *also) else 1.0)
    assert expected in report.names(), failures(report)
    assert report.names() <= {expected, *also}, failures(report)


@pytest.mark.parametrize("name", ZOO["sound"])
def test_a_sound_reward_passes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = audited(name, tmp_path, monkeypatch)
    assert not report.failures, failures(report)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_hones_own_passes(task: str) -> None:
    report = audit_environment(load_environment(task), num_examples=8, max_tokens=1024)
    assert not report.failures, failures(report)
    restyled = next(check for check in report.checks if check.name == "restylings")
    assert restyled.figures["restylings"] >= 25 and not restyled.figures["lost"]


def test_the_last_number_is_lost_as_solutions_grow_and_training_is_refused() -> None:
    env = load_environment("gsm8k", mode="sparse")
    report = audit_environment(env, num_examples=8, max_tokens=1024)
    assert report.names() == {"growth"}, failures(report)
    assert audit_before_training(env, max_tokens=1024).names() == {"growth"}
