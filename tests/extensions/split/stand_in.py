"""Processes that stand in for the roles of a run, to die and to hang in ways that real ones don't on demand.

    python stand_in.py launch FOLDER PLAN      the launcher, with stand-ins for all roles
    python stand_in.py ROLE FOLDER PLAN        one of them

PLAN is JSON: for each role (`trainer 1`: of rank 1) what its starts do, the last of them standing for all that follow:
`after` so many seconds (else on SIGUSR1) `end` with an exit code or a signal's name, `say` a line first, on signals
`deaf`; a server answers after `load` seconds. Each start notes itself in FOLDER/starts.jsonl once it hears signals.
Seconds count from when all roles are there, and each of `starts` so often: so no slow start of one matters.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

ROLES = ["inference", "trainer", "orchestrator"]


def launch(folder: Path, plan: dict) -> int:
    from hone import cli
    from hone.extensions.split.launch import Launch, Role

    names = plan.get("roles", ROLES)

    def role(name: str) -> Role:
        command = [sys.executable, __file__, name, str(folder), json.dumps(plan)]
        return Role(
            name,
            command,
            first=["--first"],
            again=["--resume"],
            ranks=plan.get("ranks", 1) if name == "trainer" else 1,
            port=port_of(name, plan),
        )

    def say(text: str) -> None:
        print(text, flush=True)
        with open(folder / "said", "a") as file:
            file.write(f"{text}\n")

    scratch = folder / "scratch"
    scratch.mkdir()
    launch = Launch(
        [role(name) for name in names],
        folder / "out",
        scratch,
        say,
        lambda: "from the last checkpoint, step 4",
        "hone rl --resume",
        dict(os.environ),
        restarts=plan.get("restarts", 3),
        grace_seconds=1.0,
        began=lambda children: say("began " + " ".join(str(child.pid) for child in children)),
    )
    return cli._guarded(launch.run)


def play(role: str, folder: Path, plan: dict, words: list[str]) -> None:
    rank = os.environ.get("RANK")
    name = f"{role} {rank}" if rank and f"{role} {rank}" in plan else role
    notes = folder / "starts.jsonl"
    count = sum(note["role"] == role and note["rank"] == rank for note in noted(notes))
    told = json.loads(os.environ.get("HONE_RESTARTED", "null"))
    note = {"role": role, "rank": rank, "pid": os.getpid(), "words": words, "told": told}
    note |= {"meeting": os.environ.get("MASTER_PORT"), "world": os.environ.get("WORLD_SIZE")}
    starts = plan.get(name, [{}])
    do = starts[min(count, len(starts) - 1)]

    def signalled(signum: int, _frame: object) -> None:
        print(f"{role} got {signal.Signals(signum).name}", flush=True)
        if not do.get("deaf"):
            sys.exit(128 + signum if role == "orchestrator" else 0)

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signalled)
    signal.signal(signal.SIGUSR1, lambda *_: finish(do.get("end", 0)))
    if do.get("child"):  # which outlives it
        subprocess.Popen([sys.executable, "-c", f"import time; {str(folder)!r}; time.sleep(600)"])
    if (port := port_of(role, plan)) is not None:
        threading.Thread(target=serve, args=(port, do.get("load", 0.0)), daemon=True).start()
    if role == "orchestrator" and do.get("open", True):
        (folder / "out").mkdir(exist_ok=True)
        facts = {"format": "hone-run-1", "id": "0", "kind": "rl", "status": "running", "pid": os.getpid()}
        (folder / "out" / "run.json").write_text(json.dumps(facts))
    print(do.get("say", f"{role} {rank or ''} start {count}"), flush=True)
    with open(notes, "a") as file:
        file.write(json.dumps(note) + "\n")
    if "after" not in do:
        while True:
            time.sleep(60)
    ranks = plan.get("ranks", 1)
    wanted = {name: ranks if name == "trainer" else 1 for name in plan.get("roles", ROLES)} | do.get("starts", {})
    while any(count > of_role for count, of_role in ((wanted[name], started(notes, name)) for name in wanted)):
        time.sleep(0.01)
    time.sleep(do["after"])
    finish(do.get("end", 0))


def port_of(role: str, plan: dict) -> int | None:
    """That of a server: of several, each names its own."""
    return plan.get(f"port {role}", plan["port"]) if role.startswith("inference") else None


def noted(notes: Path) -> list[dict]:
    """The starts so far: the lines that are whole."""
    lines = notes.read_text().splitlines(keepends=True) if notes.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def started(notes: Path, role: str) -> int:
    return sum(note["role"] == role for note in noted(notes))


def finish(end: int | str) -> None:
    if isinstance(end, str):
        os.kill(os.getpid(), signal.Signals[end])
    if end == 1:
        raise RuntimeError("no more")
    if end == 2:
        print("error: set --this to that", file=sys.stderr)
    sys.stdout.flush()
    os._exit(end)


def serve(port: int, load: float) -> None:
    time.sleep(load)

    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    HTTPServer(("127.0.0.1", port), Healthy).serve_forever()


if __name__ == "__main__":
    what, where, how, *rest = sys.argv[1:]
    if what == "launch":
        sys.exit(launch(Path(where), json.loads(how)))
    play(what, Path(where), json.loads(how), rest)
