"""A tool, and a tenth of a point for using it at all: less than the answer is worth, however often it is called."""

from hone.environments import NumberParser, Range, Rubric, ToolEnv, calls_of, read_number

PARSER = NumberParser()
PAIRS = ((37, 14), (74, 12), (99, 23), (15, 68), (43, 31), (88, 17), (61, 13), (52, 44))
ROWS = [{"question": f"What is {a} * {b}?", "answer": str(a * b), "info": {"a": a, "b": b}} for a, b in PAIRS]


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def correctness(completion, answer):
    return float(PARSER.value(completion) == read_number(answer))


def used_tool(completion):
    return float(any(calls_of(message) for message in completion))


class Products(ToolEnv):
    def reference(self, example):
        call = self.called("multiply", a=example.info["a"], b=example.info["b"])
        return [*call, {"role": "assistant", "content": f"<answer>{example.answer}</answer>"}]


def load_environment():
    ranges = {"correctness": Range((1.0, 1.0), (0.0, 0.0)), "used_tool": Range((0.0, 1.0), (0.0, 1.0))}
    return Products(
        tools=[multiply],
        max_turns=4,
        parser=PARSER,
        rubric=Rubric([correctness, used_tool], [1.0, 0.1], ranges=ranges),
        dataset=ROWS,
        system_prompt="Use the tool, and give the answer in <answer> tags.",
    )
