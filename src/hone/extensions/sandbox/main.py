"""The first process in the sandbox, which starts the code. This file imports nothing of hone.

    python -P -s -S -B -X utf8 -c SOURCE SCRATCH NAME PACKAGES KEY=NUMBER …

It drops its rights, reports that it is ready, waits for the start byte, and runs the code as the main module of a
child, under the kernel's limits. It reports the child's exit code. It ends when hone ends, because its pipe then
closes, and at the latest some seconds after the deadline. It is process 1 of the sandbox, so the kernel ends all other
processes with it. It reads the code from an open file, so that no list of processes shows the code.
"""


def _prepare(given):
    import os
    import resource  # noqa: F401 - for `_supervise`, when the code may have replaced files

    uid = given["uid"]
    if uid:  # drop the rights that made the file system
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    parts = []
    while part := os.read(given["code"], 1 << 20):
        parts.append(part)
    os.close(given["code"])
    with open("main.py", "wb") as file:
        file.writelines(parts)
    os.write(given["report"], b"ready\n")
    if os.read(given["go"], 1) != b"g":  # whoever wanted this is gone
        os._exit(1)
    return b"".join(parts)


def _limit(given):
    """Set limits of this process and its children, which they can't raise again."""
    import resource

    limits = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 256, 256),
        (resource.RLIMIT_RTPRIO, 0, 0),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_STACK, 8 << 20, 8 << 20),
        (resource.RLIMIT_NOFILE, 256, 256),
        (resource.RLIMIT_FSIZE, given["file"], given["file"]),
        (resource.RLIMIT_CPU, given["cpu"], given["cpu"] + 1),
        (resource.RLIMIT_AS, given["memory"], given["memory"] + (32 << 20)),
        (resource.RLIMIT_NPROC, given["processes"], given["processes"]),
    ]
    for kind, soft, hard in limits:
        allowed = resource.getrlimit(kind)[1]
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(kind, (soft, hard))


def _supervise(given, child, ready):
    """Wait for the child and report its exit code. End all processes when hone is gone.

    Closes `ready` to let the child begin. The threads here start earlier, or the code could use up the limit of tasks.
    This function imports only built-in or loaded modules, because reading files now would delay the answer.
    """
    import _signal  # pyright: ignore
    import _thread
    import os
    import time

    def end(wait, value):
        wait(*value)
        if given["group"]:
            os.kill(0, _signal.SIGKILL)  # all of it
        os._exit(1)

    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    for fd in (0, 1, 2):
        os.close(fd)
    _thread.start_new_thread(end, (os.read, (given["go"], 1)))
    _thread.start_new_thread(end, (time.sleep, (given["clock"],)))
    os.close(ready)
    try:
        while True:
            pid, status, used = os.wait3(0)  # orphans too
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                if code == -_signal.SIGKILL and used.ru_utime + used.ru_stime >= given["cpu"]:
                    code = -_signal.SIGXCPU  # it would not hear that, and the kernel's last limit ended it
                os.write(given["report"], b"%d\n" % code)
    except ChildProcessError:  # all have ended
        _signal.pause()


def _show(error, traceback):
    """Print the traceback as Python does, without the frames of this file."""
    import sys

    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, traceback)
        return
    from traceback import print_exception

    print_exception(type(error), error, traceback)


def _run(text, name, no_memory, namespace, show=_show):
    try:
        exec(compile(text.decode("utf-8", "surrogatepass"), name, "exec", dont_inherit=True), namespace)
    except SystemExit:
        raise
    except BaseException as error:
        import os

        code = 1
        if isinstance(error, MemoryError):
            import resource

            code = no_memory
            hard = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))  # what it takes to say so
        try:
            show(error, error.__traceback__ and error.__traceback__.tb_next)
        except MemoryError:
            os.write(2, b"MemoryError\n")
        return code
    return 0


def _main():
    import builtins
    import os
    import sys

    scratch, name, packages, *words = sys.argv[1:]
    pairs = (word.split("=") for word in words)
    given = {key: int(value) for key, value in pairs}
    text = _prepare(given)
    begin, ready = os.pipe()
    child = os.fork()
    if child:
        _supervise(given, child, ready)
    os.close(ready)
    os.read(begin, 1)
    for fd in (given["report"], given["go"], begin):
        os.close(fd)
    _limit(given)
    sys.argv = [name]
    sys.path[:0] = [scratch]
    sys.path += packages.split(":") if packages else []
    sys.stdout.reconfigure(line_buffering=True, errors="surrogatepass")  # pyright: ignore
    sys.stderr.reconfigure(errors="backslashreplace")  # pyright: ignore
    builtins.exit = builtins.quit = sys.exit
    main = sys.modules["__main__"].__dict__
    run = _run
    for each in ("_prepare", "_limit", "_supervise", "_show", "_run", "_main"):
        del main[each]
    main.update(__file__=name, __doc__=None)
    code = run(text, name, given["no_memory"], main)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    _main()
