"""Devices by name, and this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone import hardware
from hone.errors import UserError
from hone.extensions.planning.devices import DEVICES, device_named, this_device
from hone.hardware import ram

NAMES = {"h100": "h100", "RTX 4090": "rtx4090", "rtx-4090": "rtx4090", "24gb": "rtx4090", "48GB": "l40s"}
NAMES |= {"80": "h100", "141": "h200", "a100-80gb": "a100", "a100-40": "a100-40"}


@pytest.mark.parametrize("name", NAMES)
def test_devices_are_found_by_name_and_by_memory(name: str) -> None:
    assert device_named(name) == DEVICES[NAMES[name]]


def test_an_unknown_device_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no device is known as 'h1000': did you mean h100\?"):
        device_named("h1000")


def test_this_machine_has_memory_and_speed() -> None:
    device = this_device("cpu")
    assert device.kind == "cpu" and device.free is not None and 0 < device.free <= device.memory * 1.1
    assert min(device.flops.values()) > 1e8 and device.bandwidth > 1e8
    assert this_device("cpu", measured=False).flops == {}


def test_a_limit_of_the_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "CGROUP", tmp_path)
    monkeypatch.setattr(hardware, "resident_bytes", lambda: 0)
    (tmp_path / "memory.current").write_text(f"{100 * 2**20}\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert ram()[0] > 300 * 2**20
    (tmp_path / "memory.max").write_text(f"{300 * 2**20}\n")
    assert ram() == (300 * 2**20, 200 * 2**20)
    (tmp_path / "memory.stat").write_text(f"file {90 * 2**20}\ninactive_file {60 * 2**20}\n")
    assert ram() == (300 * 2**20, 260 * 2**20), "files in the cache make room when it is wanted"
