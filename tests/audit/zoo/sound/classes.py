"""The class of a sentence, by name, after `Label:`; a class that is not one of three is no answer."""

import re

from hone.environments import Parser, Rubric, SingleTurnEnv
from hone.environments.answers import said

LABELS = ("positive", "negative", "neutral")
TEXTS = (
    ("I love it", 0),
    ("It broke at once", 1),
    ("It is a box", 2),
    ("Never again", 1),
    ("What a joy", 0),
    ("It is red", 2),
)
ROWS = [{"question": f"Of which kind is this: {text}?", "answer": LABELS[label]} for text, label in TEXTS]
MARKER = re.compile(r"label\W*[:：]\s*([^\n]*)", re.IGNORECASE)


class LabelParser(Parser):
    expects = "one of the three classes after Label:"

    def parse(self, text):
        lines = [line for line in MARKER.findall(said(text)) if line.strip()]
        words = re.findall(r"[a-z]+", lines[-1].lower()) if lines else []
        named = [word for word in words if word in LABELS]
        return named[0] if len(named) == 1 else None


def correctness(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


class Classes(SingleTurnEnv):
    def reference(self, example):
        return f"Label: {example.answer}"


def load_environment():
    prompt = "Is the sentence positive, negative or neutral? End with a line Label: {class}"
    return Classes(parser=LabelParser(), rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
