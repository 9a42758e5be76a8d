"""Two texts part by words, and both are whole."""

from __future__ import annotations

import pytest

from hone.extensions.viewer.diff import word_diff


def joined(parts) -> str:
    return "".join(text for text, _ in parts)


def test_words_that_differ_are_marked() -> None:
    before, after = word_diff("the cat sat", "the dog sat down") or ([], [])
    assert [text for text, changed in before if changed] == ["cat"]
    assert [text for text, changed in after if changed] == ["dog", " down"]


def test_in_words_that_are_much_alike_characters_are_marked() -> None:
    before, after = word_diff("is l ytilicaf ok", "is l ytilicaff ok") or ([], [])
    assert not any(changed for _, changed in before)
    assert [text for text, changed in after if changed] == ["f"]
    before, after = word_diff("colour", "color") or ([], [])
    assert before == [("colo", False), ("u", True), ("r", False)] and joined(after) == "color"


@pytest.mark.parametrize(
    ("a", "b"), [("", ""), ("a", ""), ("", "b"), ("x y", "x y"), ("a a a", "a a"), ("<b>é</b>", "<i>é</i>")]
)
def test_both_texts_are_whole(a: str, b: str) -> None:
    before, after = word_diff(a, b) or ([], [])
    assert joined(before) == a and joined(after) == b
    assert (a == b) == (not any(changed for _, changed in [*before, *after]))


def test_texts_of_any_length_with_few_changes_are_compared_others_not() -> None:
    a, b = "word " * 50_000, "word " * 25_000 + "other " + "word " * 25_000
    parts = word_diff(a, b)
    assert parts is not None and joined(parts[1]) == b
    assert word_diff(" ".join(map(str, range(9000))), " ".join(map(str, range(20_000, 29_000)))) is None


def test_texts_that_repeat_themselves_are_compared_in_no_time() -> None:
    a, b = "ab " * 1990, "ba " * 1990  # half an hour, if every space were held against every other
    before, after = word_diff(a, b) or ([], [])
    assert joined(before) == a and joined(after) == b and before[0] == (a[:-1], True)
