"""What stands in an address is what is looked for, and the other way round."""

from __future__ import annotations

import pytest

from hone.errors import UserError
from hone.extensions.viewer.query import Query


def test_an_address_is_read_as_a_query() -> None:
    given = {"q": 'a "b c"', "reward_min": "0.5", "first": "3", "page": "2", "outcome": "", "other": "x"}
    assert Query.from_address(given) == Query(q='a "b c"', reward_min=0.5, first=3, page=2)
    assert not Query(q="a", sort="oldest").filtered and Query(first=0).filtered


def test_words_phrases_and_expressions() -> None:
    assert Query(q=r'a.b "c d" /e|f g/ /usr/bin x"y').patterns() == [r"a\.b", "c d", "e|f g", "/usr/bin", 'x"y']
    assert Query(q="\ud800").patterns() == [r"\?"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ({"outcome": "good"}, "outcome cannot be 'good': it is one of grader_error"),
        ({"reward_min": "much"}, "reward_min is 'much', which is no number"),
        ({"first": "1.5"}, "first is '1.5', which is no whole number"),
        ({"length_max": "1" * 30}, "give a number"),
        ({"page": "0"}, "no page 0"),
        ({"q": "x" * 1001}, "1,001 characters"),
        ({"sort": "1; DROP TABLE x"}, "sort cannot be"),
    ],
)
def test_what_cannot_be_asked_costs_a_sentence(text: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Query.from_address(text)


def test_no_value_is_part_of_the_statement() -> None:
    condition, values = Query.from_address({"q": "'; --", "outcome": "wrong", "reward_min": "1"}).where()
    assert "'; --" not in condition and "wrong" not in condition
    assert values == {"word0": "';", "word1": "--", "outcome": "wrong", "reward_min": 1.0}
