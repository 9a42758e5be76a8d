"""What `hone view` answers, whatever it is asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_runs import client
from run_folders import make_run

from hone.extensions.viewer.catalog import Catalog
from hone.extensions.viewer.site import json_block


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    make_run(tmp_path / "runs" / "a" / "rl", steps=2)
    odd = make_run(tmp_path / "runs" / 'odd "name" <b>', started="2026-01-03T00:00:00+00:00")
    (odd / "config.toml").write_text("max_steps = 2\n")  # the fixture's has its folder in it
    (make_run(tmp_path / "runs" / "torn") / "config.toml").write_text("torn =")
    return tmp_path / "runs"


def test_runs_are_found_with_names_for_urls_newest_first(root) -> None:
    entries = Catalog(root).entries()
    assert [(entry.slug, entry.name) for entry in entries if not entry.damage] == [
        ('odd "name" <b>', 'odd "name" <b>'),
        ("a~rl", "a/rl"),
    ]
    (torn,) = [entry for entry in entries if entry.damage]
    assert torn.name == "torn" and "config.toml" in torn.damage
    assert [entry.slug for entry in Catalog(root / "a" / "rl").entries()] == ["rl"], "a run may be the root"


def test_only_assets_are_files(root) -> None:
    for name in ("../app.py", "..%2Fapp.py", "%2e%2e/app.py", "app.py", ""):
        assert client(root).get(f"/assets/{name}").status_code == 404
    assert b"Plotly" in client(root).get("/assets/plotly.min.js").content[:5_000_000]


def test_only_hones_scripts_run(root) -> None:
    policy = client(root).get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert client(root).post("/").status_code == 405


def test_json_in_a_page_ends_no_element() -> None:
    text = json_block({"a": "</script><script>alert(1)</script>\u2028"})
    assert "<" not in text and json.loads(text) == {"a": "</script><script>alert(1)</script>\u2028"}


def test_halves_of_characters_end_no_page(root) -> None:
    why = '{"kind": "restart", "step": 0, "why": "half \\ud83d"}\n'
    why += '{"kind": "alarm", "step": 0, "name": "n \\ud83d", "evidence": "e", "advice": "a"}\n'
    (root / "a" / "rl" / "events.jsonl").write_text(why)
    for path in ("/", "/run/a~rl/"):
        assert "\\ud83d" in client(root).get(path).text


def test_a_folder_may_have_a_name_that_is_no_text(root) -> None:
    run = make_run(root / "plain")
    run.rename(os.fsdecode(os.fsencode(root) + b"/caf\xe9"))
    page = client(root).get("/").text
    assert "caf\ufffd" in page and "run/caf%EF%BF%BD/" in page
    assert client(root).get("/run/caf%EF%BF%BD/").status_code == 200
    assert client(root).get("/curves/").status_code == 200


def test_viewing_needs_no_heavy_library_and_writes_nothing(root) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*"))
    code = (
        "import sys\n"
        "from starlette.testclient import TestClient\n"
        "from hone.extensions.viewer.app import create_app\n"
        "from hone.extensions.viewer.catalog import Catalog\n"
        "from hone.extensions.viewer.site import Site\n"
        f"site = Site(Catalog(__import__('pathlib').Path({str(root)!r})))\n"
        "client = TestClient(create_app(site), base_url='http://localhost')\n"
        "for path in ('/', '/run/a~rl/', '/run/a~rl/card/', '/curves/'):\n"
        "    assert client.get(path).status_code == 200, path\n"
        "heavy = {'torch', 'transformers', 'datasets', 'matplotlib', 'pandas'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted((path, path.stat().st_mtime_ns) for path in root.rglob("*")) == before
