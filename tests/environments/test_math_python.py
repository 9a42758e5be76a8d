from __future__ import annotations

import json

import pytest

from hone.cli import main
from hone.environments import MultiTurnEnv, load_environment
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


def test_calls_as_servers_report_them(env, example):
    function = {"name": "python", "arguments": json.dumps({"code": "print(42)"})}
    called = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}
    assert env.grade(example, [called, tool("42"), DONE]).reward == pytest.approx(1.2)
    odd = {"role": "assistant", "content": "", "tool_calls": ["python"]}
    assert env.grade(example, [odd, tool("42"), DONE]).reward == 1.0


def test_the_reference_deserves_full_marks(env):
    for example in env.split("eval"):
        score = env.grade(example, env.reference(example))
        assert (score.reward, score.outcome) == (pytest.approx(1.2), Outcome.CORRECT)


def test_no_conversation_with_a_wrong_answer_beats_one_with_the_right_one():
    env = load_environment("math-python", syntax_weight=0.49, use_weight=0.5)
    ranges, weights = env.rubric.ranges, env.rubric.weights
    best_wrong = sum(weights[name] * ranges[name].wrong[1] for name in weights)
    worst_right = sum(weights[name] * ranges[name].right[0] for name in weights)
    assert best_wrong == pytest.approx(0.99) and best_wrong < worst_right == 1.0
    for syntax, use in ((0.5, 0.5), (2.0, 0.0), (-0.1, 0.1), (float("nan"), 0.0)):
        with pytest.raises(UserError, match="together less than 1, or calling the tool pays more"):
            load_environment("math-python", syntax_weight=syntax, use_weight=use)


def test_the_prompt_tells_how_to_call_the_tool_and_how_to_answer(env, example):
    system, question = example.prompt
    assert env.grade(example, [says(system["content"]), tool("2"), DONE]).components["tool_syntax"] == 1
    assert question["content"].startswith("6 times 7?\nReason step by step")
    bare = load_environment("math-python", format_hint=False, system_prompt="")
    assert bare.example(problem="6 times 7?", answer="42").prompt == [{"role": "user", "content": "6 times 7?"}]


def test_the_environment_answers_calls_and_the_tool_is_refused(env, example):
    assert isinstance(env, MultiTurnEnv) and env.max_turns == 4
    assert env.env_response([*example.prompt, DONE], {}) == []
    (answer,) = env.env_response([*example.prompt, says(BROKEN)], {})
    assert answer["role"] == "tool" and answer["content"].startswith("error: a call is")
    with pytest.raises(UserError, match="needs a sandbox, and there is none yet: take math-problems"):
        env.env_response([*example.prompt, says(CALL)], {})
    assert env.env_response([*example.prompt, *[says(CALL), tool("42")] * 3, says(CALL)], {}) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["rl", "--orchestrator.env.id", "math-python"],
        ["eval", "math-python", "-m", "hone/tiny"],
        ["sft", "--data.env.id", "math-python"],
    ],
)
def test_sampling_it_is_refused_in_one_sentence(argv, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert "'math-python' is a conversation of several turns, which can be graded but not" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
