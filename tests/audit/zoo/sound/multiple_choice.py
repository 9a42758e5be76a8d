"""The letter of the right option, after `Answer:`, however it is decorated."""

import re

from hone.environments import Parser, Rubric, SingleTurnEnv
from hone.environments.answers import said

LANDS = (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Egypt", "Cairo"))
CHOICES = sorted(city for _, city in LANDS)
LISTED = "\n".join(f"{letter}. {city}" for letter, city in zip("ABCDE", CHOICES, strict=True))
ROWS = [
    {"question": f"What is the capital of {land}?\n{LISTED}", "answer": "ABCDE"[CHOICES.index(city)]}
    for land, city in LANDS
]
MARKER = re.compile(r"answer[\s*_]*[:：][\s*_]*([^\n]*)", re.IGNORECASE)
LETTER = re.compile(r"(?:\\boxed\{|\\text\{|\\\(|[\s(\[*_`\"'“”‘’$=])*([A-Ea-e])(?:\\\)|[\s)\]*_`\"'“”‘’$.}])*")


class LetterParser(Parser):
    expects = "a letter after Answer:"

    def parse(self, text):
        found = [match for line in MARKER.findall(said(text)) if (match := LETTER.fullmatch(line))]
        return found[-1].group(1) if found else None


def correctness(completion, answer, parser):
    return float((parser.parse_answer(completion) or "").upper() == answer)


class Capitals(SingleTurnEnv):
    def reference(self, example):
        return f"Answer: {example.answer}"


def load_environment():
    prompt = "End with a line Answer: X, where X is the letter of the right answer."
    return Capitals(parser=LetterParser(), rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
