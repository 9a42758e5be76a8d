"""The launcher: starts the roles of a run in mode split, each in a process of its own, and sees to their end.

    Launch(roles, ...).run()      until the orchestrator has ended; its exit code

- Their lines go into a log for each role; the orchestrator's are shown as well.
- A role that dies is started again: the server alone, for the orchestrator waits for it; else trainer and orchestrator
  together, from the last checkpoint. After `restarts` of these the run ends.
- Ctrl-C and SIGTERM go to the orchestrator, which saves. When it has ended, so do all others, in every case.

One thread, standard library only: it has nothing to do that takes long, and must not fail.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from hone.errors import UserError
from hone.orchestrator.child import INFERENCE, ORCHESTRATOR, TRAINER, Child, Log, show

RESTARTED = "HONE_RESTARTED"
"""Variable that tells the orchestrator, as a JSON list, which roles died before it was started again."""
PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL for processes that are to end."""
SLACK = 15.0
"""Seconds that the orchestrator may take to save, beyond its grace period."""
_TICK = 0.25
_LOADING_LINE = 10.0
"""Seconds between two lines about a server that loads."""
_LETTING_GO = 30.0
"""Seconds that the port of a server that died may still be taken."""
_FOLLOWING = 2.0
"""Seconds that other processes have to say why they end, when one has."""
_AT_ONCE = 3.0
"""Seconds that the orchestrator has to note that it was interrupted, after a second Ctrl-C."""
_FINISHED = (0, 2, 128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of an orchestrator that ended as it meant to; 2 is an error that the user can mend."""


@dataclass(frozen=True)
class Role:
    """How a role is started. `first` stands behind the command at the start of the run, `again` where it goes on.

    `health` is the (host, port) at which a server answers `GET /health` once it has loaded.
    """

    name: str
    command: Sequence[str]
    first: Sequence[str] = ()
    again: Sequence[str] = ()
    ranks: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    health: tuple[str, int] | None = None


@dataclass(frozen=True)
class Words:
    """What the launcher cannot know: `kept` says from where a run would go on, `go_on` is the command that does."""

    say: Callable[[str], None]
    kept: Callable[[], str]
    go_on: str


class Stop:
    """While entered, signals that end a run are only noted; they, and deaths of children, make `wakeup` readable.

    `first` is the first that came. Main thread only.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.interrupts = 0
        """How many Ctrl-C followed the first signal: the user does not want to wait."""
        self._new: list[int] = []
        self._deadline = float("inf")
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        self.wakeup, self._write_end = os.pipe()
        for descriptor in (self.wakeup, self._write_end):
            os.set_blocking(descriptor, False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # else: nohup
                self._before[signum] = signal.signal(signum, self._note)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup_before)
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self.wakeup)
        os.close(self._write_end)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGCHLD:
            return
        self._new.append(signum)
        if self.first is not None and signum == signal.SIGINT:
            self.interrupts += 1
            self.within(_AT_ONCE)
        self.first = self.first or signum

    def drain(self) -> bool:
        """Make `wakeup` quiet again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wakeup, 512):
                pass
        return True

    def take(self) -> list[int]:
        """Return the signals since the last call."""
        signals, self._new = self._new, []
        return signals

    def within(self, seconds: float) -> None:
        """Have the run end within so many seconds, or earlier if that was set before."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)

    @property
    def overdue(self) -> bool:
        """True if the run should have ended by now; a third Ctrl-C says so too."""
        return time.monotonic() > self._deadline or self.interrupts > 1


class Launch:
    """The processes of one run in `folder`. `began` gets them; `opened` is called when the run's directory is open.

    Logs are in `scratch` until then, in `folder`/logs from then on. `env` are the variables of all processes.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        folder: Path,
        scratch: Path,
        words: Words,
        env: Mapping[str, str],
        restarts: int = 3,
        grace_seconds: float = 25.0,
        began: Callable[[list[Child]], None] = lambda _: None,
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.roles = {role.name: role for role in roles}
        self.folder, self.words, self.env = folder, words, env
        self.limit, self.restarts = restarts, 0
        self.grace_seconds = grace_seconds
        self.is_open = False
        self._began, self._opened = began, opened
        self._logs = {name: Log(scratch / f"{name}.log") for name in self.roles}
        self._children: dict[str, list[Child]] = {}
        self._unnoted: list[dict[str, Any]] = []
        """Restarts that no orchestrator has written down yet."""
        self._loading_since: float | None = None
        self._next_line = 0.0
        self._stop = Stop()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Start all, and return the orchestrator's exit code when nothing is left of them.

        A second Ctrl-C ends all at once. UserError says which role died of what, if that ended the run.
        """
        with self._stop:
            self._selector.register(self._stop.wakeup, selectors.EVENT_READ, self._stop.drain)
            try:
                for name in self.roles:
                    self._start(name)
                self._began(self._all())
                while (code := self._turn()) is None:
                    pass
                return code
            finally:
                self._end()
                for log in self._logs.values():
                    log.close()
                self._selector.close()

    def _all(self) -> list[Child]:
        return [child for children in self._children.values() for child in children]

    @property
    def _driver(self) -> Child:
        return self._children[ORCHESTRATOR][0]

    def _start(self, name: str) -> None:
        role = self.roles[name]
        command = [*role.command, *(role.again if self.is_open else role.first)]
        env = {**self.env, **role.env}
        if name == ORCHESTRATOR:
            env[RESTARTED] = json.dumps(self._unnoted)
        if role.ranks > 1:
            env |= {"WORLD_SIZE": str(role.ranks), "LOCAL_WORLD_SIZE": str(role.ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        self._children[name] = []
        for rank in range(role.ranks):
            ranked = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if role.ranks > 1 else {}
            number = rank if role.ranks > 1 else None
            echo = show if name == ORCHESTRATOR else None
            child = Child(name, number, command, env | ranked, self._logs[name], echo)
            self._children[name].append(child)
            for stream in child.streams:
                self._selector.register(stream.descriptor, selectors.EVENT_READ, stream.read)
        if role.health is not None:
            self._loading_since, self._next_line = time.monotonic(), _LOADING_LINE

    def _turn(self) -> int | None:
        """Wait for something to happen, and do what it asks for; the exit code once the run has ended."""
        self._listen(_TICK)
        self._look_at_run()
        self._look_at_server()
        code = self._obey()
        return self._judge(self._deaths()) if code is None else code

    def _listen(self, seconds: float) -> None:
        """Wait so long for lines, deaths and signals, and pass the lines on."""
        for key, _ in self._selector.select(seconds):
            if key.data() is False:  # the child has closed it
                self._selector.unregister(key.fd)

    def _look_at_run(self) -> None:
        """See whether run.json names the orchestrator of now: then it has noted the restarts, and logs can move."""
        if self.is_open and not self._unnoted:
            return
        with contextlib.suppress(OSError, ValueError):
            info = json.loads((self.folder / "run.json").read_bytes())
            if info.get("pid") != self._driver.pid or info.get("status") != "running":
                return
            self._unnoted.clear()
            if self.is_open:
                return
            (self.folder / "logs").mkdir(exist_ok=True)
            for name, log in self._logs.items():
                log.move(self.folder / "logs" / f"{name}.log")
            self.is_open = True
            self._opened()

    def _look_at_server(self) -> None:
        """Say when a server that was started is ready, and now and then that it still loads."""
        role = self.roles.get(INFERENCE)
        if self._loading_since is None or role is None or role.health is None:
            return
        seconds = time.monotonic() - self._loading_since
        if _healthy(*role.health):
            self._loading_since = None
            self.words.say(f"The server is ready, after {seconds:.0f} s.")
        elif seconds >= self._next_line:
            self._next_line = seconds + _LOADING_LINE
            last = next((line for line in reversed(self._children[INFERENCE][0].lines) if line.strip()), "")
            self.words.say(f"The server is still loading, after {seconds:.0f} s" + (f": {last}" if last else "."))

    def _obey(self) -> int | None:
        """Pass signals on to the orchestrator; the exit code if that does not end in time, or has not begun."""
        for signum in self._stop.take():
            if not self.is_open:
                self.words.say("Stopped before the run began.")
                return 128 + signum
            self._driver.send(signum)
            if signum != signal.SIGINT:
                self._stop.within(self.grace_seconds + SLACK)
        return 128 + (self._stop.first or 0) if self._stop.overdue else None

    def _deaths(self) -> list[Child]:
        """Return those that have ended since the last call, but for trainers that came to the end of the run."""
        known = [child for child in self._all() if child.code is None]
        return [child for child in known if self._has_ended(child) and not _is_done(child)]

    def _has_ended(self, child: Child) -> bool:
        if child.code is None and child.poll() is not None:
            for stream in child.streams:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(stream.descriptor)
            child.close()
        return child.code is not None

    def _judge(self, dead: list[Child]) -> int | None:
        """Decide what follows from deaths: the run's exit code, a UserError, a new start, or nothing."""
        if self._driver in dead:
            code = self._driver.code
            if self._stop.first is not None:
                return code if code >= 0 else 128 + self._stop.first
            if code in _FINISHED:
                return code
        for culprit in self._culprits(dead):
            code = None
            if self._stop.first is not None:
                code = self._unsaved(culprit, self._stop.first)
            elif not self.is_open:
                code = self._not_begun(culprit)
            elif culprit.code == 2 or self.restarts == self.limit:
                self._give_up(culprit)
            else:
                self._start_again(culprit)
            if code is not None:
                return code
        return None

    def _culprits(self, dead: list[Child]) -> list[Child]:
        """Return whose deaths caused the others: the server's is a matter of its own, the rest goes on together.

        What a user can mend comes first. Ranks follow one that was killed; rank 0 says what is wrong.
        """
        server = [child for child in dead if child.role == INFERENCE]
        others = [child for child in dead if child.role != INFERENCE]
        if others and all(child.role == TRAINER and child.code >= 0 for child in others):
            ranks = self._children[TRAINER]
            self._wait(ranks, _FOLLOWING)
            others = [child for child in ranks if child.code is not None and not _is_done(child)]
        return [min(each, key=lambda child: (child.code != 2, child.code >= 0)) for each in (server, others) if each]

    def _not_begun(self, culprit: Child) -> int:
        """UserError: why the run does not begin. The exit code, if the orchestrator has reported that."""
        if culprit.code != 2:
            when = "while it loaded" if culprit.role == INFERENCE else "before the run began"
            raise UserError(f"{culprit.words} {culprit.cause} {when}; its log: {self._logs[culprit.role].path}")
        self._wait([self._driver], _FOLLOWING)  # what is wrong for one is often wrong for all
        if self._driver.code == 2:
            return 2
        raise UserError(f"{culprit.words} ended: {culprit.error}")

    def _unsaved(self, culprit: Child, signum: int) -> int | None:
        """Handle a death while the run is being stopped: the exit code, if it can't be saved."""
        if culprit.role == INFERENCE:  # nothing can be sampled: the step has to be given up
            self._driver.send(signal.SIGTERM)
            self._stop.within(self.grace_seconds + SLACK)
            return None
        self._driver.kill()
        lost = f"{culprit.cause}: the state after the last checkpoint is lost. Go on with: {self.words.go_on}"
        self.words.say(f"{_capital(culprit.words)} {lost}")
        return 128 + signum

    def _give_up(self, culprit: Child) -> None:
        """UserError: which process died of what. What can still be saved is: without a server, the run as it is."""
        if culprit.role == INFERENCE:
            self._driver.send(signal.SIGTERM)
            self._wait([self._driver], self.grace_seconds + SLACK, politely=True)
        self._driver.kill()
        used = f"all {self.limit} restarts are used up" if self.limit else "it may not be started again (restarts = 0)"
        why = f"ended: {culprit.error}" if culprit.code == 2 else f"{culprit.cause}, and {used}"
        log = self._logs[culprit.role].path
        raise UserError(f"{culprit.words} {why}. Its log: {log}; go on with: {self.words.go_on}")

    def _start_again(self, culprit: Child) -> None:
        """Start the server, or trainer and orchestrator; an orchestrator at work notes a server's death by itself."""
        alone = culprit.role == INFERENCE
        names = [INFERENCE] if alone else [TRAINER, ORCHESTRATOR]
        self.restarts += 1
        if not alone or self._driver.code is not None:
            entry = {"role": culprit.role, "rank": culprit.rank, "pid": culprit.pid, "cause": culprit.cause}
            self._unnoted.append(entry)
        again = "starting the server again" if alone else f"starting trainer and orchestrator again {self.words.kept()}"
        count = f"restart {self.restarts} of {self.limit}"
        self.words.say(f"{_capital(culprit.words)} {culprit.cause}: {again} ({count}).")
        old = [child for name in names for child in self._children[name]]
        for child in old:
            child.kill()
        self._wait(old, PATIENCE)
        # What a server has started (vLLM, which its own supervisor ends) may hold the port for a while.
        address, until = self.roles[culprit.role].health, time.monotonic() + _LETTING_GO
        while address and port_problem(*address) and time.monotonic() < until and self._stop.first is None:
            self._listen(_TICK)
        for name in names:
            self._start(name)

    def _wait(self, children: Sequence[Child], seconds: float, politely: bool = False) -> None:
        """Wait until they have ended, so long at most (`politely`: or until a second Ctrl-C); lines go on meanwhile."""
        until = time.monotonic() + seconds
        while not all([self._has_ended(child) for child in children]) and time.monotonic() < until:
            if politely and self._stop.interrupts:
                break
            self._listen(min(_TICK, max(until - time.monotonic(), 0)))

    def _end(self) -> None:
        """End what is left: SIGTERM, then SIGKILL."""
        for child in self._all():
            child.send(signal.SIGTERM)
        self._wait(self._all(), PATIENCE, politely=True)
        for child in self._all():
            child.kill()
        self._wait(self._all(), PATIENCE)


def _is_done(child: Child) -> bool:
    """Return True for a trainer that exited with 0: it has taken part in the run to its end."""
    return child.role == TRAINER and child.code == 0


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def port_problem(host: str, port: int) -> OSError | None:
    """Return why no server could listen there now; None if one could."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _healthy(host: str, port: int) -> bool:
    """Return True if a server answers `GET /health` with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=1)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
