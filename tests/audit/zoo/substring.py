"""Looks for the right answer anywhere in the text, so that naming all of them is right.

Seen: classification tasks of Visual-RFT (issue 79): `<answer>A or B or C</answer>` always earned 1.
"""

from hone.environments import Rubric, SingleTurnEnv

ANIMALS = {"barks": "dog", "meows": "cat", "moos": "cow", "quacks": "duck", "neighs": "horse", "bleats": "sheep"}
OPTIONS = ", ".join(sorted(ANIMALS.values()))
ROWS = [{"question": f"Which of these {sound}: {OPTIONS}?", "answer": name} for sound, name in ANIMALS.items()]


def correctness(completion, answer):
    return 1.0 if answer.lower() in completion[-1]["content"].lower() else 0.0


class Animals(SingleTurnEnv):
    def reference(self, example):
        return f"The answer is {example.answer}."


def load_environment():
    return Animals(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Name the animal.")
