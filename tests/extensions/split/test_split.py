"""A run in mode split beside a trainer that somebody else has started."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.errors import UserError
from hone.extensions.split import several as split
from hone.extensions.split.remote_trainer import link_files
from hone.extensions.split.transport import FileTransport, Hello


def test_a_trainer_that_left_is_missed_at_the_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last word may have come just before it left."""
    monkeypatch.setattr(split, "HELLO_SECONDS", 0)
    trainer, end = FileTransport(tmp_path / "t"), FileTransport(tmp_path / "t")
    hello = Hello("h1", "f", 1, 1, "cpu", 1, socket.gethostname(), os.getpid(), {})
    trainer.say_hello(hello)
    look = split.watch_trainer(end, hello, tmp_path / "out")
    look()
    trainer.leave()
    look()
    with pytest.raises(UserError, match=r"the trainer \(process \d+ on .*\) is gone.* --resume"):
        look()


@pytest.mark.parametrize("linked", [True, False])
def test_weights_come_with_their_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: bool) -> None:
    source, folder = tmp_path / "step_1", tmp_path / "new"
    (source / "adapter").mkdir(parents=True)
    folder.mkdir()
    names = ("model.safetensors", "adapter/adapter_model.safetensors")
    for name in names:
        (source / name).write_text(name)

    def no_links(*_: object) -> None:
        raise OSError(18, "another file system")

    if not linked:
        monkeypatch.setattr(os, "link", no_links)
    link_files(source, folder)
    assert [(folder / name).read_text() for name in names] == list(names)
    assert [(folder / name).samefile(source / name) for name in names] == [linked] * 2


@pytest.mark.parametrize(
    ("flags", "sampled_by"),
    [
        ("--inference.batch-invariant", None),
        ("", "a server without inference.batch_invariant"),
        ("--inference.batch-invariant --orchestrator.max-async-level 2", "whichever weights are there, up to 2"),
        ("--orchestrator.client.base-url http://localhost:8000/v1", "the server at http://localhost:8000/v1"),
        ("--inference.backend vllm", "vLLM"),
    ],
)
def test_what_may_sample_other_tokens(flags: str, sampled_by: str | None) -> None:
    found = parse(RLConfig, ["--mode", "split", *flags.split()], "hone rl").sampled_by
    assert found is None if sampled_by is None else found is not None and found.startswith(sampled_by)
