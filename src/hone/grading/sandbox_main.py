"""What runs in the sandbox before the code does, and needs nothing of hone.

    python -P -s -S -B -X utf8 -c SOURCE NAME=VALUE …

It gives up what rights it has, sets the limits that the kernel holds, says that it is ready, waits for the word to go,
and runs the code as the main module. The code comes from an open file, so no process list shows it.
"""


def _prepare(given):
    """Everything up to the code itself. Returns it as bytes."""
    import os
    import resource

    uid = int(given["uid"])
    if uid:  # from here on nothing is left of the rights with which the file system was made
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if int(given["backstop"]):
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        signal.alarm(int(given["backstop"]))
    limits = [
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 256, 256),
        (resource.RLIMIT_RTPRIO, 0, 0),
        (resource.RLIMIT_NICE, 0, 0),
        (resource.RLIMIT_STACK, 8 << 20, 8 << 20),
        (resource.RLIMIT_NOFILE, 256, 256),
        (resource.RLIMIT_FSIZE, int(given["file"]), int(given["file"])),
        (resource.RLIMIT_CPU, int(given["cpu"]), int(given["cpu"]) + 1),
        (resource.RLIMIT_AS, int(given["memory"]), int(given["memory"]) + (32 << 20)),
        (resource.RLIMIT_NPROC, int(given["processes"]), int(given["processes"])),
    ]
    for kind, soft, hard in limits:
        allowed = resource.getrlimit(kind)[1]
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        if soft >= 0:
            resource.setrlimit(kind, (soft, hard))
    code, ready, go = int(given["code"]), int(given["ready"]), int(given["go"])
    parts = []
    while part := os.read(code, 1 << 20):
        parts.append(part)
    os.close(code)
    with open("main.py", "wb") as file:
        file.writelines(parts)
    os.write(ready, b"r")
    os.close(ready)
    if os.read(go, 1) != b"g":  # whoever wanted this is gone
        os._exit(1)
    os.close(go)
    return b"".join(parts)


def _show(error, traceback):
    """Writes the traceback as Python does, from the code's own frames on."""
    import sys

    if sys.excepthook is not sys.__excepthook__:
        sys.excepthook(type(error), error, traceback)
        return
    from traceback import print_exception

    print_exception(type(error), error, traceback)


def _run(text, given, namespace, show=_show):
    """Runs the code in the main module's namespace. Returns the exit code."""
    try:
        exec(compile(text.decode("utf-8", "surrogatepass"), given["name"], "exec", dont_inherit=True), namespace)
    except SystemExit:
        raise
    except BaseException as error:
        import os

        code = 1
        if isinstance(error, MemoryError):
            import resource

            code = int(given["no_memory"])
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
    import sys

    given = dict(word.split("=", 1) for word in sys.argv[1:])
    text = _prepare(given)
    sys.argv = [given["name"]]
    sys.path[:0] = [given["scratch"]]
    sys.path += [given["packages"]] if given["packages"] else []
    sys.stdout.reconfigure(line_buffering=True, errors="surrogateescape")  # pyright: ignore
    sys.stderr.reconfigure(errors="backslashreplace")  # pyright: ignore
    builtins.exit = builtins.quit = sys.exit
    main = sys.modules["__main__"].__dict__
    run = _run
    for name in ("_prepare", "_show", "_run", "_main"):
        del main[name]
    main.update(__file__=given["name"], __doc__=None)
    code = run(text, given, main)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    _main()
