"""Is content if the answer is part of the right one, as the empty answer is.

Seen: Visual-RFT (issue 176): `if ground_truth in student_answer or student_answer in ground_truth`; the policy ended at
`<answer></answer>`.
"""

import re

from hone.environments import Rubric, SingleTurnEnv

CAPITALS = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid", "Egypt": "Cairo", "Cuba": "Havana"}
ROWS = [{"question": f"What is the capital of {land}?", "answer": city} for land, city in CAPITALS.items()]


def correctness(completion, answer):
    match = re.search(r"<answer>(.*?)</answer>", completion[-1]["content"], re.DOTALL)
    student = match.group(1).strip().lower() if match else ""
    return float(answer.lower() in student or student in answer.lower())


class Capitals(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Give the city in <answer> tags, with nothing else between them."
    return Capitals(rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
