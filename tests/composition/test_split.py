"""A run in mode split beside a trainer that somebody else has started."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from hone.composition import split
from hone.errors import UserError
from hone.transport import FileTransport, Hello


def test_a_trainer_that_left_may_have_said_its_last_word_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is missed only after it was listened to once more."""
    monkeypatch.setattr(split, "HELLO_SECONDS", 0)
    trainer, end = FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
    hello = Hello("h1", "f", 1, 1, "cpu", 1, socket.gethostname(), os.getpid(), {})
    trainer.say_hello(hello)
    run = SimpleNamespace(folder=tmp_path / "out")
    alive = split._Alive(end, hello, run)  # pyright: ignore
    alive()
    trainer.leave()
    alive()
    with pytest.raises(UserError, match=r"the trainer \(process \d+ on .*\) is gone.* --resume"):
        alive()
