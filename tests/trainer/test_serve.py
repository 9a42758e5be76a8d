"""How long the trainer's loop serves: until the end of a run that nobody goes on with."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hone.config.rl import RLConfig
from hone.trainer.agreement import shared_values
from hone.trainer.serve import TrainerLoop
from hone.transport import FileTransport, Hello, Order, Session

END = 3


class AtTheEnd:
    """Has come to the last version already; `saving` happens while it writes its part of the last checkpoint."""

    def __init__(self, saving) -> None:
        self.saving, self.version = saving, END

    def start(self, _temperature: float, _lag: int) -> None: ...

    def save_policy(self, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"")

    def save_part(self, _folder: Path) -> None:
        self.saving()

    def fingerprint(self) -> str:
        return "same"

    def score(self, _canary) -> list[float]:
        return []


def test_an_orchestrator_that_comes_back_while_the_trainer_ends_finds_it(tmp_path):
    config = RLConfig(max_steps=END, output_dir=tmp_path)

    def orchestrator(name: str, save: str | None) -> None:
        transport = FileTransport(config.transport_path)
        transport.open(Session(name, END, None, str(tmp_path), shared_values(config), 1.0, ()))
        transport.put(Order(END, "end", {}, save, 0))

    said: list[str] = []
    orchestrator("first", str(tmp_path))
    trainer = AtTheEnd(lambda: orchestrator("second", None))
    hello = Hello("id", "same", 1, 1, "cpu", 1, socket.gethostname(), os.getpid(), {})
    loop = TrainerLoop(config, FileTransport(config.transport_path), trainer, say=said.append)  # pyright: ignore
    assert loop.serve(hello) == END
    assert [line.split()[1] for line in said if line.startswith("Session ")] == ["first", "second"]
