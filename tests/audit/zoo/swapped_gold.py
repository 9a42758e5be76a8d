"""Counts the options from 1 where the data counts them from 0, so that the neighbour of the right answer is right.

Seen: multiple-choice sets whose `label` is an index, after a port to letters.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

LANDS = (("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Egypt", "Cairo"))
CHOICES = sorted(city for _, city in LANDS)
LISTED = "\n".join(f"{letter}. {city}" for letter, city in zip("ABCDE", CHOICES, strict=True))
ROWS = [
    {"question": f"What is the capital of {land}?\n{LISTED}", "answer": city, "info": {"label": CHOICES.index(city)}}
    for land, city in LANDS
]


def correctness(completion, info):
    found = re.findall(r"answer\W+([A-E])\b", completion[-1]["content"], re.IGNORECASE)
    return float(bool(found) and found[-1].upper() == "ABCDE"[(info["label"] - 1) % 5])


class Capitals(SingleTurnEnv):
    def reference(self, example):
        return f"Answer: {'ABCDE'[example.info['label']]}"


def load_environment():
    prompt = "End with a line Answer: X, where X is the letter of the right answer."
    return Capitals(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
