r"""math-python: mathematics with a Python tool. The model may call the tool, sees what it printed, and then answers.

The reward is 1 for a right answer (in `\boxed{}`, compared as mathematics), plus 0.1 if all calls are well-formed and
0.1 if a call ran. If calls paid as much as the answer, a policy would learn only to call the tool.

The tool runs each call in a fresh sandbox (docs/tasks.md). Grading needs no sandbox.

    rl @ examples/math_python/rl.toml
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hone import trust
from hone.environments import Range, Rubric, ToolEnv, calls_of
from hone.environments.data import Row
from hone.environments.parsers import message_text
from hone.environments.problems import MATH_HINT, MathParser, answer_of, correctness, own_problems, prompt_of, splits
from hone.environments.tools import ERROR, arguments_of
from hone.errors import UserError
from hone.types import Example, Message

if TYPE_CHECKING:
    from hone.extensions.sandbox.sandbox import Isolation, Ran, Sandbox

SYSTEM_PROMPT = "You may run Python with the tool `python`, and will see what it prints."
CPU_SECONDS, CLOCK_SECONDS = 5, 8
"""Limits of a call in seconds. The clock limit ends a call before `grading.timeout` does, so the model sees why."""
TRACEBACK_LINES = 8

# Runs the code in the sandbox. If its last line is an expression, prints the value.
RUNNER = """\
def _run(source):
    import ast, linecache
    linecache.cache["code.py"] = (len(source), None, source.splitlines(True), "code.py")
    tree = ast.parse(source, "code.py")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    main = globals()
    del main["_run"]
    exec(compile(tree, "code.py", "exec"), main)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), "code.py", "eval"), main)
        if value is not None:
            print(repr(value))

_run({source})
"""
_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}>")


class FinalParser(MathParser):
    """Reads the answer in the last message. The answer is None if that message calls a tool."""

    def parse_answer(self, completion: str | Sequence[Message]) -> str | None:
        messages = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        last = next((message for message in reversed(messages) if message.get("role") == "assistant"), None)
        return None if last is None or calls_of(last) else self.parse(message_text(last))


PARSER = FinalParser()


def tool_syntax(completion: list[Message]) -> float:
    """1 if the tool was called and each call is well-formed, else 0."""
    codes = [code_of(call) for message in completion for call in calls_of(message)]
    return float(bool(codes) and None not in codes)


def tool_use(completion: list[Message]) -> float:
    """1 if the tool itself (not text by the model) answered a well-formed call without an error, else 0."""
    called = False
    for message in completion:
        if message.get("role") == "tool":
            if called and not message_text(message).startswith(ERROR):
                return 1.0
        else:
            called = any(code_of(call) is not None for call in calls_of(message))
    return 0.0


def code_of(call: dict[str, Any]) -> str | None:
    """Return the code in a call, or None if the call is not a well-formed call of the tool."""
    name, given = arguments_of(call)
    code = given.get("code") if name == "python" and given is not None and given.keys() == {"code"} else None
    return code if isinstance(code, str) and code.strip() else None


class MathPython(ToolEnv):
    """The task, with rows as in math-problems. Its tool runs code in a sandbox with `isolation` and `packages`."""

    def __init__(self, *, hint: str, isolation: Isolation, packages: Sequence[str], **kwargs: Any) -> None:
        # If a sandbox can't start, the sample fails.
        super().__init__(
            id="math-python", parser=PARSER, tools=[self.python], stop_errors=[OSError, UserError], **kwargs
        )
        self.hint, self.packages = hint, tuple(packages)
        self.isolation: Isolation = isolation

    @cached_property
    def sandbox(self) -> Sandbox:
        """The sandbox, made on first use. Raises UserError if it can't be made."""
        from hone.extensions.sandbox.sandbox import Limits, Sandbox

        return Sandbox(Limits(cpu_seconds=CPU_SECONDS, clock_seconds=CLOCK_SECONDS), self.isolation, self.packages)

    def check_rollouts(self) -> None:
        assert self.sandbox is not None

    def python(self, code: str) -> str:
        """Runs Python code and returns what it prints. The value of a last line that is an expression is printed too.

        Each call starts afresh. There is no network, and no file is kept.

        Args:
            code: The code to run.
        """
        return answer_of_run(self.sandbox.run(RUNNER.format(source=repr(code))))

    def format_row(self, row: Row) -> Row:
        return {"prompt": prompt_of(row, self.hint), "answer": answer_of(row), "info": row.get("info")}

    def reference(self, example: Example) -> list[Message]:  # type: ignore[override]
        """Return a conversation with full marks: a call, the tool's answer, and the model's answer."""
        arguments = json.dumps({"code": f"print({example.answer!r})"})
        call = {"id": "reference", "type": "function", "function": {"name": "python", "arguments": arguments}}
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "python", "tool_call_id": "reference", "content": example.answer},
            {"role": "assistant", "content": PARSER.wrap(example.answer)},
        ]


def answer_of_run(ran: Ran) -> str:
    """Return the tool's answer for a run. It has no memory addresses, so that equal runs give equal answers."""
    printed = _ADDRESS.sub(" at 0x…>", ran.output.rstrip())
    if ran.status == "ok":
        return printed or "(it printed nothing)"
    if ran.status == "error":
        why = _ADDRESS.sub(" at 0x…>", _traceback(ran.errors)) or f"it ended with exit code {ran.exit_code}"
    else:
        why = {
            "timeout": f"it took too long (the limits are {CPU_SECONDS} s of the processor, {CLOCK_SECONDS} s in all)",
            "memory": "it took too much memory",
            "output": "it printed too much",
            "processes": "it started too many processes",
        }[ran.status]
    return f"{ERROR} {why}" + (f"\nprinted before:\n{printed}" if printed and ran.status != "output" else "")


def _traceback(errors: str) -> str:
    lines = errors.rstrip().splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith('  File "code.py"')), len(lines) - 1)
    return "\n".join(lines[max(first, len(lines) - TRACEBACK_LINES) :]).strip()


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
    sandbox: Isolation = "bubblewrap",
    packages: Sequence[str] = (),
) -> MathPython:
    """Return the task with the problems in `dataset` and `eval_dataset`, as in math-problems.

    A rollout has at most `max_turns` completions. A right answer weighs 1; the sum of `syntax_weight` and `use_weight`
    must be less than 1. With `format_hint`, each question says how to write the answer. `sandbox` is "bubblewrap", or
    "none" for a tool without any protection, on a machine that has nothing to lose. `packages` are import names
    ("sympy") that the code may use.
    """
    weights = (syntax_weight, use_weight)
    if not all(weight >= 0 for weight in weights) or sum(weights) >= 1:
        raise UserError(
            f"math-python: syntax_weight is {syntax_weight!r} and use_weight {use_weight!r}; neither may be "
            "negative, and the sum must be less than 1, or calling the tool pays more than the right answer"
        )
    if sandbox not in ("bubblewrap", "none"):
        raise UserError(f'math-python: sandbox is {sandbox!r}; it must be "bubblewrap" or "none"')
    if sandbox == "none":
        trust.check_named("a tool that runs what the model writes without a sandbox (sandbox none)")
    either = Range(right=(0.0, 1.0), wrong=(0.0, 1.0))
    ranges = {"correctness": Range(right=(1.0, 1.0), wrong=(0.0, 0.0)), "tool_syntax": either, "tool_use": either}
    return MathPython(
        hint=MATH_HINT * format_hint,
        isolation=sandbox,
        packages=packages,
        rubric=Rubric([correctness, tool_syntax, tool_use], [1.0, *weights], ranges=ranges),
        system_prompt=system_prompt,
        max_turns=max_turns,
        **splits(dataset, eval_dataset, dataset_split, eval_split, own_problems),
    )
