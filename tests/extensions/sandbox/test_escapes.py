"""Attempts to get out of the sandbox: none of them may succeed, and most would without it."""

from __future__ import annotations

import ast
import os
import platform
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from attempts import ATTEMPTS, PRELUDE, Attempt, filled
from canaries import SECRET, Canaries

from hone.extensions.sandbox import seccomp
from hone.grading import Ran, Sandbox

pytestmark = pytest.mark.sandbox
NUMBERS = {
    name: numbers[seccomp.MACHINES.index(platform.machine())]
    for name, numbers in {**seccomp.DENIED, "clone": seccomp.CLONE, "clone3": seccomp.CLONE3}.items()
    if numbers[seccomp.MACHINES.index(platform.machine())] is not None
} | {"pidfd_open": 434}
ADMIN = 1 << 21
"""CAP_SYS_ADMIN, which the root of a container often lacks."""


def is_root() -> bool:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return os.geteuid() == 0 and bool(int(status["CapEff"], 16) & ADMIN)


PLAIN = [attempt for attempt in ATTEMPTS if attempt.plain and (not attempt.root or is_root())]


def tried(sandbox: Sandbox, attempt: Attempt, canaries: Canaries) -> Ran:
    canaries.plant()
    return sandbox.run(filled(PRELUDE.replace("{numbers}", repr(NUMBERS)) + attempt.code, canaries.known))


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_no_attempt_succeeds(attempt: Attempt, sandbox: Sandbox, canaries: Canaries) -> None:
    ran = tried(sandbox, attempt, canaries)
    assert ran.output.startswith("tried"), ran
    assert "ESCAPED" not in ran.output and SECRET not in ran.output + ran.errors, ran
    assert ran.status in ("ok", "error") and canaries.harmed() == []


@pytest.mark.parametrize("attempt", PLAIN, ids=lambda attempt: attempt.name)
def test_the_attempt_succeeds_in_a_plain_process(attempt: Attempt, sandbox: Sandbox, canaries: Canaries) -> None:
    """So the tests above would see it."""
    ran = tried(Sandbox(sandbox.limits, isolation="none"), attempt, canaries)
    assert "ESCAPED" in ran.output or canaries.harmed(), ran


def test_every_denied_system_call_is_refused(sandbox: Sandbox) -> None:
    code = PRELUDE.replace("{numbers}", repr(NUMBERS))
    ran = sandbox.run(
        code + "print({name: call(name, 0, 0, 0, 0, 0) for name in NUMBERS if name not in ('clone', 'pidfd_open')})"
    )
    got = ast.literal_eval(ran.output.splitlines()[1])
    assert got.pop("clone3") == -38
    assert len(got) > 100 and set(got.values()) == {-1}, got


def test_without_the_filter_the_namespaces_still_keep_the_host_from_harm(sandbox: Sandbox, canaries: Canaries) -> None:
    """Each layer holds by itself: what is found open then is within the sandbox."""
    other = Sandbox(sandbox.limits)
    other._place = replace(other._place, filter=struct.pack("=HBBI", 0x06, 0, 0, seccomp.ALLOW))
    for attempt in ATTEMPTS:
        ran = tried(other, attempt, canaries)
        assert SECRET not in ran.output + ran.errors and canaries.harmed() == [], (attempt.name, ran)
