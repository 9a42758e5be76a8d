"""What the filter of system calls answers, on both architectures: its program is run here as the kernel would."""

from __future__ import annotations

import errno
import re
import signal
import struct
from pathlib import Path

import pytest

from hone.errors import UserError
from hone.extensions.sandbox import seccomp

ALLOWED, REFUSED, UNKNOWN = seccomp.ALLOW, seccomp.ERRNO | errno.EPERM, seccomp.ERRNO | errno.ENOSYS
HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    code = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    value = at = 0
    while True:
        operation, if_so, if_not, operand = code[at]
        at += 1
        match operation:
            case 0x20:
                [value] = struct.unpack_from("=I", data, operand)
            case 0x15 | 0x25 | 0x45:
                so = {0x15: value == operand, 0x25: value > operand, 0x45: bool(value & operand)}[operation]
                at += if_so if so else if_not
            case 0x06:
                return operand
            case _:
                raise AssertionError(operation)


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_verdict_on_each_call(machine: str) -> None:
    column = seccomp.MACHINES.index(machine)

    def says(number: int, *arguments: int) -> int:
        return verdict(seccomp.program(machine), seccomp.ARCHITECTURE[machine], number, *arguments)

    refused = {numbers[column] for numbers in seccomp.DENIED.values()} - {None}
    clone, clone3, ioctl, action = (
        numbers[column] for numbers in (seccomp.CLONE, seccomp.CLONE3, seccomp.IOCTL, seccomp.SIGACTION)
    )
    for number in range(seccomp.LAST + 1):
        expected = REFUSED if number in refused else UNKNOWN if number == clone3 else ALLOWED
        assert says(number) == expected, number
    assert {says(number) for number in (seccomp.LAST + 1, 500, 0x40000000 | 39, 2**32 - 1)} == {UNKNOWN}
    assert says(clone, signal.SIGCHLD | 0x100) == ALLOWED
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert says(clone, signal.SIGCHLD | namespace) == REFUSED
    assert [says(ioctl, 1, request) for request in (0x5401, 0x5412, 0x541C, 1 << 32 | 0x5412)] == [
        ALLOWED, REFUSED, REFUSED, REFUSED,
    ]  # fmt: skip
    assert [says(action, signal.SIGCHLD, new) for new in (0, 0x7FFF1000, 1 << 32)] == [ALLOWED, REFUSED, REFUSED]
    assert says(action, signal.SIGTERM, 0x7FFF1000) == ALLOWED


def test_another_architecture_ends_the_process_and_has_no_filter() -> None:
    i386 = 0x40000003
    assert verdict(seccomp.program("x86_64"), i386, 20) == seccomp.KILL
    assert verdict(seccomp.program("aarch64"), seccomp.ARCHITECTURE["x86_64"], 39) == seccomp.KILL
    with pytest.raises(UserError, match="not those of riscv64"):
        seccomp.program("riscv64")


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    column = seccomp.MACHINES.index(machine)
    if not HEADERS[column].exists():
        pytest.skip("the kernel's headers for it are not installed")
    text = HEADERS[column].read_text()
    kernel = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    others = {
        "clone": seccomp.CLONE,
        "clone3": seccomp.CLONE3,
        "ioctl": seccomp.IOCTL,
        "rt_sigaction": seccomp.SIGACTION,
    }
    here = {name: numbers[column] for name, numbers in (seccomp.DENIED | others).items()}
    assert {name: kernel.get(name, number) for name, number in here.items()} == here
