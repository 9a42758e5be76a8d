"""The line that tells what is being done."""

from __future__ import annotations

import io
import json
import sys

from processes import until

from hone.commands.status import Status, Ticking, print_json


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_being_done_is_shown_with_its_time_though_nothing_new_is_told():
    screen = Screen()
    with Ticking(Status(screen), "loading") as tell:
        until(lambda: "loading (1 s)" in screen.getvalue(), "the words that it began with are shown")
        tell("3 of 4 done")
        until(lambda: "3 of 4 done (" in screen.getvalue(), "the new words are shown")
    assert screen.getvalue().endswith("\r\033[K"), "the line is gone"


def test_json_stays_json_where_the_terminal_lacks_a_character(monkeypatch):
    value = {"text": "spät \U0001f600", "n": 1}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1", errors="backslashreplace"))
    print_json(json.dumps(value, ensure_ascii=False))
    sys.stdout.flush()
    assert json.loads(written.getvalue().decode("ascii")) == value
