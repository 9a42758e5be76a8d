"""Compares words letter by letter, so `paris` and `Paris.` are wrong.

Seen: nearly every question-answering reward that was adapted from a GSM8K one.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Cuba": "Havana"}
ROWS = [{"question": f"What is the capital of {land}?", "answer": city} for land, city in CAPITALS.items()]


def correctness(completion, answer):
    found = re.findall(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    return float(bool(found) and found[-1].strip(" \t\r\n*_`\"'.") == answer)


class Capitals(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Capitals(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the city in <answer> tags.")
