import json

import pytest

from hone.orchestrator.ledger import Entry, Ledger


def test_draws_close_in_order_and_once():
    ledger = Ledger()
    ledger.close(Entry(0, 0, "a", "trained", 10))
    with pytest.raises(AssertionError, match="expected 1"):
        ledger.close(Entry(0, 0, "a", "trained", 10))
    with pytest.raises(AssertionError, match="expected 1"):
        ledger.close(Entry(2, 0, "a", "trained", 10))


def test_survives_json_and_counts_tokens():
    ledger = Ledger()
    for draw, state in enumerate(["trained", "filtered", "trained", "failed"]):
        ledger.close(Entry(draw, draw // 2, f"e{draw}", state, 100 + draw))
    restored = Ledger(json.loads(json.dumps(ledger.state()()["ledger"])))
    assert restored.entries == ledger.entries
    assert len(restored.entries) == 4 and restored.tokens == 406
