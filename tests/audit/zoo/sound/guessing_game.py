"""Guessing a number by halves; only the number that was found counts, and the last guess is read."""

from hone.environments import MultiTurnEnv, NumberParser, Rubric, read_number

PARSER = NumberParser(("tag",))
ROWS = [{"question": f"I think of a number from 1 to {n}.", "answer": str(a)} for n, a in ((20, 7), (30, 22), (40, 31))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Guessing(MultiTurnEnv):
    def env_response(self, messages, state):
        guess, number = PARSER.value(messages[-1]["content"]), int(state["answer"])
        if guess == number:
            return []
        hint = "Guess in <answer> tags." if guess is None else "It is lower." if guess > number else "It is higher."
        return [{"role": "user", "content": hint}]

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
