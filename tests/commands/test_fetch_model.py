"""`hone fetch-model` without a network: bad input costs a sentence and leaves nothing behind. tests/smollm2 fetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.cli import main
from hone.model import fetch, files


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["smollm3", "out"], "'smollm3' is no model that hone knows to fetch: take one of smollm2-135m"),
        (["smollm2-135m"], "say `hone fetch-model NAME OUT`"),
        (["smollm2-135m", "out", "--from", "bad.gguf"], "say `hone fetch-model NAME OUT`"),
        (["smollm2-135m", "full"], "full is there already: give a new folder"),
        (["out", "--from", "missing.gguf"], "there is no file missing.gguf"),
        (["--from", "bad.gguf", "out"], "cannot be read as a model"),
    ],
)
def test_bad_input(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    (tmp_path / "bad.gguf").write_bytes(b"no model")
    assert main(["fetch-model", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.gguf", "full"]


def test_a_known_name_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_CACHE", str(tmp_path))
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda name, out, say: (asked.append(name), out.mkdir(parents=True)))
    first, second = (files.resolve_model("smollm2-135m") for _ in range(2))
    assert first == second == tmp_path / "models" / "smollm2-135m" and asked == ["smollm2-135m"]
