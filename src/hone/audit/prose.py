"""What models write around an answer: remarks, thoughts, and reasoning of any length."""

from __future__ import annotations

from collections.abc import Iterator

SURE = "Sure! Here is my answer.\n\n"
STEPS = "Let me work through this step by step.\n\n"
TYPOGRAPHY = "Okay — here’s what I’ve got… ✅ “done”\n\n"
HOPE = "\n\nI hope this helps!"
ASK = "\n\nLet me know if you have any questions."
CHECKED = "\n\nI checked this in 2 different ways, and it took 3 steps."
SURE_OF_ANSWER = "\n\nI am sure of my answer: every step was checked."
SUMMARY = (
    "\n\n## Summary\n\n1. I read the question.\n2. I worked it out, which took 4 lines.\n3. I checked it twice.\n\n"
    "I am 95% sure of this. It should take about 10 minutes to follow."
)
CLOSING = "\n\n" + " ".join(
    [
        "That settles the question that was asked.",
        "The way there was to read what is given, to see what is missing, and to take one step after the other.",
        "Each step was checked before the next one, so that no number was lost on the way.",
        "A second look at it, as in case B or case D of the book, changes nothing; that much is true.",
        "If anything in it is unclear, I am happy to go through it again with you, in more detail or with a picture.",
    ]
    * 6
)
THOUGHT = "I should work this out carefully before I say anything."
THOUGHT_NUMBERS = "First try: 17 and 25 make 42, and 42 / 6 = 7. No, that is 3 off. Let me look again: 8, 9, 10."
CODE = "```python\ntotal = 0\nfor i in range(10):\n    total += i\nprint(total)\n```\n\n"


def reasoning(words: int, separator: str = " ") -> str:
    """About so many words of plausible reasoning, with numbers and equations; the same each time."""
    written: list[str] = []
    count = 0
    for sentence in _sentences():
        if count >= words:
            return separator.join(written)
        written.append(sentence)
        count += len(sentence.split())
    raise AssertionError("there is no end to the sentences")


def _sentences() -> Iterator[str]:
    i = 0
    while True:
        a, b = 3 + i * 7 % 89, 2 + i * 5 % 43
        yield f"Step {i + 1} starts with {a} and {b}."
        yield f"Together they make {a} + {b} = {a + b}, so I keep {a + b} in mind."
        yield "Wait, let me check that again before I go on."
        yield f"Taking {b} away from {a * b} leaves {a * b - b}, which does not help yet."
        yield "Hmm, so the other way may be better, and I should look at what is asked."
        yield f"If x = {a}, then 2x + {b} = {2 * a + b}."
        yield "A closer look at case C and case D says: yes and no, neither is true nor false in general."
        i += 1


def filler(words: int) -> str:
    """So many words without a number or an answer."""
    sentence = ["so", "we", "go", "on", "and", "on", "and", "then", "again"]
    return " ".join(sentence[i % len(sentence)] for i in range(words))
