"""Pays only for an improvement on the best completion of the example that this process remembers.

Seen: "reward = score - best[example]" in evolutionary set-ups that were carried over to GRPO.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]
BEST = {}


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def improvement(completion, answer, state):
    score = correctness(completion, answer)
    gained = score - BEST.get(state["example_id"], 0.0)
    BEST[state["example_id"]] = max(score, BEST.get(state["example_id"], 0.0))
    return max(0.0, gained)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER,
        rubric=Rubric([correctness, improvement], [0.5, 0.5]),
        dataset=ROWS,
        system_prompt="Give the number in <answer> tags.",
    )
