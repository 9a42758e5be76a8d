"""A list of words in any order, separated by commas or line breaks."""

import re

from hone.environments import AnswerParser, Rubric, SingleTurnEnv

ANIMALS = {"cow", "dog", "cat", "hen"}
LISTS = ("cow oak dog", "elm cat ash", "hen fir dog", "cat cow yew", "oak hen elm", "dog fir cat")
ROWS = [
    {"question": f"Which of these are animals: {words}?", "answer": ", ".join(w for w in words.split() if w in ANIMALS)}
    for words in LISTS
]


def read(text):
    words = [re.sub(r"^\W+|\W+$", "", word).lower() for word in re.split(r",|\n|\band\b|&", text)]
    words = [word for word in words if word]
    return frozenset(words) if words and all(re.fullmatch(r"[a-z]+", word) for word in words) else None


PARSER = AnswerParser(read, ("tag",), "words in <answer> tags")


def correctness(completion, answer):
    return float(PARSER.value(completion) == read(answer))


class Animals(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Give the animals in <answer> tags, separated by commas."
    return Animals(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
