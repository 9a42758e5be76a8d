"""Waits for its verdict, as graders do that ask a server."""

import asyncio

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} - {b}?", "answer": str(a - b)} for a, b in ((12, 3), (7, 44), (25, 6), (9, 17))]


async def correctness(completion, answer):
    await asyncio.sleep(0.001)
    return float(PARSER.value(completion) == read_number(answer))


class Differences(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    prompt = "Give the number in <answer> tags."
    return Differences(parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
