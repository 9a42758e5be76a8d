"""`hone fetch-model` without a network: bad input costs a sentence and leaves nothing behind. tests/smollm2 fetches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hone.cli import main
from hone.errors import UserError
from hone.model import fetch, files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smollm3", "out"], "'smollm3' can't be fetched by name: use smollm2-135m"),
        (["smollm2-135m"], "write `hone fetch-model NAME OUT`"),
        (["smollm2-135m", "out", "--from", "bad.gguf"], "write `hone fetch-model NAME OUT`"),
        (["smollm2-135m", "full"], "full exists already: give a new folder"),
        (["out", "--from", "missing.gguf"], "there is no file missing.gguf"),
        (["--from", "bad.gguf", "out"], "bad.gguf is not a GGUF file"),
        (["--from", "cut.gguf", "out"], "cannot be read as a model"),
    ],
)
def test_bad_input(words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "full").mkdir()
    (here / "full/mine").write_text("mine")
    (here / "bad.gguf").write_bytes(b"no model")
    (here / "cut.gguf").write_bytes(b"GGUF, but no more")
    assert main(["fetch-model", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in here.iterdir()) == ["bad.gguf", "cut.gguf", "full"]


def test_a_known_name_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_CACHE", str(tmp_path))
    meeting, asked = threading.Barrier(2), []

    def fetched(name: str, out: Path) -> None:
        asked.append(name)
        out.mkdir()

    def resolved(_: int) -> Path:
        meeting.wait()
        return files.resolve_model("smollm2-135m")

    monkeypatch.setattr(fetch, "fetch", fetched)
    with ThreadPoolExecutor() as pool:
        assert set(pool.map(resolved, range(2))) == {tmp_path / "models" / "smollm2-135m"}
    assert asked == ["smollm2-135m"]


def test_what_can_not_be_written_or_fetched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="smollm2-135m cannot be written \\(Not a directory\\)"):
        files.resolve_model("smollm2-135m")
    assert main(["fetch-model", "smollm2-135m", str(tmp_path / "file" / "out")]) == 2
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    said: list[str] = []

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "_say", said.append)
    with pytest.raises(UserError, match="which this Python lacks"):
        fetch.fetch("smollm2-135m", tmp_path / "out")
    assert said == []  # offline, the hub is not asked
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", full)
    with pytest.raises(UserError, match="which this Python lacks"):
        fetch.fetch("smollm2-135m", tmp_path / "out")
    assert "can't be fetched from the hub ([Errno 28] No space left on device)" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_weights_that_are_not_there_are_said_with_those_that_are_or_the_run_that_makes_them(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step_2: start the run that writes to outputs/none first"):
        files.resolve_model("outputs/none/weights/step_2")
    (tmp_path / "weights" / "step_1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"step_2: .* has step_1"):
        files.resolve_model(tmp_path / "weights" / "step_2")
