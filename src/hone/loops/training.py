"""The common part of RL and SFT: opening a run directory, saving versions, ending a run."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar

import torch

from hone.config.shared import CkptConfig
from hone.errors import AlarmStop, Halt, UserError, called_from
from hone.loops.machine import restored_settings
from hone.runs.observer import Observer
from hone.runs.opening import Opening
from hone.runs.outputs import writable
from hone.runs.provenance import resume_command
from hone.runs.saving import Ending, Saver, Snapshot
from hone.runs.signals import StepAbandoned, StopRequest
from hone.runs.writer import RunWriter

Export = Callable[[Path, int, "dict[str, torch.Tensor]"], None]
"""Called with a folder, a version and the parameters; writes the version's weights into the folder."""


class Loop(ABC):
    """The steps of a run: in one process, in several, or repeated by `hone verify`."""

    config: Any
    trainer: Any
    saver: Any
    _measured: Mapping[str, float] = MappingProxyType({})
    """Measurements of the current version that are not recorded yet."""
    _begun: int | None = None

    @abstractmethod
    def step(self) -> dict[str, float]:
        """Begin the current version, then train the next one. Return the step's metrics."""

    @abstractmethod
    def measure(self, version: int, last: bool) -> dict[str, float]:
        """Measure the current version if it is due, or if it is the `last` one. Return the metrics."""

    @abstractmethod
    def record_end(self, version: int, metrics: dict[str, float]) -> None: ...

    @abstractmethod
    def snapshot(self, checkpoint: bool) -> Snapshot:
        """Return the state to save. `checkpoint` is true if it becomes a checkpoint, too."""

    @property
    def version(self) -> int:
        return self.trainer.version

    @property
    def next_step(self) -> int:
        return self.version

    @property
    def done(self) -> bool:
        """True once all steps are taken, a stop was requested, the budget is used up, or the target is reached."""
        return self.next_step >= self.config.max_steps or self.saver.stopping or self.saver.at_target()

    def begin(self, last: bool = False) -> bool:
        """Save and measure the current version, once. Return False if a stop was requested. `last`: measure all."""
        version, saver = self.version, self.saver
        if self._begun == version:
            return True
        saver.save(version)
        if goes_on := not saver.stopping:
            self._measured = self.measure(version, last)
            saver.at_target(version, self._measured)
        self._begun = version
        return goes_on

    def finish(self, complete: bool = True) -> Ending:
        """Save, measure and record the last version. Return how the run ended. `complete`: no steps are left."""
        version, saver = self.version, self.saver
        ending = saver.ending(version, self.config.max_steps) if complete else "stopped"
        saver.save(version, last=True)
        measured = dict(self._measured) if self._begun == version and saver.at_target() else {}  # it came to the target
        if ending != "stopped" and not measured:
            measured = self.measure(version, last=True)
        self.record_end(version, {} if ending == "stopped" else measured)
        return ending

    def give_up(self) -> None:
        """Record pending updates; measure nothing."""
        return

    def fingerprint(self) -> str:
        return self.trainer.fingerprint()


class Training(ABC):
    """A training run as a context manager: its block takes steps; its exit saves the final version and closes the run.

    SIGINT and SIGTERM end the run after the current step; `done` is then true. If a step is abandoned, a Halt is raised
    or the block raises between two steps, the last complete version is saved as a checkpoint. `ending` says how the run
    ended. `exit_code` is a command's exit code: 0, or 130 or 143 after a signal. `command` is the command line for
    run.json, by default this process's.
    """

    kind: ClassVar[str]
    config: Any
    steps: Any
    """The `Loop`; set once the run is open."""
    observers: list[Observer]
    run: RunWriter
    saver: Saver
    ending: Ending | None = None
    exit_code = 0
    command: list[str] | None = None
    _error: BaseException | None = None
    """The last error of hone's code, not of the user's block. The state may then be half a step's."""
    _stack: ExitStack | None = None

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Check what the run needs, open its directory, and make its steps; `stack` closes everything."""

    @property
    def done(self) -> bool:
        """True once all steps are taken, or a stop was requested."""
        return self._opened().nothing_left or self.steps.done

    @property
    def version(self) -> int:
        """Return the number of updates made."""
        run = self.run if hasattr(self, "run") else self._opened()
        return run.start_step if run.nothing_left else self.steps.version

    def step(self) -> dict[str, float]:
        """Take one step, and return its metrics."""
        with self._inside():
            return self.steps.step()

    def train(self) -> None:
        while not self.done:
            with self._inside():
                if self.steps.begin() and not self.steps.done:
                    self.steps.step()

    def save(self) -> Path:
        """Save the current version now, as weights and as a checkpoint. Return the checkpoint's folder."""
        with self._inside(takes_step=False):
            self.saver.save_now(self.version)
            return self.run.checkpoints.path(self.version)

    def _opened(self) -> RunWriter:
        if self._stack is None:
            name = type(self).__name__
            raise UserError(f"the run is not open: write `with {name}(...) as {self.kind}:`, and take steps in it")
        return self.run

    def _check_left(self, takes_step: bool) -> None:
        if self._opened().nothing_left:
            raise UserError(f"the run in {self.run.folder} is finished: there is nothing left to do in it")
        if takes_step and self.version >= self.config.max_steps:
            raise UserError(f"all {self.config.max_steps} steps are taken: loop `while not {self.kind}.done`")

    @contextmanager
    def _inside(self, takes_step: bool = True) -> Iterator[None]:
        """Wrap code that takes steps or saves, to tell its errors from errors of the user's block."""
        self._check_left(takes_step)
        try:
            with called_from(python=True), torch.inference_mode(False):  # whatever the program around it has set
                yield
        except BaseException as error:
            self._error = error
            raise

    def __enter__(self) -> Any:
        if hasattr(self, "run"):
            raise UserError(f"this run was opened before: make another one with {type(self).__name__}(...)")
        with ExitStack() as stack:
            stack.enter_context(restored_settings())
            try:
                with called_from(python=True), torch.inference_mode(False):  # whatever the program has set
                    self._open(stack)
            except BaseException as error:
                self._error = error
                raise
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._stack is not None
        try:
            with self._stack:
                if error is not None:
                    raise error
                if not self.run.nothing_left and self.ending is None:
                    with self._inside(takes_step=False):
                        self.saver.halted = not self.done
                        self.ending = self.steps.finish(complete=self.done)
        finally:
            self._stack = None
        return True

    def observed(self) -> str:
        return "".join(observer.report() for observer in self.observers)

    def _check(self, reads: list[Path], keep: Iterable[str]) -> None:
        with writable(self.config.output_dir):
            Opening(self.config, self.kind, [], print).check(reads, keep)
        for observer in self.observers:
            observer.check(self)

    def _start(self, stack: ExitStack, reads: list[Path], digests: Mapping[str, str], **more: Any) -> RunWriter:
        config, command = self.config, self.command or sys.argv
        run = RunWriter.start(config, self.kind, command, reads, sources=digests, observers=self.observers, **more)
        self.run = stack.enter_context(run)
        if not run.nothing_left and not config.deterministic:
            run.mark_inexact(0, "deterministic = false")
        if not run.nothing_left and config.model.compile:
            run.mark_inexact(0, "model.compile")
        return run

    @contextmanager
    def _saving(self, export: Export, ckpt: CkptConfig | None, planned: bool = False) -> Iterator[None]:
        """Save versions in the block, also if an error, a stop or a Halt ends the block. Arguments: see `Saver`."""
        snapshot = lambda checkpoint: self.steps.snapshot(checkpoint)  # noqa: E731
        run, halted = self.run, None
        with StopRequest(run.display.notice, self.config.grace_seconds) as stop:
            self.saver = Saver(run, stop, ckpt, export, snapshot, planned)
            try:
                yield
            except StepAbandoned:
                self.steps.give_up()
                if not stop.time_left:
                    run.display.message("The step can't be finished in time: saving the state before it.")
                self._save_last({})
                self.ending = self.saver.ending(self.version, self.config.max_steps)
            except Halt as halt:
                self.steps.give_up()
                self.saver.halted = True
                self._save_last(halt.metrics)
                if not isinstance(halt, AlarmStop):
                    raise self._halted(halt) from halt
                halted = halt
            except BaseException as error:
                if error is not self._error:  # the block's own, between two steps
                    self.saver.halted = True
                    self._save_last({})
                raise
            finally:
                self.saver.close()
            stop.release()
            assert self.ending is not None
            run.finish(self.ending, halted.name if halted else "")
            self.exit_code = stop.exit_code if self.ending == "stopped" else 0
        if halted:
            print(self.observed(), end="")
            raise self._halted(halted) from halted

    def _save_last(self, metrics: dict[str, float]) -> None:
        self.saver.save(self.version, last=True)
        self.run.log_step(self.version, metrics, weights=self.steps.fingerprint())
        self.ending = "stopped"

    def _halted(self, halt: Halt) -> UserError:
        run = self.run
        command = resume_command(run.folder, run.info)
        return UserError(f"{halt}. Saved: {run.checkpoints.path(self.version)}; go on with: {command}")
