"""The best wrong answer against the worst right one."""

from __future__ import annotations

import math

import guessing
import pytest
from made import TAGS, form, prober, right, sums

from hone.environments import Range, Rubric, ToolEnv, calls_of
from hone.errors import UserError
from hone.extensions.audit.conversations import call_message, made_up_call, terse_text, wrong_text
from hone.extensions.audit.inversion import check_inversion, contribution
from hone.extensions.audit.probes import Subject, play_many
from hone.extensions.audit.report import Check, Verdict
from hone.types import Example, Message

EITHER = Range(right=(1.0, 1.0), wrong=(0.0, 0.0))


def found(check: Check) -> dict[str, str]:
    return {finding.name: finding.title for finding in check.findings}


def multiply(a: int, b: int = 2) -> int:
    """Multiplies."""
    return a * b


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def tool_bonus(completion):
    """1 for each call of a tool."""
    return float(sum(len(calls_of(message)) for message in completion))


def turn_bonus(completion):
    """1 for each turn with a call."""
    return float(sum(bool(calls_of(message)) for message in completion))


class Tooled(ToolEnv):
    def reference(self, example: Example) -> list[Message]:
        return [*self.called("multiply", a=3), {"role": "assistant", "content": TAGS.wrap(example.answer)}]


def tooled(rubric: Rubric, max_turns: int = 6, tools=(multiply,)) -> Tooled:
    rows = [{"question": f"{a} * 2?", "answer": str(2 * a)} for a in range(20, 28)]
    return Tooled(tools=list(tools), rubric=rubric, dataset=rows, parser=TAGS, max_turns=max_turns, id="tooled")


def test_calls_of_a_tool_that_beat_the_answer_are_counted_and_named() -> None:
    check = check_inversion(prober(tooled(Rubric([right, turn_bonus], [1.0, 1.0]))))
    finding = check.findings[0]
    assert (finding.name, finding.verdict, finding.what) == ("inversion", Verdict.FAIL, ("turn_bonus",))
    assert finding.title == "6 calls of tools (turn_bonus: 6.0) can beat a right answer (1.0)"
    assert finding.shown[0].reward == 6.0 and finding.shown[1].reward == 1.0
    assert check.figures["best_wrong"]["reward"] == 6.0 and check.figures["worst_right"]["reward"] == 1.0


def test_the_environment_hears_the_last_message_of_a_script() -> None:
    env = guessing.load_environment(max_turns=2)
    example = env.split("train")[0]
    say = [{"role": "assistant", "content": text} for text in ("7", "8", "9")]
    replies = play_many(env, [(example, say[:1]), (example, say[:2]), (example, say)])
    assert [reply.state and reply.state["guesses"] for reply in replies] == [[7], [7, 8], [7, 8]]
    assert [reply.turns for reply in replies] == [1, 2, 2]
    assert [reply.messages[-1]["content"] for reply in replies] == ["7", "8", "8"]


def test_single_calls_are_shown_where_they_are_enough() -> None:
    for weight, calls in ((1.0, 6), (10.0, 24)):
        check = check_inversion(prober(tooled(Rubric([right, tool_bonus], [weight, 1.0]))))
        assert found(check)["inversion"].startswith(
            f"{calls} calls of tools (tool_bonus: {calls}.0) can beat a right answer"
        )


def test_a_bonus_for_length_is_named_with_what_it_pays() -> None:
    def length_bonus(completion):
        return min(2.0, len(completion[-1]["content"]) / 100)

    check = check_inversion(prober(sums(Rubric([right, length_bonus]))))
    # The right answer alone has 20 characters.
    assert found(check)["inversion"] == "a wrong answer (length_bonus: 2.0) can beat a right answer (1.2)"
    assert check.findings[0].remedy.endswith("length_bonus must add less than 1.2")


def test_a_penalty_that_a_right_answer_can_get() -> None:
    def penalty(completion):
        return float(len(completion[-1]["content"]) > 2000)

    check = check_inversion(prober(sums(Rubric([right, penalty], [1.0, -1.5]))))
    assert found(check)["inversion"] == "a wrong answer (penalty: 0.0) can beat a right answer (-0.5)"


def test_declared_ranges_count_as_reachable_together() -> None:
    def style(completion):
        return 0.0

    ranges = {"right": EITHER, "form": Range((1.0, 1.0), (0.0, 1.0)), "style": Range((0.0, 1.0), (0.0, 1.0))}
    check = check_inversion(prober(sums(Rubric([right, form, style], [1.0, 0.4, 0.6], ranges=ranges))))
    assert "inversion" not in found(check)
    assert check.figures["best_wrong"]["reward"] == 1.0 and check.figures["best_wrong"]["source"] == "declared"
    assert check.figures["worst_right"]["reward"] == 1.4

    check = check_inversion(prober(sums(Rubric([right, form, style], [1.0, -0.4, 1.0], ranges=ranges))))
    assert check.figures["best_wrong"]["reward"] == 1.0 and check.figures["worst_right"]["reward"] == 0.6
    assert (
        found(check)["inversion"]
        == "a wrong answer (style: 1.0) can beat a right answer (0.6) (by the declared ranges)"
    )


def test_a_component_that_leaves_its_declared_range() -> None:
    ranges = {"right": EITHER, "form": Range(right=(0.5, 1.0), wrong=(0.0, 0.9))}
    check = check_inversion(prober(sums(Rubric([right, form], ranges=ranges, correctness="right"))))
    assert "form is 1 for a wrong answer and declares 0 to 0.9" in found(check)["range"]


def test_a_wrong_maximum_just_below_a_right_answer_is_no_inversion() -> None:
    ranges = {"right": Range(right=(1.0, 1.0), wrong=(0.0, math.nextafter(1.0, 0.0)))}
    check = check_inversion(prober(sums(Rubric([right], ranges=ranges))))
    assert check.findings == () and "earns less than 1.0 (declared)" in check.summary
    ranges = {"right": Range(right=(1.0, 1.0), wrong=(0.0, 1.0))}
    assert "inversion" in found(check_inversion(prober(sums(Rubric([right], ranges=ranges)))))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_reward_that_is_always_the_same_is_no_inversion(value: float) -> None:
    def constant(completion):
        return value

    assert check_inversion(prober(sums(Rubric([constant])))).findings == ()


def test_a_task_that_cannot_be_sampled_here_is_not_played() -> None:
    env = tooled(Rubric([right]))

    def refuse() -> None:
        raise UserError("there is no sandbox")

    env.check_rollouts = refuse  # type: ignore[method-assign]
    assert [(f.name, f.verdict) for f in check_inversion(prober(env)).findings] == [("not-played", Verdict.NOTE)]


LEAF = {"required": ["x"], "properties": {"x": {"type": "string"}}}
TREE = {"type": "object", "required": ["left"], "properties": {"left": {"$ref": "#/$defs/Tree"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5}, 6),
        ({"type": "number", "maximum": 0}, 0),
        ({"enum": ["b", "c"]}, "b"),
        ({"type": "string", "const": "a"}, "a"),
        ({"type": "string", "minLength": 3}, "111"),
        ({"type": "array", "items": {"type": "string"}}, ["1"]),
        ({"type": "array", "items": {"type": "number"}, "minItems": 2}, [1, 1]),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"type": ["null", "integer"]}, 1),
        ({}, "1"),
        (LEAF, {"x": "1"}),
        ({"type": "object", "required": ["a"]}, {"a": "1"}),
        ({"$ref": "#/$defs/Leaf"}, {"x": "1"}),
        ({"$ref": "#/$defs/Tree"}, {"left": "1"}),
    ],
)
def test_made_up_arguments_follow_the_schema(schema: dict, value: object) -> None:
    parameters = {"required": ["a"], "properties": {"a": schema, "b": {}}, "$defs": {"Leaf": LEAF, "Tree": TREE}}
    assert made_up_call({"function": {"name": "f", "parameters": parameters}}) == ("f", {"a": value})


def test_made_up_calls() -> None:
    for parameters in (None, {}, {"properties": {}}, {"description": "none"}):
        assert made_up_call({"function": {"name": "f", "parameters": parameters}}) == ("f", {})
    message = call_message(("f", {"a": 1}), ("f", {"a": 1}))
    assert [call["function"]["name"] for call in calls_of(message)] == ["f", "f"]
    assert len({call["id"] for call in calls_of(message)}) == 2


def test_a_wrong_text_is_the_reference_with_another_answer() -> None:
    one, two = prober(sums(Rubric([right])), 2).subjects
    assert one.text == "I add them.\n<answer>110</answer>"
    assert wrong_text(one, [one, two]) == "I add them.\n<answer>111</answer>"
    assert terse_text(one) == "<answer>110</answer>"
    unknown = [Subject(s.example, text, text) for s, text in ((one, "abc"), (two, "xyz"))]
    assert wrong_text(unknown[0], unknown) == "xyz" and wrong_text(unknown[0], unknown[:1]) is None


def test_components_that_add_up_to_more_than_the_answer_are_all_named() -> None:
    def tags(completion):
        return 0.4 * ("<reasoning>" in completion[-1]["content"])

    def lines(completion):
        return 0.4 * (completion[-1]["content"].count("\n") > 3)

    def answered(completion):
        return 0.4 * ("<answer>" in completion[-1]["content"])

    check = check_inversion(prober(sums(Rubric([right, tags, lines, answered]))))
    assert "inversion" not in found(check)  # 1.2 for a wrong answer, 1.4 for a right one, whose tags are paid too
    check = check_inversion(prober(sums(Rubric([right, tags, lines, answered], [0.7, 1, 1, 1]))))
    assert found(check)["inversion"] == "a wrong answer (tags and lines: 0.8 of 1.2) can beat a right answer (1.1)"
    assert check.findings[0].remedy.endswith("tags and lines must add less than 0.7 together")


def test_a_negative_weight_swaps_the_ends() -> None:
    assert contribution(-2.0, (0.0, 1.0)) == (-2.0, 0.0)
    assert contribution(0.0, (0.0, math.inf)) == (0.0, 0.0)
