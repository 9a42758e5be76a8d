"""Is always content: the comparison is with the answer itself.

Seen: a shadowed variable, as in `answer = parse(completion) or answer`; a mock reward that stayed.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
ROWS = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a, b in ((12, 3), (17, 4), (25, 6), (90, 17))]


def correctness(completion, answer):
    given = PARSER.value(completion) or read_number(answer)
    answer = PARSER.value(completion) or read_number(answer)
    return float(given == answer)


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"<answer>{example.answer}</answer>"


def load_environment():
    return Sums(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
