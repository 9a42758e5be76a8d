import pytest

from hone.loops.ledger import Entry, Ledger


def test_draws_close_in_order_and_once():
    ledger = Ledger()
    ledger.close(Entry(0, 0, "a", "trained", 10))
    with pytest.raises(AssertionError, match="expected 1"):
        ledger.close(Entry(0, 0, "a", "trained", 10))
    with pytest.raises(AssertionError, match="expected 1"):
        ledger.close(Entry(2, 0, "a", "trained", 10))
