import pytest

from hone.algorithms.losses import aggregation_weights
from hone.types import Counts

TOKENS, GROUPS = [4, 2, 6], [7, 7, 9]
FILTERED = Counts(tokens=8, sequences=2, prompts=1)


@pytest.mark.parametrize(
    ("kind", "alone", "with_filtered"),
    [
        ("token", [1 / 12] * 3, [1 / 20] * 3),
        ("sequence", [1 / 12, 1 / 6, 1 / 18], [1 / 20, 1 / 10, 1 / 30]),
        ("prompt", [1 / 12, 1 / 12, 1 / 12], [1 / 18, 1 / 18, 1 / 18]),
        ("constant", [1 / 30] * 3, [1 / 50] * 3),
    ],
)
def test_weights_by_hand(kind, alone, with_filtered):
    assert aggregation_weights(kind, [], [], longest=10).tolist() == []
    assert aggregation_weights(kind, TOKENS, GROUPS, longest=10).tolist() == pytest.approx(alone)
    assert aggregation_weights(kind, TOKENS, GROUPS, 10, FILTERED).tolist() == pytest.approx(with_filtered)
