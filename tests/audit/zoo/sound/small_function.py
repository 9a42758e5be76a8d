"""A function of one line, read as a tree and worked out by hand: nothing of it is executed."""

import ast
import re

from hone.environments import Parser, Rubric, SingleTurnEnv

ROWS = [{"question": f"Write a function f(x) that returns x + {n}.", "answer": str(n)} for n in (3, 5, 8, 13)]
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\r?\n(.*?)```", re.DOTALL)
OPERATORS = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b}


def value(node, x):
    """The value of a sum, difference or product of whole numbers and x; ValueError for all else."""
    if isinstance(node, ast.Name) and node.id == "x":
        return x
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 10**6:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value(node.left, x), value(node.right, x))
    raise ValueError(ast.dump(node)[:80])


class FunctionParser(Parser):
    expects = "a block with def f(x): return …"

    def parse(self, text):
        blocks = [block for block in BLOCK.findall(text) if len(block) < 500 and self.body(block) is not None]
        return blocks[-1].strip() if blocks else None

    def body(self, code):
        try:
            match ast.parse(code.strip()).body:
                case [ast.FunctionDef(name="f", body=[ast.Return(value=node)])] if node is not None:
                    return node
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            pass
        return None


def correctness(completion, answer, parser):
    code = parser.parse_answer(completion)
    try:
        return float(code is not None and all(value(parser.body(code), x) == x + int(answer) for x in (-3, 0, 1, 20)))
    except (ValueError, RecursionError):
        return 0.0


class Functions(SingleTurnEnv):
    def reference(self, example):
        return f"```python\ndef f(x):\n    return x + {example.answer}\n```"


def load_environment():
    prompt = "Answer with one ```python block: the function, which returns one expression."
    return Functions(parser=FunctionParser(), rubric=Rubric([correctness]), dataset=ROWS, system_prompt=prompt)
