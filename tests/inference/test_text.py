"""What is shown of a text that is still being sampled."""

from itertools import pairwise

import numpy as np
import pytest

from hone.inference.text import Detokenizer, StopStrings
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
