"""torch and the device that it finds: a GPU that can't be used is the costliest surprise of all."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from hone.planning.doctor import Finding, Subject, gib
from hone.planning.doctor_python import has_gpu_driver, install_command
from hone.planning.doctor_torch import TorchChild

_QUERY = "index,name,memory.total,memory.used,driver_version"
_SECONDS = 8.0
_BUSY = 2**30
"""Memory of a GPU that others use, from which on it is told."""
BF16 = (8, 0)
"""Compute capability from which on a GPU multiplies in bf16."""


def device(subject: Subject) -> Iterator[Finding]:
    """torch's build, the GPUs that it finds, and those that it doesn't."""
    child = TorchChild(subject.env)
    try:
        facts = child.facts
    finally:
        child.close()
    if "error" in facts:
        fix = install_command("torch>=2.11")
        yield Finding("device", "torch", "error", f"can't be imported: {facts['error'][:200]}", fix)
        return
    build = f"CUDA {facts['cuda_build']}" if facts["cuda_build"] else "ROCm" if facts["hip"] else "CPU"
    yield Finding("device", "torch", "ok", f"{facts['version']}, a build for {build}")
    hidden = subject.env.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if facts["cuda"]:
        yield from _gpus(facts)
    elif hidden:
        yield Finding(
            "device", "GPU", "ok", "CUDA_VISIBLE_DEVICES hides all: hone uses the CPU", "unset CUDA_VISIBLE_DEVICES"
        )
    elif has_gpu_driver():
        yield _unused(facts, subject.env.get("CUDA_VISIBLE_DEVICES"))
    elif facts["mps"]:
        yield Finding("device", "GPU", "ok", "Apple's (MPS) is there; hone does not use it, and trains on the CPU")
    else:
        yield Finding("device", "GPU", "ok", f"none: hone uses the CPU ({platform.machine()})")


def _gpus(facts: dict[str, Any]) -> Iterator[Finding]:
    """Each GPU that torch can use."""
    for i, gpu in enumerate(facts["gpus"]):
        capability = tuple(gpu["capability"])
        name, arch = f"GPU {i}", f"sm_{capability[0]}{capability[1]}"
        text = f"{gpu['name']}, {gib(gpu['total'])}, {gib(gpu['free'])} free, "
        text += f"compute capability {capability[0]}.{capability[1]}"
        used, number = gpu["total"] - gpu["free"], _driver_index(gpu["uuid"])
        if facts["archs"] and not facts["hip"] and not _covered(arch, facts["archs"]):
            what = f"{text}: this build of torch has no code for it ({', '.join(facts['archs'])})"
            yield Finding("device", name, "error", what, _cuda_command())
        elif used > _BUSY:
            what = f"{text}: {gib(used)} are taken{_by_whom(number)}"
            yield Finding(
                "device",
                name,
                "warning",
                what,
                f"CUDA_VISIBLE_DEVICES=…   # another one; or end that process (nvidia-smi{number and f' -i {number}'})",
            )
        elif capability < BF16:
            what = f"{text}: it has no bf16, which is then emulated slowly"
            yield Finding("device", name, "warning", what, "--precision fp32")
        else:
            yield Finding("device", name, "ok", text)
    if len(facts["gpus"]) > 1:
        count = len(facts["gpus"])
        text = f"{count}: `rl` takes one for sampling and {count - 1} for training (mode split)"
        yield Finding("device", "GPUs", "ok", text, "--mode colocated --model.device cuda:0   # one alone")


def _covered(arch: str, archs: list[str]) -> bool:
    """Whether one of torch's architectures runs on `arch`: of its major version, or PTX of an older one."""
    number = int(re.sub(r"\D", "", arch))
    for known in archs:
        other = int(re.sub(r"\D", "", known) or 0)
        if known.startswith("compute_") and other <= number:
            return True
        if known.startswith("sm_") and other // 10 == number // 10 and other <= number:
            return True
    return False


def _unused(facts: dict[str, Any], named: str | None) -> Finding:
    """Why torch does not use the GPU that there is."""
    rows = nvidia_smi(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    names = ", ".join(row.split(", ")[1] for row in rows) or "an NVIDIA driver"
    if not facts["cuda_build"]:
        text = f"{names} is there, but this torch is a build for CPUs: runs would leave the GPU unused"
        return Finding("device", "GPU", "error", text, _cuda_command())
    said = next((text for text in facts["warnings"] if "driver" in text.lower() or "CUDA" in text), "")
    if "too old" in said or "older" in said:
        text = f"{names}: the driver is too old for this torch (CUDA {facts['cuda_build']}): {said[:160]}"
        return Finding(
            "device",
            "GPU",
            "error",
            text,
            "sudo apt-get install nvidia-driver-580   # or a torch for an older CUDA: " + _cuda_command("cu126"),
        )
    if named is not None:
        text = f"{names} is there, but torch finds none that CUDA_VISIBLE_DEVICES={named} names"
        return Finding("device", "GPU", "error", text, "unset CUDA_VISIBLE_DEVICES   # or one that nvidia-smi -L lists")
    text = f"{names} is there, but torch can't use it: {said[:200] or 'it gives no reason'}"
    return Finding(
        "device", "GPU", "error", text, "nvidia-smi   # does the driver answer? In a container: docker run --gpus all"
    )


def _cuda_command(build: str = "") -> str:
    """What puts a build of torch for CUDA in place of the one that is there, with the libraries of CUDA it needs."""
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if build else ""
    words = install_command("--force-reinstall", "torch>=2.11").partition(" --extra-index-url")[0]
    return words + index


def nvidia_smi(*words: str) -> list[str]:
    """Lines that nvidia-smi prints; none where there is no such program or it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def _driver_index(uuid: str) -> str:
    """The driver's number of a GPU; torch counts those that CUDA_VISIBLE_DEVICES names, the fastest first."""
    rows = [row.split(", ") for row in nvidia_smi("--query-gpu=index,uuid", "--format=csv,noheader")] if uuid else []
    return next((index for index, known in rows if known.removeprefix("GPU-") == uuid), "")


def _by_whom(index: str) -> str:
    rows = nvidia_smi("-i", index, "--query-compute-apps=pid,used_memory", "--format=csv,noheader") if index else []
    return f", by process {', '.join(row.split(',')[0] for row in rows[:3])}" if rows else " by others"
