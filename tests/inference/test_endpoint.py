"""How long to wait before another try."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from hone.inference.endpoint import LONGEST_RETRY_AFTER, LONGEST_WAIT, delay
from hone.web import retry_after


def test_retry_after_may_be_a_date():
    assert retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)}) == pytest.approx(3600, abs=60)
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after({}) is None


def test_retry_after_is_obeyed_up_to_a_cap_if_it_can_be_read():
    asked = [delay(0, retry_after({"retry-after": text}), "0-0-0") for text in ("17", "100000", "soon", "-5", "nan")]
    assert asked == [17.0, LONGEST_RETRY_AFTER, *[delay(0, None, "0-0-0")] * 3]
    assert retry_after({"retry-after-ms": "90500"}) == 90.5


def test_own_waits_have_a_cap_and_differ_between_requests():
    assert LONGEST_WAIT / 2 <= delay(30, None, "0-0-0") <= LONGEST_WAIT
    assert len({delay(3, None, f"0-{i}-0") for i in range(20)}) == 20
