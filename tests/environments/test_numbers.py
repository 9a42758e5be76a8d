from __future__ import annotations

from fractions import Fraction

import pytest

from hone.environments.numbers import LastNumberParser, NumberParser, read_number, same_number

LAST = LastNumberParser()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", "42"),
        (" \n 42 \n", "42"),
        ("007", "7"),
        ("1,234", "1234"),
        ("12,345,678.90", "123456789/10"),
        ("$1,234.00", "1234"),
        ("US$5", "5"),
        ("5 USD", "5"),
        ("€5", "5"),
        ("1.5e3", "1500"),
        ("1e6", "1000000"),
        ("1e-3", "1/1000"),
        (".5", "1/2"),
        ("+5", "5"),
        ("-5", "-5"),
        ("−5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("½", "1/2"),
        ("⅔", "2/3"),
        ("1½", "3/2"),
        ("1 ½", "3/2"),
        ("3/4", "3/4"),
        ("1⁄2", "1/2"),
        (r"\frac{3}{4}", "3/4"),
        (r"-\frac{1}{2}", "-1/2"),
        (r"$\dfrac{-3}{4}$", "-3/4"),
        ("**42**", "42"),
        ("`42`", "42"),
        (r"\(42\)", "42"),
        (r"\[42\]", "42"),
        ("$42$", "42"),
        (r"\$42", "42"),
        (r"\boxed{42}", "42"),
        ("{42}", "42"),
        ("1{,}234", "1234"),
        ("1 234", "1234"),
        ("-12 345 678.5", "-24691357/2"),
        ("1\u00a0234", "1234"),
        ("1\u2009234 apples", "1234"),
        (r"1\,234", "1234"),
        ("1~234", "1234"),
        ("<42>", "42"),
        ("[42].", "42"),
        ("(42 apples)", "42"),
        ("x = 42", "42"),
        ("42.", "42"),
        ("42 apples.", "42"),
        (r"42\text{ apples}", "42"),
        ("42kg", "42"),
        ("42 km/h", "42"),
        ("42 m^2", "42"),
        ("42 cm2", "42"),
        ("42m²", "42"),
        ("25°C", "25"),
        (r"90^\circ", "90"),
        (r"18 \text{ cm}^{2}", "18"),
        (r"\$1,234.50.", "2469/2"),
        ("42 seconds", "42"),
        ("42 times", "42"),
        ("42 apples!", "42"),
        (r"\underline{42}", "42"),
        ("42. I hope it is correct.", "42"),
        ("42 (since 6*7 = 42)", "42"),
        ("42 apples [six times seven]", "42"),
        ("42<|im_end|>", "42"),
        ("42 <|im_end|>\n<|endoftext|>", "42"),
        ("42%", "42"),
        (r"42\%", "42"),
        ("42 percent", "42"),
        ("3 or 3", "3"),
        ("3.0 and 3", "3"),
        ("0.5 (or 1/2)", "1/2"),
    ],
)
def test_numbers_as_people_write_them(text: str, value: str):
    assert read_number(text) == Fraction(value)


ALTERNATIVES = ["3 or 4", "3 and 4", "3, 4", "3,4", "3, or 4", "7 apples, 3 pears", "5 hours and 30 minutes", "3 to 4"]
PARTED = [
    "12 34",
    "4 2",
    "1 2345",
    "1234 567",
    "1 234 5",
    "1 234/567",
    "1,234 567",
    "1 1/2",
    r"1\frac{1}{2}",
    "4**2",
    "4*2",
    "3-4",
    "5-3",
]
COMMAS = ["12,34", "0,5", "0,123", "1,2345", "1,23,456"]
SCALED = ["5 million", "5k", "5M", "3 dozen", "42 hundred", "42 and a half", "10 dollars and fifty cents", "5²", "5!"]
OTHERS = ["5:30", "1.2.3", "3/4/2024", "2024-01-05", "1 / 2 / 3", "10^6", "x^2", r"\sqrt{2}", "5x", "2x4", "±5", "--5"]
DOUBTFUL = [
    "5...",
    "- 5",
    "about 42",
    "the answer is 42",
    "42 (or 43)",
    "5 or more",
    "42 is wrong",
    "6*7 = 42",
    "42, no 43",
]
NOTHING = ["", "forty", "nan", "inf", "1/0", "٤٢", "1e99999", "9" * 500, "H2O", "4th", "<think>42</think>"]


@pytest.mark.parametrize("text", ALTERNATIVES + PARTED + COMMAS + SCALED + OTHERS + DOUBTFUL + NOTHING)
def test_ambiguous_text_is_never_a_guess(text: str):
    assert read_number(text) is None


def test_percent_counts_if_the_gold_answer_has_it():
    assert read_number("42%", percent=True) == read_number("0.42", percent=True) == Fraction(42, 100)
    assert read_number("42", percent=True) == 42
    assert same_number("42%", "42%") and same_number("0.42", "42%") and not same_number("42", "42%")
    assert same_number("42%", "42") and same_number("$1,000.00", "1000")
    assert not same_number(None, "42") and not same_number("x", "x") and not same_number("41", "42")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 * 7 = 42, so\nANSWER: 42", "42"),
        ("**Answer:** $1,234.00 a year", "$1,234.00 a year"),
        ("ANSWER: 42 (not 43)", "42 (not 43)"),
        ("ANSWER: 42\nANSWER: banana", "42"),
        ("ANSWER: 42\nANSWER: 3 or 4", None),
        ("ANSWER: 6 * 7", None),
        ("ANSWER: 1 234", "1 234"),
        ("ANSWER: <72>", "<72>"),
        ("ANSWER: 72 because 8 * 9 = 72", "72"),
        ("ANSWER: 72. I used 3 or 4 steps.", "72"),
        ("ANSWER: 72. Or 73.", None),
        ("ANSWER: 72 (maybe 73)", None),
        ("ANSWER: <number>", None),
        ("42", None),
        ("<answer>42</answer>", None),
    ],
)
def test_the_marker_wants_a_number(text: str, answer: str | None):
    assert NumberParser(["marker"]).parse(text) == answer


def test_all_forms_of_an_answer_are_read_by_default():
    parser = NumberParser()
    assert parser.value(r"<answer>6 * 7 = \boxed{42}</answer>") == 42
    assert parser.value(r"\boxed{\boxed{\frac{3}{4}}}") == Fraction(3, 4)
    assert parser.value("ANSWER: 1\n<answer>2</answer>") == 2
    assert parser.parse("<answer>four</answer>") is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("16 - 3 = 13 and 13 * 2 = 26.", 26),
        ("Janet makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18", 18),
        ("She has 3 apples and 4 oranges, so 7.", 7),
        ("The total is 18 dollars (9 × 2).", 18),
        ("12 / 4 = 3 eggs on the 4th day", 3),
        ("They made 20 bottles of H2O", 20),
        ("**Total: $1,234.50**", Fraction(2469, 2)),
        ("x = 12. So it is **12**.<|im_end|>", 12),
        ("The temperature is -5 degrees", -5),
        ("<think>5</think> it is 6", 6),
        ("it is 5 and 5", 5),
        ("it is 42%", 42),
        (r"so \boxed{42}", 42),
        ("It is 3 or 4.", None),
        ("It is 1 234", None),
        ("It costs 5 million", None),
        ("at 5:30", None),
        ("10^6", None),
        ("COVID-19", None),
        ("18 (or 19)", None),
        ("<think>5", None),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: Fraction | int | None):
    found = LAST.parse(text)
    assert (None if found is None else read_number(found)) == number


def test_hostile_text_is_read_in_linear_time():
    for part in ("5 ", "5,", "1/", "(5", "5(", "½ ", "5 and ", "5", "\\frac{", "$", "- "):
        LAST.parse(part * 50_000)
        assert read_number(part * 50_000) is None
    assert LAST.parse("-" * 100_000 + "5") is None
    assert LAST.parse("5" + " " * 300_000 + "6") is not None
