"""`hone view --static OUT`: the files it writes, and what it never touches."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import viewer_run

from hone.commands import view as command
from hone.commands.view import _intro
from hone.commands.view import run as view
from hone.config.view import ViewConfig
from hone.errors import UserError
from hone.viewer import static
from hone.viewer.app import PAGES
from hone.viewer.catalog import Catalog
from hone.viewer.static import MARK, Limits, Target, check_target, evenly, export


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 6 steps of 32 completions, under a name that has to be quoted in URLs."""
    folder = tmp_path_factory.mktemp("static") / "runs"
    viewer_run.make(folder / "a <b> & 50%#1", steps=6, completions=32)
    return folder


@pytest.fixture(scope="module")
def site(root: Path) -> Path:
    out = root.parent / "site"
    export(Catalog(root), out, Limits(steps=3, samples=12))
    return out


def pages_of(site: Path) -> dict[str, str]:
    return {file.relative_to(site).as_posix(): file.read_text() for file in site.rglob("*.html")}


def test_progress_is_the_share_of_the_work_run_by_run(root: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    for name in ("a", "b"):
        shutil.copytree(next(root.iterdir()), tmp_path / "runs" / name)
    told: list[tuple[int, int, float]] = []
    limits = Limits(steps=2, samples=12)
    export(Catalog(tmp_path / "runs"), tmp_path / "site", limits, lambda *values: told.append(values))
    pages, runs, shares = zip(*told, strict=True)
    assert pages == tuple(range(1, len(told) + 1)) and list(runs) == sorted(runs) and runs[-1] == 1
    assert list(shares) == sorted(shares) and shares[0] == 0 and 0.9 < shares[-1] <= 1
    half = next(share for share, finished in zip(shares, runs, strict=True) if finished)
    assert half == pytest.approx(0.5, abs=0.05)
    monkeypatch.setattr(command, "EVERY", 0.0)
    view(ViewConfig(root=tmp_path / "runs", static=tmp_path / "site", static_steps=1))
    assert re.search(r"\d+ pages, 1 of 2 runs, about \d+:\d\d left\n", capsys.readouterr().out)


def test_what_was_written_is_removed_when_the_export_is_ended(root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(PAGES, "/predictions/", lambda site, query: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        view(ViewConfig(root=root, static=tmp_path / "site"))
    assert ended.value.code == 143 and list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_link_leads_to_a_file(site: Path) -> None:
    pages = pages_of(site)
    assert {"index.html", "predictions/index.html", "run/a <b> & 50%#1/index.html"} <= set(pages)
    checked = 0
    for name, text in pages.items():
        for href in re.findall(r'(?:href|src)="([^"]*)"', text):
            parts = urlsplit(unescape(href))
            if parts.scheme or not parts.path:
                assert parts.scheme in ("", "data"), f"{name} links {href}"
                continue
            target = site / name
            assert (target.parent / unquote(parts.path)).resolve().is_file(), f"{name} links {href}"
            checked += 1
    assert checked > 3 * len(pages)


def test_pages_are_those_that_are_served(site: Path, root: Path) -> None:
    said = pages_of(site)["run/a <b> & 50%#1/index.html"]
    assert "a &lt;b&gt; &amp; 50%#1" in said and "<b>" not in said.replace("<b>RL</b>", "")


def test_scripts_and_styles_are_beside_the_pages(site: Path) -> None:
    assert {"hone.css", "hone.js", "plotly.min.js"} <= {file.name for file in (site / "assets").iterdir()}
    assert json.loads((site / MARK).read_text())["pages"] == len(pages_of(site))


def test_an_export_is_replaced_and_nothing_else(site: Path, root: Path, tmp_path: Path) -> None:
    (site / "of an earlier one.html").write_text("")
    export(Catalog(root), site, Limits(steps=3, samples=12))
    assert not (site / "of an earlier one.html").exists() and (site / "index.html").exists()
    assert [file.name for file in site.parent.iterdir() if file.name.startswith(".")] == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds other files"):
        export(Catalog(root), tmp_path / "mine")
    with pytest.raises(UserError, match="is a file"):
        check_target(tmp_path / "mine" / "notes.txt")
    run = next(root.iterdir())
    for inside in (run, run / "site", run / "logs" / "site"):
        with pytest.raises(UserError, match="into which nothing is written"):
            check_target(inside)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_an_export_that_fails_leaves_the_earlier_one(root: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "site"
    export(Catalog(root), out)
    before = pages_of(out)

    def broken(site, query):
        raise RuntimeError("no disk")

    monkeypatch.setitem(PAGES, "/predictions/", broken)
    with pytest.raises(RuntimeError, match="no disk"):
        export(Catalog(root), out)
    assert pages_of(out) == before and [file.name for file in tmp_path.iterdir()] == ["site"]


def test_a_page_that_cannot_be_made_says_why(root: Path, tmp_path: Path, monkeypatch) -> None:
    def refused(site, query):
        raise UserError("predictions.jsonl is damaged: <mend it>")

    monkeypatch.setitem(PAGES, "/predictions/", refused)
    export(Catalog(root), tmp_path / "site")
    assert "damaged: &lt;mend it&gt;" in (tmp_path / "site/predictions/index.html").read_text()


def test_a_link_to_what_was_left_out_has_no_target(root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delitem(PAGES, "/predictions/")
    export(Catalog(root), tmp_path / "site")
    page = (tmp_path / "site/index.html").read_text()
    assert '<a aria-disabled="true">predictions</a>' in page and "predictions/index" not in page


def test_steps_are_chosen_evenly() -> None:
    assert evenly([0, 1, 2], 10) == [0, 1, 2] and evenly([], 3) == []
    assert evenly(list(range(0, 200, 2)), 5) == [0, 50, 100, 148, 198]
    assert evenly([3, 5, 7], 1) == [3]


def test_variants_are_files_of_their_own() -> None:
    target = static._target("run/a/step/3/", "../../../../run/a/step/4/index.html?page=../2&q=x")
    assert target == Target("run/a/step/4/", (("page", "../2"),))
    assert target.file == "run/a/step/4/index-page-___2.html"
    assert static._target("run/a/step/3/", "?page=2") == Target("run/a/step/3/", (("page", "2"),))
    assert static._target("run/a/step/3/", "index.html?page=1") == Target("run/a/step/3/")
    assert static._target("run/a/", "../../index.html#top") == Target("")
    for elsewhere in ("https://example.org/", "mailto:a@b.c", "#top", "//example.org/x"):
        assert static._target("run/a/", elsewhere) is None


def test_the_command_says_what_it_wrote(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view(ViewConfig(root=root, static=tmp_path / "site", static_steps=2)) == 0
    said = capsys.readouterr().out
    assert re.search(r"Wrote \d+ pages \(\d+\.\d MB\) of 1 run: .*site/index.html\n", said)
    assert "the samples of 2 of its 6 steps (--static-steps 6 writes all)" in said


def test_a_folder_without_runs_says_where_they_would_be(root: Path, tmp_path: Path) -> None:
    run = next(root.iterdir())
    for folder, said in ((tmp_path, "there is no run under"), (run / "rollouts", "lies in the run .*`hone view '")):
        with pytest.raises(UserError, match=said):
            view(ViewConfig(root=folder, static=tmp_path / "site"))
        assert re.search(said, _intro(ViewConfig(root=folder), Catalog(folder)).splitlines()[1])
    assert not (tmp_path / "site").exists()
    assert "Warning" not in _intro(ViewConfig(root=root), Catalog(root))
