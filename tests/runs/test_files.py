"""Files that survive a crash."""

import json
import os
import stat

import pytest

from hone.runs.files import JsonlLog, is_complete, new_dir, sha256, verify, write_file
from hone.runs.view import read_lines


def make_dir(path, **contents):
    with new_dir(path) as folder:
        for name, text in contents.items():
            (folder / name).write_text(text)


def make_log(path, steps: int) -> JsonlLog:
    log = JsonlLog(path)
    for step in range(steps):
        log.append({"step": step, "x": step / 3})
    return log


def steps(path) -> list[int]:
    return [record["step"] for record in read_lines(path)]


def test_content_is_on_the_disk_before_its_name_is(tmp_path, monkeypatch):
    order, kinds = [], {True: "dir", False: "file"}
    originals = {name: getattr(os, name) for name in ("fsync", "replace", "rename")}

    def record(name, what):
        return lambda *args: order.append(what(*args)) or originals[name](*args)

    monkeypatch.setattr(os, "fsync", record("fsync", lambda fd: kinds[stat.S_ISDIR(os.fstat(fd).st_mode)]))
    for name in ("replace", "rename"):
        monkeypatch.setattr(os, name, record(name, lambda old, new: f"-> {new.name}"))
    write_file(tmp_path / "a", "1")
    assert order == ["file", "-> a", "dir"]
    order.clear()
    make_dir(tmp_path / "d", x="1", y="2")
    assert order == ["file", "file", "dir", "file", "-> COMPLETE", "dir", "-> d", "dir"]


def test_new_dir_lists_sizes_and_hashes_and_verify_names_what_is_wrong(tmp_path):
    folder = tmp_path / "d"
    with new_dir(folder) as new:
        (new / "sub").mkdir()
        for name, text in {"a": "hello", "b": "bbb", "c": "ccc", "sub/d": ""}.items():
            (new / name).write_text(text)
    listed = json.loads((folder / "COMPLETE").read_text())["files"]
    assert listed.keys() == {"a", "b", "c", "sub/d"}
    digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert listed["a"] == {"bytes": 5, "sha256": digest} and sha256(folder / "a") == digest
    assert is_complete(folder) and verify(folder) == []
    (folder / "a").write_text("heLLo")
    assert is_complete(folder)  # same size: only reading finds it
    assert verify(folder) == ["a has changed since it was written (SHA-256 differs)"]
    (folder / "b").write_text("b")
    (folder / "c").unlink()
    (folder / "e").write_text("")
    assert verify(folder)[1:3] == ["b has 1 bytes instead of 3", "c is missing"]
    assert verify(folder)[3:] == ["e was added: the file COMPLETE does not list it"]
    assert not is_complete(folder)
    (folder / "COMPLETE").write_text("{")
    assert verify(folder) == ["d has no readable file COMPLETE"]


def test_log_drops_a_torn_last_line_on_open(tmp_path):
    path = tmp_path / "metrics.jsonl"
    make_log(path, 2).close()
    whole = path.read_bytes()
    assert whole == b'{"step": 0, "x": 0.0}\n{"step": 1, "x": 0.3333333333333333}\n'
    path.write_bytes(whole + b'{"step": 2, "lo')
    assert steps(path) == [0, 1]
    assert path.read_bytes() != whole, "reading must not write"
    log = JsonlLog(path)
    assert path.read_bytes() == whole
    log.append({"step": 2})
    assert path.read_bytes() == whole + b'{"step": 2}\n' and (log.bytes, log.sha256) == (len(whole) + 12, sha256(path))


def test_each_line_is_one_write_and_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    written, original = [], os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or original(fd, data))
    log = JsonlLog(tmp_path / "log")
    log.append({"step": 7, "text": "é"})
    assert written == ['{"step": 7, "text": "é"}\n'.encode()]
    monkeypatch.setattr(os, "write", lambda fd, data: original(fd, data[:5]))
    with pytest.raises(OSError, match="No space left on device"):
        log.append({"step": 1})
    assert (tmp_path / "log").read_bytes() == written[0]
