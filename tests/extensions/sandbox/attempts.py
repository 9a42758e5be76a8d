"""Attempts to get out of the sandbox, as data.

Each is code that prints ESCAPED if it did what must not happen, and what it saw of the canaries (`{port}` and its like
are told to it). What a plain process of the same user can do is marked `plain`: the tests do it there too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attempt:
    name: str
    code: str
    plain: bool = True
    root: bool = False
    """Whether a plain process must be root's for it."""


# `call(name, *arguments)` makes a system call without libc's help; it is the result, or minus the error's number.
PRELUDE = """
import ctypes, errno, os, socket, sys
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
NUMBERS = {numbers}
def call(name, *arguments):
    number = NUMBERS.get(name, name)
    ctypes.set_errno(0)
    done = LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return done if done != -1 else -ctypes.get_errno()
def escaped(what=""):
    print("ESCAPED", what, flush=True)
print("tried", flush=True)
"""


def _read(path: str) -> str:
    return f"print(open({path!r}, 'rb').read()); escaped()"


def _call(*arguments: object) -> str:
    return f"if call({', '.join(map(repr, arguments))}) >= 0: escaped()"


PLAIN = {
    # Network
    "tcp to the host": "socket.create_connection(('127.0.0.1', {port}), 60); escaped()",
    "a server": "s = socket.create_server(('127.0.0.1', 0)); escaped()",
    "abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0{abstract}'); escaped()",
    "socket of a path": "s = socket.socket(socket.AF_UNIX); s.connect('{folder}/socket'); escaped()",
    "pair of sockets": "socket.socketpair(); escaped()",
    # Reading
    "a secret in /tmp": _read("{folder}/secret"),
    "a secret at home": _read("{home}/secret"),
    "the project": _read("{project}/pyproject.toml"),
    "installed packages": "names = os.listdir('{packages}'); escaped() if names else None",
    "the home folder": "print(os.listdir('{home}')); escaped()",
    "through a symbolic link": "os.symlink('{folder}/secret', 'a'); print(open('a').read()); escaped()",
    "by an interpreter of its own": """
os.execv(sys.executable, ['python', '-c', 'print(open("{folder}/secret").read(), "ESCAPED")'])
""",
    "the environment of all": """
import glob
for path in glob.glob('/proc/[0-9]*/environ'):
    if path != '/proc/%d/environ' % os.getpid():
        try: print(open(path, 'rb').read())
        except OSError: continue
        escaped(path)
""",
    "its own mounts": _read("/proc/self/mountinfo"),
    "the devices of the host": "print(os.listdir('/sys')); escaped()",
    "shared memory by name": _read("/dev/shm/{shared}"),
    "a queue of messages": "q = LIBC.mq_open(b'/{shared}', 0); escaped() if q >= 0 else None",
    # Writing
    "a file in /tmp": "open('{folder}/written', 'w').write('x'); escaped()",
    "over a secret": "open('{folder}/other', 'a').write('x'); escaped()",
    # System calls
    "memory that is a file": "f = call('memfd_create', ctypes.c_char_p(b'x'), 0)\nif f >= 0: escaped()",
    # Processes
    "the end of the victim": "os.kill({victim}, 9); escaped()",
    "a group of the host": "os.killpg({group}, 0); escaped()",
    "a library before all others": """
import subprocess
code = 'import os\\ntry:\\n print(open("{folder}/secret").read(), "ESCAPED")\\nexcept OSError: pass'
for name in ('LD_PRELOAD', 'LD_AUDIT', 'LD_LIBRARY_PATH'):
    subprocess.run([sys.executable, '-c', code], env={**os.environ, name: '/scratch/x.so'})
""",
}
"""What a plain process of the same user can do."""

ROOT = {
    # Network
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); escaped()",
    # Reading
    "the passwords": _read("/etc/shadow"),
    # Writing
    "the memory of its parent": "open('/proc/%d/mem' % os.getppid(), 'rb'); escaped()",
    "the standard library": "open(os.__file__, 'a').write(''); escaped()",
    "settings of the kernel": "open('/proc/sys/kernel/core_pattern', 'r+').write(''); escaped()",
    # System calls
    "another root": "os.mkdir('r'); os.chroot('r'); [os.chdir('..') for _ in range(9)]; os.chroot('.'); escaped()",
    "a mount namespace": _call("unshare", 0x00020000),
    "tracing the victim": """
if call('ptrace', 0x4206, {victim}, 0, 0) == 0:
    call('ptrace', 17, {victim}, 0, 0)
    escaped()
""",
    "files of the victim": """
fd = call('pidfd_open', {victim}, 0)
if fd >= 0 and call('pidfd_getfd', fd, 1, 0) >= 0: escaped()
""",
    # Processes
    "a higher priority": "os.nice(-5); escaped()",
    "root": "os.setuid(0); escaped()",
    "rights": """
head, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
LIBC.capget(head, data)
if any(data[i] for i in (0, 1, 3, 4)): escaped(list(data))
""",
}
"""What a plain process of root can do."""

INSIDE = {
    # Network
    # Reading
    "by an inherited file": """
for fd in range(3, 4096):
    try: kind = os.fstat(fd)
    except OSError: continue
    escaped((fd, kind))
""",
    "the environment of the first process": _read("/proc/1/environ"),
    "the environment's secret": "if 'HONE_CANARY' in os.environ: escaped()",
    "the terminal": "open('/dev/tty', 'r+'); escaped()",
    "a device of its own": "os.mknod('m', 0o20600, os.makedev(1, 1)); open('m', 'rb'); escaped()",
    # Writing
    "beside the standard library": "open(os.path.dirname(os.__file__) + '/hone_canary.py', 'w'); escaped()",
    "the root": "open('/hone_canary', 'w'); escaped()",
    "the interpreter": "open(sys.executable, 'r+b'); escaped()",
    "a trigger of the kernel": "open('/proc/sysrq-trigger', 'w'); escaped()",
    # System calls
    "a mount": _call("mount", 0, 0, 0, 4096, 0),
    "a user namespace": _call("unshare", 0x10000000),
    "a user namespace by clone": """
pid = call('clone', 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0: os._exit(0)
if pid > 0: escaped()
""",
    # Processes
    "the end of all": "os.kill(-1, 9)",
    "real time": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)); escaped()",
    "a program that changes users": """
for folder, _, names in os.walk('/', onerror=None):
    for name in names:
        try: mode = os.lstat(os.path.join(folder, name)).st_mode
        except OSError: continue
        if mode & 0o6000: escaped(os.path.join(folder, name))
""",
    "a program of its own that changes users": """
import shutil
shutil.copy(sys.executable, 'own'); os.chmod('own', 0o6755)
pid = os.fork()
if pid == 0:
    os.execv('own', ['own', '-c', 'import os; print("ESCAPED" if os.geteuid() != os.getuid() else "")'])
os.waitpid(pid, 0)
""",
    "limits of its own": """
import resource
for kind in range(16):
    soft, hard = resource.getrlimit(kind)
    try: resource.setrlimit(kind, (-1, -1))
    except (ValueError, OSError): continue
    if hard != -1: escaped(kind)
""",
}
"""What must not happen in a sandbox, whatever a plain process can do."""

ATTEMPTS = [
    *(Attempt(name, code) for name, code in PLAIN.items()),
    *(Attempt(name, code, root=True) for name, code in ROOT.items()),
    *(Attempt(name, code, plain=False) for name, code in INSIDE.items()),
]


def filled(text: str, canaries: dict[str, object]) -> str:
    """`text` with the canaries' names and numbers."""
    for name, value in canaries.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
