"""The launcher: starts the roles of a run in mode split, each in separate processes, and ends them.

    Launch(roles, ...).run()      returns the orchestrator's exit code

- The output of each role goes into a log; the orchestrator's output is also printed.
- If a role dies, trainer and orchestrator start again from the last checkpoint. If the only server dies, the
  orchestrator saves first, and all roles start again. If one of several servers dies, only this server starts again.
  After `restarts` restarts, the next death ends the run.
- Ctrl-C and SIGTERM go to the orchestrator, which saves. When it has ended, the launcher ends all other processes.

The launcher needs only the standard library, because it must not fail.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hone.errors import UserError
from hone.loops.child import ORCHESTRATOR, TRAINER, Child, Log, serves
from hone.processes import TICK, end_all, free_port, wait_all

RESTARTED = "HONE_RESTARTED"
"""Environment variable with a JSON list of the restarts that the orchestrator has to record."""
HOST = "127.0.0.1"
"""Address of a run's servers, reached from this machine only."""
PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL for processes that must end."""
SLACK = 15.0
"""Seconds that the orchestrator may take to save, beyond its grace period."""
_TOGETHER = 60.0
"""Servers that are killed or lost within this number of seconds count as one restart."""
_LETTING_GO = 30.0
"""Seconds that a dead server's port may stay in use."""
_FOLLOWING = 2.0
"""Seconds to wait for errors of other processes, after the first process has ended."""
_AT_ONCE = 3.0
"""Seconds for the orchestrator to record the interruption after a second Ctrl-C."""
_FINISHED = (0, 2, 128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of an orchestrator that ended on purpose; 2 is an error that the user can fix."""


@dataclass(frozen=True)
class Role:
    """A command, with the arguments `first` at the start and `again` at restarts. `port`: of a local server."""

    name: str
    command: Sequence[str]
    first: Sequence[str] = ()
    again: Sequence[str] = ()
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    port: int | None = None


class Stop:
    """Context that records signals, so that they do not end the process. `first` is the first one. Main thread only."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.again = False
        """True after a second Ctrl-C, because then the user does not want to wait."""
        self._new: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # else: nohup
                self._before[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self._new.append(signum)
        self.again |= self.first is not None and signum == signal.SIGINT
        self.first = self.first or signum

    def take(self) -> list[int]:
        signals, self._new = self._new, []
        return signals


@dataclass(eq=False)
class Launch:
    """The processes of one run in `folder`.

    `began` receives the started processes. Once run.json names the orchestrator, `opened` is called, and the logs
    move from `scratch` to `folder`/logs.

    `env` has environment variables for all processes. `child` starts a process, `say` prints a line, `from_where` names
    the checkpoint to resume from, and `go_on` is the command that resumes the run.
    """

    roles: Sequence[Role]
    folder: Path
    scratch: Path
    say: Callable[[str], None]
    from_where: Callable[[], str]
    go_on: str
    env: Mapping[str, str]
    restarts: int = 3
    grace_seconds: float = 25.0
    began: Callable[[list[Child]], None] = lambda _: None
    opened: Callable[[], None] = lambda: None
    child: Callable[[str, int | None, Sequence[str], dict[str, str], Log, bool], Child] = Child
    _children: dict[str, list[Child]] = field(default_factory=dict, init=False)
    _restarted: int = field(default=0, init=False)
    _died_together: tuple[float, set[str]] = field(default=(float("-inf"), set()), init=False)
    """Deaths of servers that count as one restart: time of the first death, roles of these servers."""
    _unnoted: list[dict[str, Any]] = field(default_factory=list, init=False)
    """Restarts that no orchestrator has recorded yet."""
    _is_open: bool = field(default=False, init=False)
    _deadline: float = field(default=float("inf"), init=False)
    _stop: Stop = field(default_factory=Stop, init=False)

    def __post_init__(self) -> None:
        self._logs = {role.name: Log(self.scratch / f"{role.name}.log") for role in self.roles}

    def run(self) -> int:
        """Start all roles; return the orchestrator's exit code at the end. A second Ctrl-C ends all processes at once.

        Raises UserError if a role's death ends the run.
        """
        with self._stop:
            try:
                for role in self.roles:
                    self._start(role)
                self.began(self._all())
                while (code := self._turn()) is None:
                    time.sleep(TICK)
                return code
            finally:
                end_all(self._all(), PATIENCE, lambda: self._stop.again)

    def _all(self) -> list[Child]:
        return [child for children in self._children.values() for child in children]

    @property
    def _driver(self) -> Child:
        return self._children[ORCHESTRATOR][0]

    def _start(self, role: Role) -> None:
        command = [*role.command, *(role.again if self._is_open else role.first)]
        env, drives = {**self.env, **role.env}, role.name == ORCHESTRATOR
        if drives:
            env[RESTARTED] = json.dumps(self._unnoted)
        if role.ranks > 1:
            env |= {"WORLD_SIZE": str(role.ranks), "LOCAL_WORLD_SIZE": str(role.ranks)}
            env |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(free_port())}
        children = self._children[role.name] = []
        for number in range(role.ranks):
            rank, ranked = (None, {}) if role.ranks == 1 else (number, {"RANK": str(number), "LOCAL_RANK": str(number)})
            children.append(self.child(role.name, rank, command, env | ranked, self._logs[role.name], drives))

    def _turn(self) -> int | None:
        self._look_at_run()
        for signum in self._stop.take():
            if not self._is_open:
                self.say("Stopped before the run began.")
                return 128 + signum
            self._driver.send(signum)
            if signum != signal.SIGINT:
                self._within(self.grace_seconds + SLACK)
        if self._stop.again:
            self._within(_AT_ONCE)
        if time.monotonic() > self._deadline:
            return 128 + (self._stop.first or 0)
        known = [child for child in self._all() if child.code is None]
        dead = [child for child in known if child.poll() is not None and not _is_done(child)]
        return self._judge(dead) if dead else None

    def _within(self, seconds: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    def _look_at_run(self) -> None:
        """Clear the restarts once run.json names the orchestrator, which has recorded them. Call `opened` once."""
        if self._is_open and not self._unnoted:
            return
        from hone.runs.view import PROCESS_LOGS, run_info  # slow to import

        with contextlib.suppress(OSError):
            info = run_info(self.folder) or {}
            if info.get("pid") != self._driver.pid or info.get("status") != "running":
                return
            self._unnoted.clear()
            if not self._is_open:
                (self.folder / PROCESS_LOGS).mkdir(exist_ok=True)
                for name, log in self._logs.items():
                    log.move(self.folder / PROCESS_LOGS / f"{name}.log")
                self._is_open = True
                self.opened()

    def _judge(self, dead: list[Child]) -> int | None:
        """Handle ended processes: return the run's exit code, or raise UserError, or restart roles and return None."""
        code, stopping = self._driver.code, self._stop.first
        if code is not None and (stopping or code in _FINISHED):
            return code if code >= 0 else 128 + (stopping or 0)
        culprit = self._culprit(dead)
        if stopping is not None:
            if serves(culprit.role):
                if self._others_serve() and all(serves(child.role) for child in dead):
                    return None
                self._driver.send(signal.SIGTERM)  # without a server the step can't end
                self._within(self.grace_seconds + SLACK)
                return None
            lost = f"{culprit.cause}: the state after the last checkpoint is lost. Go on with: {self.go_on}"
            self.say(f"{_capital(culprit.name)} {lost}")
            return 128 + stopping
        if not self._is_open:
            return self._not_begun(culprit)
        several = sum(serves(role.name) for role in self.roles) > 1
        waits = several and code is None and all(serves(child.role) for child in dead)  # the orchestrator waits
        if waits and culprit.code != 2 and (self._restarted < self.restarts or self._died_with_others(dead)):
            self._start_servers(dead)
            return None
        if serves(culprit.role) and code is None:
            self._driver.send(signal.SIGTERM)
            self._wait([self._driver], self.grace_seconds + SLACK)
        for child in self._children[TRAINER] + self._children[ORCHESTRATOR]:
            child.kill()
        if culprit.code == 2 or self._restarted == self.restarts:
            why = f"{culprit.cause}, and no restart is left (restarts = {self.restarts})"
            why = f"ended: {culprit.error}" if culprit.code == 2 else why
            log = self._logs[culprit.role].path
            raise UserError(f"{culprit.name} {why}. Its log: {log}; go on with: {self.go_on}")
        self._start_again(culprit)
        return None

    def _culprit(self, dead: list[Child]) -> Child:
        """Return the likely cause of the deaths: a process with exit code 2, else a killed process, else the first."""
        if all(child.role == TRAINER and (child.code or 0) >= 0 for child in dead):
            ranks = self._children[TRAINER]
            self._wait(ranks, _FOLLOWING)
            dead = [child for child in ranks if child.code is not None and not _is_done(child)]
        return min(dead, key=lambda child: (child.code != 2, (child.code or 0) >= 0))

    def _not_begun(self, culprit: Child) -> int:
        """Return 2 if the orchestrator has printed why the start failed; else raise UserError."""
        if culprit.code != 2:
            when = "while it loaded" if serves(culprit.role) else "before the run began"
            raise UserError(f"{culprit.name} {culprit.cause} {when}; its log: {self._logs[culprit.role].path}")
        self._wait([self._driver], _FOLLOWING)  # roles often fail for the same reason
        if self._driver.code == 2:
            return 2
        raise UserError(f"{culprit.name} ended: {culprit.error}")

    def _start_again(self, culprit: Child) -> None:
        self._restarted += 1
        entry = {"role": culprit.role, "rank": culprit.rank, "pid": culprit.pid, "cause": culprit.cause}
        self._unnoted.append(entry)
        roles = [role for role in self.roles if not serves(role.name) or self._children[role.name][0].code is not None]
        names = [role.name for role in roles]
        again = f"starting {', '.join(names[:-1])} and {names[-1]} again {self.from_where()}"
        self.say(f"{_capital(culprit.name)} {culprit.cause}: {again} (restart {self._restarted} of {self.restarts}).")
        self._wait([child for name in names for child in self._children[name]], PATIENCE)
        self._start_when_free(roles)

    def _others_serve(self) -> bool:
        return any(serves(child.role) and child.code is None for child in self._all())

    def _died_with_others(self, dead: Sequence[Child]) -> bool:
        """Return True if `dead` were killed soon after other servers, as when a node shuts down."""
        since, roles = self._died_together
        # A child without pid was lost before it was placed.
        killed = all((child.code or 0) < 0 and (child.role not in roles or not child.pid) for child in dead)
        return killed and time.monotonic() < since + _TOGETHER

    def _start_servers(self, dead: Sequence[Child]) -> None:
        names = {child.role for child in dead}
        if self._died_with_others(dead):
            self._died_together[1].update(names)
        else:
            self._restarted += 1
            self._died_together = time.monotonic(), names
        for child in dead:
            again = f"starting it again (restart {self._restarted} of {self.restarts})"
            again += "; the others sample meanwhile." if self._others_serve() else "."
            self.say(f"{_capital(child.name)} {child.cause}: {again}")
        self._start_when_free([role for role in self.roles if role.name in names])

    def _start_when_free(self, roles: Sequence[Role]) -> None:
        """Start roles once their ports are free: children of a dead vLLM may hold its port for a while."""
        ports, until = [role.port for role in roles if role.port], time.monotonic() + _LETTING_GO
        while any(map(port_problem, ports)) and time.monotonic() < until and self._stop.first is None:
            time.sleep(TICK)
        for role in roles:
            self._start(role)

    def _wait(self, children: Sequence[Child], seconds: float) -> None:
        wait_all(children, seconds, lambda: self._stop.again)


def _is_done(child: Child) -> bool:
    return child.role == TRAINER and child.code == 0


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def port_problem(port: int) -> OSError | None:
    """Return the error of binding to `port`; None if the port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return error
    return None
