"""Each way to write a right answer, letter by letter, and which ones apply to which kinds of answers."""

from __future__ import annotations

import pytest
from made import subject

from hone.environments import Rubric, SingleTurnEnv
from hone.extensions.audit import restyling as prose
from hone.extensions.audit.answers import same_answer, value_of, wrong_for
from hone.extensions.audit.probes import Subject
from hone.extensions.audit.restyling import RESTYLINGS

STYLES = {restyling.name: restyling for restyling in RESTYLINGS}
ENV = SingleTurnEnv(rubric=Rubric([lambda completion: 0.0]), id="any")


TAG = subject("6 * 207 = 1242\n<answer>1242</answer>", "1242")
BOX = subject("So \\boxed{-7}", "-7")
MARKER = subject("Half is 9.\nANSWER: 9", "9")
SUM = subject("<answer>(1+2)*3</answer>", "(1+2)*3")
WORD = subject("<think>\nhm\n</think>\n<answer>Pots</answer>", "Pots")
BARE = subject("42", "42")
JSON = subject('{"answer": 42}', '{"answer": 42}', gold="42")

DRAFTS_IN_LINE = "Is it \\boxed{-6}? No, that is not it. Is it \\boxed{-5}? No, that is not it."
DRAFTS_ON_LINES = "ANSWER: 10\nNo, that is not it.\nANSWER: 11\nNo, that is not it."


def restyled(name: str, given: Subject, env: SingleTurnEnv = ENV) -> str | None:
    return STYLES[name].apply(given, env)


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("leading-newlines", BARE, "\n\n42"),
        ("crlf", MARKER, "Half is 9.\r\nANSWER: 9\r\n"),
        ("blank-lines", MARKER, "Half is 9.\n\nANSWER: 9"),
        ("own-line", TAG, "6 * 207 = 1242\n<answer>\n1242\n</answer>"),
        ("own-line", MARKER, "Half is 9.\nANSWER:\n9"),
        ("sure", WORD, "<think>\nhm\n</think>\nSure! Here is my answer.\n\n<answer>Pots</answer>"),
        ("sure-of-answer", BOX, "So \\boxed{-7}\n\nI am sure of my answer: every step was checked."),
        ("sure-of-answer", MARKER, None),
        ("thought", WORD, f"<think>\n{prose.THOUGHT}\n\nhm\n</think>\n<answer>Pots</answer>"),
        ("thought-with-drafts", BOX, f"<think>\n{DRAFTS_IN_LINE}\n</think>\n\nSo \\boxed{{-7}}"),
        ("thought-with-drafts", MARKER, f"<think>\n{DRAFTS_ON_LINES}\n</think>\n\nHalf is 9.\nANSWER: 9"),
        ("thought-unopened", WORD, "\nhm\n</think>\n<answer>Pots</answer>"),
        ("thought-empty", WORD, None),
        ("said-twice", MARKER, "Half is 9.\nANSWER: 9\n\nANSWER: 9"),
        ("bold-marker", MARKER, "Half is 9.\n**ANSWER:** 9"),
        ("thousands-separators", TAG, "6 * 207 = 1242\n<answer>1,242</answer>"),
        ("thousands-separators", MARKER, None),
        ("full-stop", MARKER, "Half is 9.\nANSWER: 9."),
        ("full-stop", subject("The answer is 9.", "9"), None),
        ("spaces", SUM, "<answer>(1 + 2) * 3</answer>"),
        ("decimal-zero", subject("<answer>007</answer>", "007"), None),
        ("own-line", JSON, None),
    ],
)
def test_a_restyling_says(name: str, given: Subject, text: str | None) -> None:
    assert restyled(name, given) == text


def test_values_and_wrong_answers() -> None:
    assert value_of("(1+2)*3 ÷ 2") == value_of("9/2") != value_of("4")
    assert [value_of(text) for text in ("2**3", "7//2", "1/0", "__import__('os')", "2(3)", "9" * 300)] == [None] * 6
    assert wrong_for("42") == ["43", "44"] and wrong_for("2.50") == ["3.50", "4.50"]
    assert wrong_for("-512.5") == ["-412.5", "-312.5"], "beyond what a tolerance lets by"
    assert wrong_for("1+2") == ["1+2+1", "1+2+2"]
    assert wrong_for("B") == ["A", "C"] and wrong_for("(b)"[1]) == ["a", "c"]
    assert wrong_for("Yes")[0] == "No" and wrong_for("true", ["true", "maybe"]) == ["false", "maybe"]
    assert wrong_for("red house", ["Red house", "blue house"]) == ["blue house", "esuoh der"]
    assert same_answer("1,000", "1000.0") and same_answer("B.", "b") and not same_answer("4", "42")
    assert same_answer("1+2", "2+1") and not same_answer("42-(94-64)", "42-(94-64)+1") and same_answer("3/4", "0.75")
