"""The folder in memory: this user's alone, gone with its process or after it, and left out where there is no room."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from hone.loops import shared_memory
from hone.loops.shared_memory import PRESERVED, scratch_folder, shared_folder, shortage

HOLDER = """
import sys, time
from pathlib import Path
from hone.loops.shared_memory import shared_folder
with shared_folder(print, Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(600)
"""


def never(text: str) -> None:
    raise AssertionError(text)


def test_only_this_user_can_enter_and_it_is_gone_at_the_end_and_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), shared_folder(never, tmp_path) as folder:
        assert folder is not None and folder.parent == tmp_path
        found = folder.lstat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.geteuid()) and stat.S_ISDIR(found.st_mode)
        (folder / "step_1").mkdir()
        raise KeyError
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed_and_not_that_of_a_living_one(tmp_path: Path) -> None:
    killed, lives = (
        subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    assert killed.stdout is not None and lives.stdout is not None
    left, held = Path(killed.stdout.readline().strip()), Path(lives.stdout.readline().strip())
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert (left / "weights").exists(), "nobody was there to remove it"
        with shared_folder(never, tmp_path) as folder:
            assert folder is not None and set(tmp_path.iterdir()) == {held, folder}
            assert (held / "weights").read_bytes() == b"x"
    finally:
        lives.kill()
        lives.wait()


def test_scratch_folders_of_killed_processes_are_removed_but_not_one_that_a_message_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holder = HOLDER.replace("shared_folder(print, Path(sys.argv[1]))", "scratch_folder('rl')")
    holder = holder.replace("shared_folder", "scratch_folder")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    killed = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True, env=environment)
    assert killed.stdout is not None
    left = Path(killed.stdout.readline().strip())
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.parent == tmp_path and left.name.startswith("hone-rl-") and (left / "weights").exists()
    with pytest.raises(KeyError), scratch_folder("rl") as named:
        (named / PRESERVED).touch()
        raise KeyError
    with scratch_folder("rl") as lives, scratch_folder("rl") as other:
        assert {*tmp_path.iterdir()} == {named, lives, other}
    assert [*tmp_path.iterdir()] == [named]


def test_what_others_have_put_at_such_names_is_neither_taken_nor_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, victim = tmp_path / "root", tmp_path / "victim"
    prefix = f"hone-{os.geteuid()}-"
    for folder in (root, victim, root / f".{prefix}open", root / f"{prefix}open"):
        folder.mkdir()
        folder.chmod(0o755)  # not made here
    victim.chmod(0o700)
    (victim / "mine").write_text("mine")
    for name in (f".{prefix}planted", f"{prefix}planted"):
        (root / name).symlink_to(victim)
    monkeypatch.setattr("tempfile._get_candidate_names", lambda: iter(["planted", "open", "free"]))
    with shared_folder(never, root) as folder:
        assert folder == root / f"{prefix}free"
    assert sorted(os.listdir(root)) == [f".{prefix}open", f".{prefix}planted", f"{prefix}open", f"{prefix}planted"]
    assert (victim / "mine").read_text() == "mine"


def test_another_run_that_starts_meanwhile_does_not_remove_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, others = shared_memory._locked, []

    def other_run_comes_first(folder: Path) -> int:
        if not others:
            others.append(folder)
            with shared_folder(never, tmp_path):
                pass
        return lock(folder)

    monkeypatch.setattr(shared_memory, "_locked", other_run_comes_first)
    with shared_folder(never, tmp_path) as folder:
        assert folder is not None and others and os.listdir(tmp_path) == [folder.name]


def test_without_shared_memory_one_sentence_says_so(tmp_path: Path) -> None:
    heard: list[str] = []
    with shared_folder(heard.append, tmp_path / "shm") as folder:
        assert folder is None
    assert heard == [f"Weights travel by disk: {tmp_path / 'shm'} can't be used (No such file or directory)"]


@pytest.mark.parametrize(
    ("file_system", "memory", "found"),
    [
        (4.8e9, 9e9, None),
        (64e6, 9e9, "has 64 MB free, but 4 versions of the model need 4.8 GB"),
        (9e9, 4.7e9, "has 4.7 GB free, but 4 versions of the model need 4.8 GB"),
    ],
)
def test_all_versions_must_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: float, memory: float, found: str | None
) -> None:
    stats = SimpleNamespace(f_bavail=int(file_system / 1000), f_frsize=1000)
    monkeypatch.setattr("os.statvfs", lambda folder: stats)
    monkeypatch.setattr(shared_memory, "ram", lambda: (int(9e9), int(memory)))
    sentence = shortage(tmp_path / "hone-1", int(1.2e9), 4)
    assert sentence == (found and f"Weights travel by disk: {tmp_path} {found}")
