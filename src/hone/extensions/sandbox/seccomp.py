"""The system calls that code in the sandbox may not make, as a filter program for the kernel.

The program is classic BPF over `struct seccomp_data` (number, architecture, instruction pointer, six arguments of 64
bits), as seccomp(2) describes it. A call that no calculation needs returns EPERM. A call newer than the list returns
ENOSYS, as on an older kernel. A call of another architecture kills the process. Numbers are from asm/unistd_64.h
and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct

from hone.errors import UserError

MACHINES = ("x86_64", "aarch64")
ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_X86_64 and AUDIT_ARCH_AARCH64 of linux/audit.h."""

_DENIED = """
# The network: sockets of every family, also local ones.
socket 41 198, socketpair 53 199, bind 49 200, connect 42 203, listen 50 201, accept 43 202, accept4 288 242,
sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243,
shutdown 48 210, setsockopt 54 208, getsockopt 55 209, getsockname 51 204, getpeername 52 205,
# Other processes' memory and files.
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440,
process_mrelease 448 448, pidfd_getfd 438 438, kcmp 312 272,
# Namespaces, mounts, files by handle, watching whole mounts.
unshare 272 97, setns 308 268, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
open_tree 428 428, move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
mount_setattr 442 442, quotactl 179 60, quotactl_fd 443 443, name_to_handle_at 303 264,
open_by_handle_at 304 265, fanotify_init 300 262, fanotify_mark 301 263,
# The machine, its clock, keys and modules; interfaces that have been the way out of many a sandbox.
bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, io_uring_setup 425 425, io_uring_enter 426 426,
io_uring_register 427 427, add_key 248 217, request_key 249 218, keyctl 250 219, init_module 175 105,
finit_module 313 273, delete_module 176 106, create_module 174 -, query_module 178 -, get_kernel_syms 177 -,
kexec_load 246 104, kexec_file_load 320 294, reboot 169 142, syslog 103 116, acct 163 89, swapon 167 224,
swapoff 168 225, sysfs 139 -, _sysctl 156 -, uselib 134 -, ustat 136 -, nfsservctl 180 42,
lookup_dcookie 212 18, sync 162 81, syncfs 306 267, vhangup 153 58, personality 135 92, modify_ldt 154 -,
iopl 172 -, ioperm 173 -, settimeofday 164 170, clock_settime 227 112, clock_adjtime 305 266, adjtimex 159 171,
sethostname 170 161, setdomainname 171 162, memfd_secret 447 447,
# Memory that the limits on address space and files do not count.
memfd_create 319 279, shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, semget 64 190, semop 65 193,
semctl 66 191, semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185,
vmsplice 278 75, remap_file_pages 216 234, setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, mlock 149 228,
mlock2 325 284, mlockall 151 230, mbind 237 235, migrate_pages 256 238, move_pages 279 239,
set_mempolicy 238 237, set_mempolicy_home_node 450 450, io_setup 206 0,
"""
"""A name, its number on x86_64, and its number on aarch64 (-: no such call)."""
DENIED: dict[str, tuple[int | None, int | None]] = {
    name: (int(x86_64), None if aarch64 == "-" else int(aarch64))
    for line in _DENIED.splitlines()
    if not line.startswith("#")
    for name, x86_64, aarch64 in map(str.split, line.split(",")[:-1])
}

CLONE, CLONE3, IOCTL, SIGACTION = (56, 220), (435, 435), (16, 29), (13, 134)
LAST = 450
"""Newest call in this list (set_mempolicy_home_node, Linux 5.17). Higher numbers are later or x32 calls (bit 30)."""
NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET; only clone3 and unshare take NEWTIME."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal. The kernel reads only the low 32 bits of the request."""
SIGCHLD = 17
"""If a process ignores SIGCHLD, the kernel does not count its ended children's processor time."""

ALLOW, KILL = 0x7FFF0000, 0x80000000
ERRNO = 0x00050000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT_0, _ARGUMENT_1 = 0, 4, 16, 24  # offsets; of an argument its low 32 bits


def program(machine: str | None = None) -> bytes:
    """Return the filter for `machine` (default: this one), as `struct sock_filter`s. Raises UserError if unknown."""
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise UserError(
            f"the sandbox knows the system calls of {' and '.join(MACHINES)}, not those of {machine}: use one of these "
            'machines, or isolation "none" if this one has nothing to lose'
        )
    column = MACHINES.index(machine)
    refuse, unknown = ERRNO | errno.EPERM, ERRNO | errno.ENOSYS
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, ARCHITECTURE[machine]), (_RETURN, 0, 0, KILL)]
    code += [(_LOAD, 0, 0, _NUMBER), (_GREATER, 0, 1, LAST), (_RETURN, 0, 0, unknown)]
    code += [(_EQUAL, 0, 1, CLONE3[column]), (_RETURN, 0, 0, unknown)]  # its flags are in memory, out of sight
    for numbers in DENIED.values():
        if (number := numbers[column]) is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, refuse)]
    code += [(_EQUAL, 0, 4, CLONE[column]), (_LOAD, 0, 0, _ARGUMENT_0), (_ANY_BIT, 0, 1, NEW_NAMESPACES)]
    code += [(_RETURN, 0, 0, refuse), (_RETURN, 0, 0, ALLOW)]
    code += [(_EQUAL, 0, 5, IOCTL[column]), (_LOAD, 0, 0, _ARGUMENT_1), (_EQUAL, 1, 0, TERMINAL_INPUT[0])]
    code += [(_EQUAL, 0, 1, TERMINAL_INPUT[1]), (_RETURN, 0, 0, refuse), (_RETURN, 0, 0, ALLOW)]
    code += [(_EQUAL, 0, 7, SIGACTION[column]), (_LOAD, 0, 0, _ARGUMENT_0), (_EQUAL, 0, 5, SIGCHLD)]
    code += [(_LOAD, 0, 0, _ARGUMENT_1), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _ARGUMENT_1 + 4), (_EQUAL, 1, 0, 0)]
    code += [(_RETURN, 0, 0, refuse), (_RETURN, 0, 0, ALLOW)]  # to ask, with no action to set, is allowed
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
