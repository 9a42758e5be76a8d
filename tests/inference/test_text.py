"""What is shown of a text that is still being sampled."""

from itertools import pairwise

import numpy as np
import pytest

from hone.inference.text import Detokenizer, StopStrings, token_text
from hone.model.tokenizer import build_tiny_tokenizer

TEXT = "naïve 你好 👩‍👩‍👧 end"


def test_pieces_add_up_to_the_text_and_no_character_is_split() -> None:
    tokenizer = build_tiny_tokenizer()
    ids = tokenizer.encode(TEXT).ids
    assert len(ids) > len(TEXT), "some characters are several tokens"
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([token]) for token in ids]
    assert "".join(pieces) == TEXT and detokenizer.finish() == ""
    assert "\ufffd" not in "".join(pieces) and "" in pieces
    assert Detokenizer(tokenizer).push(ids) == TEXT


def test_bytes_that_never_become_a_character_come_at_the_end() -> None:
    tokenizer = build_tiny_tokenizer()
    ids = tokenizer.encode("a👧").ids
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids[:-1]) == ""
    assert detokenizer.finish() == tokenizer.decode(ids[:-1]) != ""


@pytest.mark.parametrize(
    ("stops", "shown", "found"),
    [
        (["stop"], "ab sto p ", "stop"),
        (["zzz"], "ab sto p stop st zz", None),
        (["p stop", " st"], "ab", " st"),
        (["sto", "stop"], "ab ", "sto"),
        (["st zz", "b sto p stopX"], "ab sto p stop ", "st zz"),
    ],
)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(stops, shown, found) -> None:
    text = "ab sto p stop st zz"
    rng = np.random.default_rng(0)
    for _ in range(50):
        cuts = [0, *sorted(rng.choice(len(text), rng.integers(0, 8), replace=False).tolist()), len(text)]
        finder, seen = StopStrings(stops), ""
        for a, b in pairwise(cuts):
            seen += finder.push(text[a:b])
            assert shown.startswith(seen)
        assert (seen + finder.finish(), finder.found) == (shown, found)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    finder = StopStrings(["<end>"])
    assert [finder.push(text) for text in ("a<", "e", "x<en")] == ["a", "", "<ex"]
    assert finder.finish() == "<en"


def test_a_token_that_is_a_part_of_a_character_is_spelt_as_in_the_vocabulary() -> None:
    tokenizer = build_tiny_tokenizer()
    part = tokenizer.encode("👧").ids[0]
    assert token_text(tokenizer, part) == tokenizer.id_to_token(part)
    assert token_text(tokenizer, tokenizer.encode("a").ids[0]) == "a"
