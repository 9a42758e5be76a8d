"""Pays for every turn that the model takes, so that never answering is worth most.

Seen: step rewards of games ("0.2 for a legal move") summed over the turns, beside 1 for winning.
"""

from hone.environments import MultiTurnEnv, NumberParser, Rubric, read_number

PARSER = NumberParser(("tag",))

ROWS = [{"question": f"I think of a number from 1 to {n}.", "answer": str(a)} for n, a in ((20, 7), (30, 22), (40, 31))]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def legal_moves(completion):
    guesses = [PARSER.value(message["content"]) for message in completion if message["role"] == "assistant"]
    return 0.25 * sum(guess is not None for guess in guesses)


class Guessing(MultiTurnEnv):
    def env_response(self, messages, state):
        guess, number = PARSER.value(messages[-1]["content"]), int(state["answer"])
        if guess == number:
            return []
        hint = "Guess in <answer> tags." if guess is None else "It is lower." if guess > number else "It is higher."
        return [{"role": "user", "content": hint}]

    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Guessing(
        max_turns=8,
        parser=PARSER,
        rubric=Rubric([correctness, legal_moves]),
        dataset=ROWS,
        system_prompt="Guess the number in <answer> tags; I say whether mine is higher or lower.",
    )
