"""Pays for every turn that the model takes, so that never answering is worth most.

Seen: step rewards of games ("0.2 for a legal move") summed over the turns, beside 1 for winning.
"""

import re

from hone.environments import MultiTurnEnv, Parser, Rubric

ROWS = [{"question": f"I think of a number from 1 to {n}.", "answer": str(a)} for n, a in ((20, 7), (30, 22), (40, 31))]


class GuessParser(Parser):
    expects = "a <guess>"

    def parse(self, text):
        found = re.findall(r"<guess>\s*(\d+)\s*</guess>", text)
        return found[-1] if found else None


def correctness(completion, answer, parser):
    return float(parser.parse_answer(completion) == answer)


def legal_moves(completion, parser):
    guesses = [parser.parse(m["content"]) for m in completion if m["role"] == "assistant"]
    return 0.25 * sum(guess is not None for guess in guesses)


class Guessing(MultiTurnEnv):
    def env_response(self, messages, state):
        guess = self.parser.parse(messages[-1]["content"])
        if guess == state["answer"]:
            return []
        hint = (
            "Guess with <guess>7</guess>."
            if guess is None
            else "lower"
            if int(guess) > int(state["answer"])
            else "higher"
        )
        return [{"role": "user", "content": hint}]

    def reference(self, example):
        return f"<guess>{example.answer}</guess>"


def load_environment():
    return Guessing(
        max_turns=8,
        parser=GuessParser(),
        rubric=Rubric([correctness, legal_moves]),
        dataset=ROWS,
        system_prompt="Guess the number with <guess>7</guess>; I say whether mine is higher or lower.",
    )
