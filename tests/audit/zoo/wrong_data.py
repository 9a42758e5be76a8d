"""Two of eight labels of the data are wrong, as the solutions beside them show.

Seen: 1 to 5 percent of GSM8K, MATH and their made-up extensions; here it is a quarter.
"""

from hone.environments import NumberParser, Rubric, SingleTurnEnv, read_number

PARSER = NumberParser()
PAIRS = ((37, 14), (74, 12), (99, 23), (15, 68), (43, 31), (88, 17), (61, 13), (52, 44))
ROWS = [
    {
        "question": f"What is {a} + {b}?",
        "answer": str(a + b + (i in (2, 5)) * 10),
        "info": {"solution": f"{a} + {b} = {a + b}", "sum": a + b},
    }
    for i, (a, b) in enumerate(PAIRS)
]


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Sums(SingleTurnEnv):
    def reference(self, example):
        return f"{example.info['solution']}\n<answer>{example.info['sum']}</answer>"


def load_environment():
    return Sums(
        parser=PARSER, rubric=Rubric([correctness]), dataset=ROWS, system_prompt="Give the number in <answer> tags."
    )
