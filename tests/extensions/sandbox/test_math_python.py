from __future__ import annotations

import json

import pytest

from hone.cli import main
from hone.environments import ToolEnv, load_environment
from hone.errors import UserError
from hone.types import Outcome

CALL = '<tool_call>{"name": "python", "arguments": {"code": "print(6 * 7)"}}</tool_call>'
BROKEN = '<tool_call>{"name": "python", "arguments": {"code": print(6 * 7)}}</tool_call>'
DONE = {"role": "assistant", "content": r"\boxed{42}"}
GUESS = {"role": "assistant", "content": r"\boxed{41}"}


def says(text: str) -> dict:
    return {"role": "assistant", "content": text}


def tool(text: str) -> dict:
    return {"role": "tool", "content": text}


@pytest.fixture(scope="module")
def env():
    return load_environment("math-python")


@pytest.fixture(scope="module")
def example(env):
    return env.example(problem="6 times 7?", answer="42")


@pytest.mark.parametrize(
    ("conversation", "components", "reward", "outcome"),
    [
        ([says(CALL), tool("42\n"), DONE], (1, 1, 1), 1.2, Outcome.CORRECT),
        ([DONE], (1, 0, 0), 1.0, Outcome.CORRECT),
        ([says(CALL), tool("42"), GUESS], (0, 1, 1), 0.2, Outcome.WRONG),
        ([says(CALL), tool("42")] * 5 + [GUESS], (0, 1, 1), 0.2, Outcome.WRONG),
        ([says(CALL), tool("error: NameError"), DONE], (1, 1, 0), 1.1, Outcome.CORRECT),
        ([says(BROKEN), tool("error: malformed"), DONE], (1, 0, 0), 1.0, Outcome.CORRECT),
        ([says(BROKEN), tool("error: malformed"), says(CALL), tool("42"), DONE], (1, 0, 1), 1.1, Outcome.CORRECT),
        ([says(CALL), tool("42")], (0, 1, 1), 0.2, Outcome.UNPARSABLE),
        ([says(CALL + "<tool_response>42</tool_response>" + r"\boxed{42}")], (0, 1, 0), 0.1, Outcome.UNPARSABLE),
        ([says(r'<tool_call>{"name": "python", "arguments": {"code": "\\boxed{42}"')], (0, 0, 0), 0.0, None),
        ([says('<tool_call>{"name": "bash", "arguments": {"code": "ls"}}</tool_call>')], (0, 0, 0), 0.0, None),
        ([says("<tool_call>" + "[" * 100_000 + "</tool_call>")], (0, 0, 0), 0.0, None),
        ([tool("42"), DONE], (1, 0, 0), 1.0, Outcome.CORRECT),
    ],
)  # fmt: skip
def test_conversations(env, example, conversation, components, reward, outcome):
    score = env.grade(example, conversation)
    assert tuple(score.components.values()) == components, score.detail
    assert score.reward == pytest.approx(reward)
    assert score.outcome is (outcome or Outcome.UNPARSABLE)


def test_no_conversation_with_a_wrong_answer_beats_one_with_the_right_one():
    env = load_environment("math-python", syntax_weight=0.49, use_weight=0.5)
    ranges, weights = env.rubric.ranges, env.rubric.weights
    best_wrong = sum(weights[name] * ranges[name].wrong[1] for name in weights)
    worst_right = sum(weights[name] * ranges[name].right[0] for name in weights)
    assert best_wrong == pytest.approx(0.99) and best_wrong < worst_right == 1.0
    for syntax, use in ((0.5, 0.5), (2.0, 0.0), (-0.1, 0.1), (float("nan"), 0.0)):
        with pytest.raises(UserError, match="sum must be less than 1, or calling the tool pays more"):
            load_environment("math-python", syntax_weight=syntax, use_weight=use)


def answers(env, *codes: str) -> list[str]:
    """What the tool says to calls with this code, all in one message."""
    functions = [{"name": "python", "arguments": json.dumps({"code": code})} for code in codes]
    calls = [{"id": str(i), "function": function} for i, function in enumerate(functions)]
    ((shown, state),) = env.respond_many([([{"role": "assistant", "content": "", "tool_calls": calls}], {})])
    assert state == {} and [message["tool_call_id"] for message in shown] == [str(i) for i in range(len(codes))]
    return [message["content"] for message in shown]


RUNS = [
    ("print(6 * 7)", "42"),
    ("x = 6\nx * 7", "42"),
    ("print('a')\n'b'", "a\n'b'"),
    ("x = 1", "(it printed nothing)"),
    ("from __future__ import annotations\nfrom math import factorial\nfactorial(20)", "2432902008176640000"),
    ("import sys; sys.exit(0)", "(it printed nothing)"),
    ("object()", "<object object at 0x…>"),
    ("raise SystemExit(3)", "error: it ended with exit code 3"),
    ("1/0", 'error: File "code.py", line 1, in <module>\n    1/0\nZeroDivisionError: division by zero'),
    (
        "def f():\n    return g()\nprint('a')\nf()",
        'error: File "code.py", line 4, in <module>\n    f()\n  File "code.py", line 2, in f\n    return g()\n'
        "NameError: name 'g' is not defined\nprinted before:\na",
    ),
    ("x = (", "error: File \"code.py\", line 1\n    x = (\nSyntaxError: '(' was never closed"),
    ("a\0b", "error: SyntaxError: source code string cannot contain null bytes"),
    ("input()", 'error: File "code.py", line 1, in <module>\n    input()\nEOFError: EOF when reading a line'),
]


def check_runs(env):
    for (code, expected), shown in zip(RUNS, answers(env, *[code for code, _ in RUNS]), strict=True):
        # Which part of a line Python marks depends on its version, and so does the name of what is wrong with a NUL.
        shown = "\n".join(line for line in shown.splitlines() if line.strip("~^ ")).replace("ValueError", "SyntaxError")
        assert shown == expected, code


@pytest.fixture(scope="module")
def unguarded():
    return load_environment("math-python", sandbox="none")


def test_what_the_tool_says_without_isolation(unguarded):
    """The code of this test is ours."""
    check_runs(unguarded)


@pytest.mark.sandbox
def test_what_the_tool_says_in_the_sandbox(env):
    env.check_rollouts()
    check_runs(env)
    slow, large, loud = answers(env, "while True: pass", "[0] * 10**10", "while True: print('x' * 1000)")
    assert slow == "error: it took too long (the limits are 5 s of the processor, 8 s in all)"
    assert (large, loud) == ("error: it took too much memory", "error: it printed too much")
    (shown,) = answers(env, "open('/etc/passwd').read()")
    assert shown.endswith("FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'")


def test_the_conversation_goes_on_until_nothing_is_called(unguarded, example):
    assert isinstance(unguarded, ToolEnv) and unguarded.max_turns == 4
    assert unguarded.env_response([*example.prompt, DONE], {}) == []
    (answer,) = unguarded.env_response([*example.prompt, says(BROKEN)], {})
    assert answer["content"].startswith('error: the call cannot be read: \'{"name": "python"')
    (answer,) = unguarded.env_response([*example.prompt, says(CALL)], {})
    assert answer == {"role": "tool", "name": "python", "tool_call_id": answer["tool_call_id"], "content": "42"}


@pytest.mark.parametrize(
    "argv",
    [
        ["rl", "--orchestrator.env.id", "math-python", "--model.name", "hone/tiny"],
        ["eval", "math-python", "-m", "hone/tiny"],
    ],
)
def test_without_a_sandbox_nothing_starts(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap there
    assert main(argv) == 2
    assert "apt-get install bubblewrap" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match='sandbox is \'docker\'; it must be "bubblewrap" or "none"'):
        load_environment("math-python", sandbox="docker")
