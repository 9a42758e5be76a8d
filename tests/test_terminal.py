"""Text from a file, a model or a server reaches the terminal without what could steer it."""

from __future__ import annotations

import io
import json
import sys

import pytest
from rich.text import Text

from hone.cli import _print_traceback
from hone.terminal import SafeStream, make_console, printable, raw, safe_output

HOSTILE = "a\x1b[2J\x07\r\x7f\x9b31m\u202e\u2066\u200b\ud800\U000e0001 é 数\tb\nc"
ESCAPED = r"a\x1b[2J\x07\r\u007f\u009b31m\u202e\u2066\u200b\ud800\udb40\udc01 é 数" + "\tb\nc"


def test_what_steers_a_terminal_is_escaped_and_json_keeps_its_value():
    assert printable(HOSTILE) == printable(ESCAPED) == ESCAPED
    value = {"text": HOSTILE.replace("\ud800", "")}
    assert json.loads(printable(json.dumps(value, ensure_ascii=False))) == value


def test_all_that_is_printed_goes_through_it_but_what_hone_draws(monkeypatch):
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with safe_output():
        print(HOSTILE, end="")
        print("\x1b[31m", file=sys.stderr, end="")
        print("\x1b[K", file=raw(sys.stdout), end="")
        with safe_output():
            assert isinstance(sys.stdout, SafeStream) and sys.stdout.raw is out, "not wrapped twice"
        exec("print('\\r 50 %', end='')", {"__name__": "tqdm.std"})
    assert (sys.stdout, sys.stderr) == (out, err)
    assert out.getvalue() == ESCAPED + "\x1b[K\r 50 %" and err.getvalue() == r"\x1b[31m"


def test_a_traceback_goes_through_it(capsys):
    _print_traceback(RuntimeError, RuntimeError("a\x1b[2J"), None)
    assert capsys.readouterr().err == "RuntimeError: a\\x1b[2J\n"


@pytest.mark.parametrize("given", [HOSTILE, Text(HOSTILE, "bold red")])
def test_tables_and_colours_of_rich_escape_their_text(given):
    out = io.StringIO()
    make_console(out, force_terminal=True, color_system="truecolor", width=200, highlight=False).print(
        given, markup=False
    )
    shown = out.getvalue()
    assert r"a\x1b[2J" in shown and r"\u202e" in shown
    assert not {"\x07", "\x7f", "\x9b", "\u202e", "\u2066"} & {*shown}
    assert ("\x1b[1;31m" in shown) == isinstance(given, Text) and "\x1b[2J" not in shown
