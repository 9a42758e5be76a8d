"""A calculator for the model that is Python's eval, in the process that answers.

Seen: the calculator tool of most tutorials for tool use (`return str(eval(expression))`).
"""

from hone.environments import NumberParser, Rubric, ToolEnv, read_number

PARSER = NumberParser()
PAIRS = ((37, 14), (74, 12), (99, 23), (15, 68), (43, 31), (88, 17))
ROWS = [{"question": f"What is {a} * {b}?", "answer": str(a * b), "info": {"a": a, "b": b}} for a, b in PAIRS]


def calculate(expression: str) -> str:
    """Computes the value of an expression.

    Args:
        expression: Numbers with + - * / and brackets.
    """
    return str(eval(expression))


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


class Products(ToolEnv):
    def reference(self, example):
        call = self.called("calculate", expression=f"{example.info['a']} * {example.info['b']}")
        return [*call, {"role": "assistant", "content": f"<answer>{example.answer}</answer>"}]


def load_environment():
    return Products(
        tools=[calculate],
        max_turns=4,
        parser=PARSER,
        rubric=Rubric([correctness]),
        dataset=ROWS,
        system_prompt="Use the tool, and give the answer in <answer> tags.",
    )
