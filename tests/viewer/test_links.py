"""Links hold wherever the tree of pages lies."""

from __future__ import annotations

from urllib.parse import urljoin

from hone.viewer.links import Links

BASE = "http://host/proxy/8600/"


def test_links_are_relative_to_the_page_they_stand_on() -> None:
    for here in ("", "curves/", "run/a~b/", "run/a~b/step/12/"):
        links = Links(here)
        found = [links.runs(), links.run("a~b"), links.step("a~b", 3), links.asset("hone.css")]
        assert [urljoin(BASE + here, link) for link in found] == [
            BASE,
            BASE + "run/a~b/",
            BASE + "run/a~b/step/3/",
            BASE + "assets/hone.css",
        ]


def test_files_name_their_index() -> None:
    links = Links("run/a/", files=True)
    assert links.runs() == "../../index.html"
    assert links.curves(runs="a") == "../../curves/index.html?runs=a"


def test_names_are_quoted() -> None:
    links = Links()
    assert links.run('q"1 <b>#?') == "run/q%221%20%3Cb%3E%23%3F/"
    assert links.search("a", q="x & y", outcome="") == "run/a/search/?q=x+%26+y"
    assert links.compare("a", "x/y", 0, 5) == "run/a/compare/x%2Fy/0/5/"
