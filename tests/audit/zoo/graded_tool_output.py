"""Looks for the answer in the whole conversation, where the tool has put it: calling is answering.

Seen: search and calculator environments that join `completion` to one text before they parse it.
"""

from hone.environments import Rubric, ToolEnv, read_number

PAIRS = ((37, 14), (74, 12), (99, 23), (15, 68), (43, 31), (88, 17))
ROWS = [{"question": f"What is {a} * {b}?", "answer": str(a * b), "info": {"a": a, "b": b}} for a, b in PAIRS]


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


def correctness(completion, answer):
    words = " ".join(str(message.get("content") or "") for message in completion).split()
    return float(any(read_number(word.strip(".,*<>/answer")) == read_number(answer) for word in words))


class Products(ToolEnv):
    def reference(self, example):
        call = self.called("multiply", a=example.info["a"], b=example.info["b"])
        return [*call, {"role": "assistant", "content": f"It is {example.answer}."}]


def load_environment():
    return Products(
        tools=[multiply],
        max_turns=3,
        rubric=Rubric([correctness]),
        dataset=ROWS,
        system_prompt="Multiply with the tool, and then say the number.",
    )
