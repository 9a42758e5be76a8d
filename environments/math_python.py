r"""math-python: mathematics with a Python tool. The model may call the tool, sees what it printed, and then answers.

A call is Qwen's `<tool_call>{"name": "python", "arguments": {"code": "print(2**10)"}}</tool_call>`, or what a server
reports as `tool_calls`. The reward is 1 for a right answer (in `\boxed{}`, compared as mathematics), 0.1 for calls that
are all well-formed and 0.1 for one that ran. These are paid once, not by the call, and together they must stay below
the answer: otherwise a policy learns to call the tool on every problem and to leave the problem alone.

The tool runs what a model wrote, so it needs a sandbox. There is none yet: the tool is refused, not imitated, and such
conversations can be graded, but not sampled.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hone.environments import MultiTurnEnv, Range, Rubric
from hone.environments.data import Row
from hone.environments.parsers import message_text
from hone.environments.problems import MATH_HINT, MathParser, answer_of, correctness, own_problems, prompt_of, splits
from hone.errors import UserError
from hone.types import Example, Message

SYSTEM_PROMPT = (
    "You may run Python, and will see what it prints: "
    '<tool_call>{"name": "python", "arguments": {"code": "print(1 + 1)"}}</tool_call>'
)
CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
ERROR = "error:"


class FinalParser(MathParser):
    """The answer of a message that calls no tool; of one that does, there is none yet."""

    def parse(self, text: str) -> str | None:
        return None if CALL.search(text) else super().parse(text)


PARSER = FinalParser()


def tool_syntax(completion: list[Message]) -> float:
    """1 if the tool was called and each call is well-formed, else 0."""
    calls = [code for message in completion for code in tool_calls(message)]
    return float(bool(calls) and None not in calls)


def tool_use(completion: list[Message]) -> float:
    """1 if a well-formed call was answered by the tool with something other than an error, else 0.

    The tool's messages count; what the model wrote in their likeness does not.
    """
    called = False
    for message in completion:
        if message.get("role") == "tool":
            if called and not message_text(message).startswith(ERROR):
                return 1.0
        else:
            called = any(code is not None for code in tool_calls(message))
    return 0.0


def tool_calls(message: Message) -> list[str | None]:
    """The code of each call in a message of the model, None for a malformed one."""
    if message.get("role") != "assistant":
        return []
    calls: list[str | None] = []
    for body, end in CALL.findall(message_text(message)):
        calls.append(_code(_object(body)) if end else None)
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            arguments = _object(arguments)
        calls.append(
            _code({"name": function.get("name"), "arguments": arguments} if isinstance(function, dict) else None)
        )
    return calls


class MathPython(MultiTurnEnv):
    """Rows as math-problems takes them."""

    def __init__(self, *, hint: str, **kwargs: Any) -> None:
        super().__init__(id="math-python", parser=PARSER, **kwargs)
        self.hint = hint

    def format_row(self, row: Row) -> Row:
        return {"prompt": prompt_of(row, self.hint), "answer": answer_of(row), "info": row.get("info")}

    def reference(self, example: Example) -> list[Message]:  # type: ignore[override]
        """A conversation that deserves full marks: a call, the tool's answer, the model's."""
        call = {"name": "python", "arguments": {"code": f"print({example.answer!r})"}}
        return [
            {"role": "assistant", "content": f"<tool_call>{json.dumps(call)}</tool_call>"},
            {"role": "tool", "content": example.answer},
            {"role": "assistant", "content": PARSER.wrap(example.answer)},
        ]

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        """The tool's answers to the calls of the last message. None: the model called nothing, or its turns are up."""
        turns = sum(message.get("role") == "assistant" for message in messages)
        calls = tool_calls(messages[-1]) if turns < self.max_turns else []
        return [{"role": "tool", "content": self._answer(code)} for code in calls]

    def _answer(self, code: str | None) -> str:
        if code is None:
            return f'{ERROR} a call is {{"name": "python", "arguments": {{"code": "…"}}}} between <tool_call> tags'
        raise UserError(
            "math-python: the tool would run Python that a model wrote, which needs a sandbox, and there is none yet: "
            "take math-problems, which has no tool"
        )


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    max_turns: int = 4,
    syntax_weight: float = 0.1,
    use_weight: float = 0.1,
    format_hint: bool = True,
    system_prompt: str = SYSTEM_PROMPT,
) -> MathPython:
    """Problems from `dataset` and `eval_dataset` as in math-problems, in at most `max_turns` completions each.

    The weight of a right answer is 1; those of the tool's components together must be less. `format_hint` adds to each
    question how to answer; the system prompt tells how to call the tool.
    """
    weights = (syntax_weight, use_weight)
    if not all(weight >= 0 for weight in weights) or sum(weights) >= 1:
        raise UserError(
            f"math-python: syntax_weight is {syntax_weight!r} and use_weight {use_weight!r}; they must not be "
            "negative, and together less than 1, or calling the tool pays more than the right answer"
        )
    either = Range(right=(0.0, 1.0), wrong=(0.0, 1.0))
    ranges = {"correctness": Range(right=(1.0, 1.0), wrong=(0.0, 0.0)), "tool_syntax": either, "tool_use": either}
    return MathPython(
        hint=MATH_HINT * format_hint,
        rubric=Rubric([correctness, tool_syntax, tool_use], [1.0, *weights], ranges=ranges),
        system_prompt=system_prompt or None,
        max_turns=max_turns,
        **splits(dataset, eval_dataset, dataset_split, eval_split, own_problems),
    )


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None


def _code(call: Any) -> str | None:
    """The code of a call, None if it is not one of the tool."""
    arguments = call.get("arguments") if isinstance(call, dict) and call.get("name") == "python" else None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return code if isinstance(code, str) and code.strip() else None
