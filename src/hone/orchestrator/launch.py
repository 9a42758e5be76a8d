"""The launcher: starts the roles of a run in mode split, each in a process of its own, and sees to their end.

    Launch(roles, ...).run()      until the orchestrator has ended; its exit code

- Their lines go into a log for each role; the orchestrator's are shown as well.
- A role that dies is started again: the server alone, for the orchestrator waits for it; the orchestrator, from the
  last checkpoint; the ranks of the trainer together with the orchestrator. After `restarts` of these the run ends.
- Ctrl-C and SIGTERM go to the orchestrator, which saves. When it has ended, so do all others, in every case.

One thread, standard library only: it has nothing to do that takes long, and must not fail.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.orchestrator.child import INFERENCE, ORCHESTRATOR, TRAINER, Child, Log, show
from hone.orchestrator.launch_waits import Loading, Stop, meeting_point, port_problem

RESTARTED = "HONE_RESTARTED"
"""Variable that tells the orchestrator, as a JSON list, which roles died before it was started again."""
PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL for processes that are to end."""
SLACK = 15.0
"""Seconds that the orchestrator may take to save, beyond its grace period."""
_TICK = 0.25
_LETTING_GO = 30.0
"""Seconds that the port of a server that died may still be taken."""
_FOLLOWING = 2.0
"""Seconds that the other ranks have to say why they end, when one has."""
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


class Launch:
    """The processes of one run in `folder`. `began` is told them; `opened` is called when the run's directory is open.

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
        self.folder = folder
        self.words = words
        self.env = env
        self.limit = restarts
        self.grace_seconds = grace_seconds
        self.is_open = False
        self.restarted: list[dict[str, Any]] = []
        self._began, self._opened = began, opened
        self._logs = {name: Log(scratch / f"{name}.log") for name in self.roles}
        self._children: dict[str, list[Child]] = {}
        self._untold: list[dict[str, Any]] = []
        """Restarts that no orchestrator has noted yet; the first `_told` of them the one of now was told."""
        self._told = 0
        self._loading: Loading | None = None
        self._stop = Stop()
        self._selector = selectors.DefaultSelector()

    def run(self) -> int:
        """Starts all, and returns the orchestrator's exit code when nothing is left of them.

        A second Ctrl-C ends all at once. UserError says which role died of what, if that ended the run.
        """
        with self._stop:
            self._selector.register(self._stop.wakeup, selectors.EVENT_READ, self._stop.drain)
            try:
                for name in self.roles:
                    self._start(name)
                self._began([child for children in self._children.values() for child in children])
                while (code := self._turn()) is None:
                    pass
                return code
            finally:
                self._end()
                for log in self._logs.values():
                    log.close()
                self._selector.close()

    def log(self, role: str) -> Path:
        """The file that has the role's lines."""
        return self._logs[role].path

    def _start(self, name: str) -> None:
        role = self.roles[name]
        command = [*role.command, *(role.again if self.is_open else role.first)]
        env = {**self.env, **role.env}
        if name == ORCHESTRATOR:
            env[RESTARTED] = json.dumps(self._untold)
            self._told = len(self._untold)
        meeting = meeting_point(role.ranks) if role.ranks > 1 else {}
        self._children[name] = []
        for rank in range(role.ranks):
            of_rank = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if meeting else {}
            number = rank if role.ranks > 1 else None
            echo = show if name == ORCHESTRATOR else None
            child = Child(name, number, command, env | meeting | of_rank, self._logs[name], echo)
            self._children[name].append(child)
            for stream in child.streams:
                self._selector.register(stream.descriptor, selectors.EVENT_READ, stream.read)
        if role.health is not None:
            self._loading = Loading(role.health, self._children[name][0], self.words.say)

    def _turn(self) -> int | None:
        """What there is to do now, after a wait for something to happen; the exit code once the run has ended."""
        self._listen(_TICK)
        self._open()
        if self._loading is not None and self._loading.is_ready():
            self._loading = None
        code = self._obey()
        return self._judge(self._deaths()) if code is None else code

    def _listen(self, seconds: float) -> None:
        """Waits so long for lines, deaths and signals, and passes the lines on."""
        for key, _ in self._selector.select(seconds):
            if key.data() is False:  # the child has closed it
                self._selector.unregister(key.fd)

    def _open(self) -> None:
        """Moves the logs into the run's directory as soon as it is the run's: run.json names its process."""
        if self.is_open:
            return
        with contextlib.suppress(OSError):
            if self._of_orchestrator().get("status") != "running":
                return
            (self.folder / "logs").mkdir(exist_ok=True)
            for name, log in self._logs.items():
                log.move(self.folder / "logs" / f"{name}.log")
            self.is_open = True
            self._opened()

    def _of_orchestrator(self) -> dict[str, Any]:
        """The run.json that the orchestrator of now has written; empty as long as it has not."""
        with contextlib.suppress(OSError, ValueError):
            info = json.loads((self.folder / "run.json").read_bytes())
            if info.get("pid") == self._children[ORCHESTRATOR][0].pid:
                return info
        return {}

    def _obey(self) -> int | None:
        """Passes signals on to the orchestrator; the exit code if that does not end in time, or has not begun."""
        orchestrator = self._children[ORCHESTRATOR][0]
        for signum in self._stop.news():
            if not self.is_open:
                self.words.say("Stopped before the run began.")
                return 128 + signum
            orchestrator.send(signum)
            if signum != signal.SIGINT:
                self._stop.within(self.grace_seconds + SLACK)
        if self._stop.overdue:
            return 128 + (self._stop.first or 0)
        return None

    def _deaths(self) -> list[Child]:
        """Those that have ended and were not seen to before."""
        known = [child for children in self._children.values() for child in children if child.code is None]
        return [child for child in known if self._has_ended(child)]

    def _has_ended(self, child: Child) -> bool:
        if child.code is None and child.poll() is not None:
            for stream in child.streams:
                with contextlib.suppress(KeyError):
                    self._selector.unregister(stream.descriptor)
            child.close()
        return child.code is not None

    def _judge(self, dead: list[Child]) -> int | None:
        """What follows from processes that have ended: the run's exit code, a UserError, a new start, or nothing."""
        for child in dead:
            if child.role == ORCHESTRATOR:
                if self._stop.first is not None:
                    return child.code if child.code >= 0 else 128 + self._stop.first
                if child.code in _FINISHED:
                    return child.code
        for culprit in self._culprits([child for child in dead if not self._is_done(child)]):
            code = None
            if self._stop.first is not None:
                code = self._unsaved(culprit)
            elif not self.is_open:
                code = self._not_begun(culprit)
            elif culprit.code == 2 or (culprit.code != 0 and len(self.restarted) == self.limit):
                self._give_up(culprit)
            else:
                self._start_again(culprit)
            if code is not None:
                return code
        return None

    def _is_done(self, child: Child) -> bool:
        """Whether it is a trainer that was told of the run's end, by the orchestrator of now: nothing is left to do."""
        return child.role == TRAINER and child.code == 0 and bool(self._of_orchestrator())

    def _culprits(self, dead: list[Child]) -> list[Child]:
        """Whose deaths were the cause of the others: the server's is a matter of its own, the rest goes on together.

        What a user can mend comes first. Ranks follow one that was killed; what is wrong rank 0 says.
        """
        server = [child for child in dead if child.role == INFERENCE]
        others = [child for child in dead if child.role != INFERENCE]
        if others and all(child.role == TRAINER and child.code >= 0 for child in others):
            ranks = self._children[TRAINER]
            self._wait(ranks, _FOLLOWING)
            others = [child for child in ranks if child.code is not None and not self._is_done(child)]
        return [min(each, key=lambda child: (child.code != 2, child.code >= 0)) for each in (server, others) if each]

    def _not_begun(self, culprit: Child) -> int:
        """UserError: why the run does not begin. The exit code, if the orchestrator has said that."""
        if culprit.code != 2:
            what = "while it loaded" if culprit.role == INFERENCE else "before the run began"
            raise UserError(f"{culprit.words} {culprit.cause} {what}; its log: {self.log(culprit.role)}")
        orchestrator = self._children[ORCHESTRATOR]
        self._wait(orchestrator, _FOLLOWING)  # what is wrong for one is often wrong for all
        if orchestrator[0].code == 2:
            return 2
        raise UserError(f"{culprit.words} ended: {culprit.error}")

    def _unsaved(self, culprit: Child) -> int | None:
        """What follows when a process dies while the run is being stopped: its exit code, if it can't be saved."""
        if culprit.role == INFERENCE:  # nothing can be sampled: the step has to be given up
            self._children[ORCHESTRATOR][0].send(signal.SIGTERM)
            self._stop.within(self.grace_seconds + SLACK)
            return None
        self._children[ORCHESTRATOR][0].kill()
        self.words.say(
            f"{_begin(culprit.words)} {culprit.cause}: the state after the last checkpoint is lost. Go on with: "
            f"{self.words.go_on}"
        )
        return 128 + (self._stop.first or 0)

    def _give_up(self, culprit: Child) -> None:
        """UserError: which process died of what. What can still be saved is: without a server, the run as it is."""
        orchestrator = self._children[ORCHESTRATOR][0]
        if culprit.role == INFERENCE:
            orchestrator.send(signal.SIGTERM)
            self._wait([orchestrator], self.grace_seconds + SLACK, politely=True)
        orchestrator.kill()
        why = f"{culprit.cause}, and {_restarts(self.limit)}" if culprit.code != 2 else f"ended: {culprit.error}"
        log = self.log(culprit.role)
        raise UserError(f"{culprit.words} {why}. Its log: {log}; go on with: {self.words.go_on}")

    def _start_again(self, culprit: Child) -> None:
        names = [culprit.role]
        over = culprit.role == ORCHESTRATOR and any(child.code is not None for child in self._children[TRAINER])
        if culprit.role == TRAINER or over:  # it was at the end of the run already
            names = [TRAINER, ORCHESTRATOR]
        if ORCHESTRATOR in names and self._of_orchestrator():
            del self._untold[: self._told]
        if culprit.code == 0:
            self.words.say(f"{_begin(culprit.words)} has ended with the orchestrator before: starting both again.")
        else:
            self._count(culprit, names)
        old = [child for name in names for child in self._children[name]]
        for child in old:
            child.kill()
        self._wait(old, PATIENCE)
        if culprit.role == INFERENCE:
            self._wait_for_port()
        for name in names:
            self._start(name)

    def _count(self, culprit: Child, names: Sequence[str]) -> None:
        """Notes a restart and says which it is. That of the server an orchestrator that is at work notes by itself."""
        entry = {"role": culprit.role, "rank": culprit.rank, "pid": culprit.pid, "cause": culprit.cause}
        self.restarted.append(entry)
        if culprit.role != INFERENCE or self._children[ORCHESTRATOR][0].code is not None:
            self._untold.append(entry)
        where = "" if culprit.role == INFERENCE else f" {self.words.kept()}"
        count = f"restart {len(self.restarted)} of {self.limit}"
        what = " and ".join(["the server" if name == INFERENCE else name for name in names])
        self.words.say(f"{_begin(culprit.words)} {culprit.cause}: starting {what} again{where} ({count}).")

    def _wait_for_port(self) -> None:
        """Until what the server that died has started (vLLM, which its own supervisor ends) has let go of the port."""
        address, until = self.roles[INFERENCE].health, time.monotonic() + _LETTING_GO
        while address and port_problem(*address) and time.monotonic() < until and self._stop.first is None:
            self._listen(_TICK)

    def _wait(self, children: Sequence[Child], seconds: float, politely: bool = False) -> None:
        """Until they have ended, for so long at most (`politely`: or until a second Ctrl-C); lines go on meanwhile."""
        until = time.monotonic() + seconds
        while not all([self._has_ended(child) for child in children]) and time.monotonic() < until:
            if politely and self._stop.at_once:
                break
            self._listen(min(_TICK, max(until - time.monotonic(), 0)))

    def _end(self) -> None:
        """Ends what is left: SIGTERM, then SIGKILL. Nothing is in the end."""
        left = [child for children in self._children.values() for child in children]
        for child in left:
            child.send(signal.SIGTERM)
        self._wait(left, PATIENCE, politely=True)
        for child in left:
            child.kill()
        self._wait(left, PATIENCE)


def _begin(words: str) -> str:
    return words[0].upper() + words[1:]


def _restarts(limit: int) -> str:
    """`3 restarts are used up`"""
    return "it may not be started again (restarts = 0)" if limit == 0 else f"all {limit} restarts are used up"
