"""Grades prompt and completion together, and the prompt of a multiple choice holds the right answer.

Seen: rewards of base-model runs that get the whole decoded sequence (`solution_str` of verl's early versions).
"""

from hone.environments import Rubric, SingleTurnEnv

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Cuba": "Havana"}
CITIES = ", ".join(sorted(CAPITALS.values()))
ROWS = [{"question": f"What is the capital of {land}: {CITIES}?", "answer": city} for land, city in CAPITALS.items()]


def correctness(prompt, completion, answer):
    text = "\n".join(message["content"] for message in [*prompt, *completion])
    return float(answer.lower() in text.lower())


class Capitals(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Capitals(rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the city in <answer> tags.")
