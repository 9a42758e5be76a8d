"""An environment of several turns that fails on a message without a move.

Seen: games whose `env_response` reads the move as `int(re.search(...).group(1))`: an odd message ends the rollout.
"""

import re

from hone.environments import MultiTurnEnv, NumberParser, Rubric, read_number

PARSER = NumberParser(("tag",))
ROWS = [{"question": f"I think of a number from 1 to {n}.", "answer": str(a)} for n, a in ((20, 7), (30, 22), (40, 31))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Guessing(MultiTurnEnv):
    def env_response(self, messages, state):
        guess = int(re.search(r"<answer>(\d+)</answer>", messages[-1]["content"]).group(1))
        if guess == int(state["answer"]):
            return []
        return [{"role": "user", "content": "It is lower." if guess > int(state["answer"]) else "It is higher."}]

    def reference(self, example):
        first = {"role": "assistant", "content": "<answer>1</answer>"}
        hint = {"role": "user", "content": "It is higher."}
        return [first, hint, {"role": "assistant", "content": f"<answer>{example.answer}</answer>"}]


def load_environment():
    return Guessing(
        max_turns=8,
        parser=PARSER,
        rubric=Rubric([correctness]),
        dataset=ROWS,
        system_prompt="Guess my number in <answer> tags, once in a turn; I say whether mine is higher or lower.",
    )
