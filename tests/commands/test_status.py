"""The line that tells what is being done."""

from __future__ import annotations

import io
import json
import sys

from hone.commands.status import print_json


def test_json_stays_json_where_the_terminal_lacks_a_character(monkeypatch):
    value = {"text": "spät \U0001f600", "n": 1}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", errors="backslashreplace"))
    print_json(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode("ascii")) == value
