"""The filter of system calls, by a small interpreter of its program: number and arguments in, verdict out."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.grading import seccomp

EPERM, ENOSYS = seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
HARMLESS = {  # what any Python program calls
    "x86_64": {
        "read": 0,
        "write": 1,
        "mmap": 9,
        "brk": 12,
        "fork": 57,
        "execve": 59,
        "exit_group": 231,
        "getrandom": 318,
    },
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "brk": 214, "execve": 221, "exit_group": 94, "getrandom": 278},
}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the kernel would make of the program, which must end within its length."""
    program = list(struct.iter_unpack("=HBBI", seccomp.program(machine)))
    architecture = seccomp.ARCHITECTURE[machine] if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = program[at]
        at += 1
        if code == 0x06:  # RET K
            return value
        if code == 0x20:  # LD W ABS
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        assert code in (0x15, 0x25, 0x45), "JMP JEQ, JGT or JSET, all with K"
        test = {0x15: accumulator == value, 0x25: accumulator > value, 0x45: accumulator & value != 0}[code]
        at += if_true if test else if_false


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_what_is_denied_and_nothing_else(machine: str) -> None:
    column = seccomp.MACHINES.index(machine)
    denied = {numbers[column] for numbers in seccomp.DENIED.values()} - {None}
    assert {number for number in range(seccomp.LAST + 1) if verdict(machine, number) == EPERM} == denied
    allowed = set(range(seccomp.LAST + 1)) - denied - {seccomp.CLONE3[column]}
    assert {verdict(machine, number) for number in allowed} == {seccomp.ALLOW}
    assert set(HARMLESS[machine].values()) <= allowed
    assert {verdict(machine, number) for number in (seccomp.CLONE3[column], 451, 999, 2**31, 2**32 - 1)} == {ENOSYS}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_another_architecture_is_killed_whatever_it_calls(machine: str) -> None:
    for other in {0x40000003, *seccomp.ARCHITECTURE.values()} - {seccomp.ARCHITECTURE[machine]}:  # 32-bit x86 too
        assert {verdict(machine, number, architecture=other) for number in (0, 1, 41, 165, 999)} == {seccomp.KILL}


def test_the_x32_calls_are_unknown() -> None:
    assert {verdict("x86_64", 0x40000000 | number) for number in (0, 39, 41, 165, 512)} == {ENOSYS}


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_clone_may_make_processes_and_threads_but_no_namespace(machine: str) -> None:
    number = seccomp.CLONE[seccomp.MACHINES.index(machine)]
    process, thread = 17 | 0x01200000, 0x003D0F00
    assert {verdict(machine, number, flags) for flags in (0, 17, process, thread)} == {seccomp.ALLOW}
    new = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]
    assert {verdict(machine, number, flags | process) for flags in new} == {EPERM}
    assert verdict(machine, number, 1 << 60 | 0x10000000) == EPERM, "the kernel leaves out the high half"


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_ioctl_may_do_all_but_type_into_a_terminal(machine: str) -> None:
    number = seccomp.IOCTL[seccomp.MACHINES.index(machine)]
    assert {verdict(machine, number, 0, request) for request in (0x5401, 0x5413, 0x541B)} == {seccomp.ALLOW}
    typing = [0x5412, 0x541C]
    assert {verdict(machine, number, 0, request | high << 32) for request in typing for high in (0, 1, 2**31)} == {
        EPERM
    }
    assert verdict(machine, number, 0x5412, 0x5401) == seccomp.ALLOW, "the file's number is not the request"


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_numbers_are_those_of_the_kernel(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is not installed")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", header.read_text(), re.MULTILINE)
    known = {name: int(number) for name, number in found}
    column = seccomp.MACHINES.index(machine)
    ours = {"clone": seccomp.CLONE, "clone3": seccomp.CLONE3, "ioctl": seccomp.IOCTL, **seccomp.DENIED}
    assert {name: numbers[column] for name, numbers in ours.items()} == {name: known.get(name) for name in ours}


def test_the_program_fits_the_kernel_and_other_machines_are_refused() -> None:
    for machine in seccomp.MACHINES:
        assert len(seccomp.program(machine)) // 8 < 4096
    with pytest.raises(UserError, match="x86_64 and aarch64, not those of riscv64"):
        seccomp.program("riscv64")
