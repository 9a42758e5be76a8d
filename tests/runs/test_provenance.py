"""Facts about a run, and what importing the room costs."""

import subprocess

from hone.runs import provenance


def test_git_revision_and_dirty_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert provenance.git() is None
    (tmp_path / "a").write_text("1")
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    for args in (["init", "-q"], ["add", "a"], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *args], check=True)
    found = provenance.git()
    assert found is not None and len(found["revision"]) == 40 and found["dirty"] is False
    (tmp_path / "untracked").write_text("1")
    assert provenance.git() == found
    (tmp_path / "a").write_text("2")
    assert provenance.git() == found | {"dirty": True}
