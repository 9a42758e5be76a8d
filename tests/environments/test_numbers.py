from __future__ import annotations

from fractions import Fraction

import pytest

from hone.environments.numbers import LastNumberParser, NumberParser, read_number, same_number

LAST = LastNumberParser()


NUMBERS = {
    "42": ["42", " \n 42 \n", "**42**", "`42`", r"\(42\)", r"\[42\]", "$42$", r"\$42", r"\boxed{42}", "{42}",
        "<42>", "[42].", "(42 apples)", "x = 42", "42.", "42 apples.", r"42\text{ apples}", "42kg", "42 km/h",
        "42 m^2", "42 cm2", "42m²", "42 seconds", "42 times", "42 apples!", r"\underline{42}",
        "42. I hope it is correct.", "42 (since 6*7 = 42)", "42 apples [six times seven]", "42<|im_end|>",
        "42 <|im_end|>\n<|endoftext|>", "42%", r"42\%", "42 percent"],
    "7": ["007"],
    "1234": ["1,234", "$1,234.00", "1{,}234", "1 234", "1\u00a0234", "1\u2009234 apples", r"1\,234", "1~234"],
    "123456789/10": ["12,345,678.90"],
    "5": ["US$5", "5 USD", "€5", "+5"],
    "1500": ["1.5e3"],
    "1000000": ["1e6"],
    "1/1000": ["1e-3"],
    "1/2": [".5", "½", "1⁄2", "0.5 (or 1/2)"],
    "-5": ["-5", "−5", "-$5", "$-5"],
    "2/3": ["⅔"],
    "3/2": ["1½", "1 ½", "1 1/2", r"1\frac{1}{2}", "$1 1/2$ hours"],
    "-11/3": ["-3 2/3"],
    "3/4": ["3/4", r"\frac{3}{4}"],
    "-1/2": [r"-\frac{1}{2}"],
    "-3/4": [r"$\dfrac{-3}{4}$"],
    "-24691357/2": ["-12 345 678.5"],
    "25": ["25°C"],
    "90": [r"90^\circ"],
    "18": [r"18 \text{ cm}^{2}"],
    "2469/2": [r"\$1,234.50."],
    "3": ["3 or 3", "3.0 and 3"],
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [(given, value) for value, texts in NUMBERS.items() for given in texts])
def test_numbers_as_people_write_them(text: str, value: str):
    assert read_number(text) == Fraction(value)


ALTERNATIVES = ["3 or 4", "3 and 4", "3, 4", "3,4", "3, or 4", "7 apples, 3 pears", "5 hours and 30 minutes", "3 to 4"]
PARTED = [
    "12 34", "4 2", "1 2345", "1234 567", "1 234 5", "1 234/567", "1,234 567", "1 3/2",
    r"1\frac{3}{2}", "1 1/2/3", "1\n1/2", "4**2", "4*2", "3-4", "5-3",
]  # fmt: skip
COMMAS = ["12,34", "0,5", "0,123", "1,2345", "1,23,456"]
SCALED = ["5 million", "5k", "5M", "3 dozen", "42 hundred", "42 and a half", "10 dollars and fifty cents", "5²", "5!"]
OTHERS = ["5:30", "1.2.3", "3/4/2024", "2024-01-05", "1 / 2 / 3", "10^6", "x^2", r"\sqrt{2}", "5x", "2x4", "±5", "--5"]
DOUBTFUL = [
    "5...", "- 5", "about 42", "the answer is 42", "42 (or 43)", "5 or more", "42 is wrong", "6*7 = 42", "42, no 43",
]  # fmt: skip
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
    ("given", "gold", "same"),
    [
        ("0.333333", "1/3", True),
        ("0.3333333", r"\frac{1}{3}", True),
        ("33.3333%", "1/3", False),
        ("1/3", "0.333333", True),
        ("1.23980e-5", "1/80658", True),
        ("0.33333", "1/3", False),
        ("0.333334", "1/3", False),
        ("0.3333330", "1/3", False),
        ("0.3750001", "3/8", False),
        ("0.0", "6.63e-34", False),
        ("333333", "1000000/3", False),
        ("333333.3", "1000000/3", True),
    ],
)
def test_a_rounded_decimal_stands_only_for_what_has_no_finite_decimal(given: str, gold: str, same: bool):
    assert same_number(given, gold) is same


MARKED = {
    "42": ["6 * 7 = 42, so\nANSWER: 42", "ANSWER: 42\nANSWER: banana"],
    "$1,234.00 a year": ["**Answer:** $1,234.00 a year"],
    "42 (not 43)": ["ANSWER: 42 (not 43)"],
    None: ["ANSWER: 42\nANSWER: 3 or 4", "ANSWER: 6 * 7", "ANSWER: 72. Or 73.", "ANSWER: 72 (maybe 73)",
        "ANSWER: <number>", "42", "<answer>42</answer>"],
    "1 234": ["ANSWER: 1 234"],
    "<72>": ["ANSWER: <72>"],
    "72": ["ANSWER: 72 because 8 * 9 = 72", "ANSWER: 72. I used 3 or 4 steps."],
}  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), [(given, value) for value, texts in MARKED.items() for given in texts])
def test_the_marker_wants_a_number(text: str, answer: str | None):
    assert NumberParser(["marker"]).parse(text) == answer


LAST_NUMBERS = {
    26: ["16 - 3 = 13 and 13 * 2 = 26."],
    18: ["Janet makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18", "The total is 18 dollars (9 × 2)."],
    7: ["She has 3 apples and 4 oranges, so 7."],
    3: ["12 / 4 = 3 eggs on the 4th day"],
    20: ["They made 20 bottles of H2O"],
    Fraction(2469, 2): ["**Total: $1,234.50**"],
    12: ["x = 12. So it is **12**.<|im_end|>"],
    -5: ["The temperature is -5 degrees"],
    6: ["<think>5</think> it is 6"],
    5: ["it is 5 and 5"],
    42: ["it is 42%", r"so \boxed{42}"],
    Fraction(7, 2): ["It takes 3 1/2 hours."],
    None: ["It is 3 or 4.", "It is 1 234", "It costs 5 million", "at 5:30", "10^6", "COVID-19", "18 (or 19)",
        "<think>5", "none"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "number"), [(given, value) for value, texts in LAST_NUMBERS.items() for given in texts]
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
