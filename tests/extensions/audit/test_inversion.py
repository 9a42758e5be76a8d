"""The best wrong answer against the worst right one."""

from __future__ import annotations

import math

import pytest
from made import TAGS, form, prober, right, sums

from hone.environments import Range, Rubric, ToolEnv, calls_of
from hone.errors import UserError
from hone.extensions.audit.conversations import made_up_call
from hone.extensions.audit.inversion import check_inversion, contribution
from hone.extensions.audit.report import Check, Verdict
from hone.types import Example, Message


def found(check: Check) -> dict[str, str]:
    return {finding.name: finding.title for finding in check.findings}


def multiply(a: int, b: int = 2) -> int:
    """Multiplies."""
    return a * b


def tool_bonus(completion):
    """1 for each call of a tool."""
    return float(sum(len(calls_of(message)) for message in completion))


def turn_bonus(completion):
    """1 for each turn with a call."""
    return float(sum(bool(calls_of(message)) for message in completion))


class Tooled(ToolEnv):
    def reference(self, example: Example) -> list[Message]:
        return [*self.called("multiply", a=3), {"role": "assistant", "content": TAGS.wrap(example.answer)}]


def tooled(rubric: Rubric) -> Tooled:
    rows = [{"question": f"{a} * 2?", "answer": str(2 * a)} for a in range(20, 28)]
    return Tooled(tools=[multiply], rubric=rubric, dataset=rows, parser=TAGS, max_turns=6, id="tooled")


def length_bonus(completion):
    return min(2.0, len(completion[-1]["content"]) / 100)


def penalty(completion):
    return float(len(completion[-1]["content"]) > 2000)


def style(completion):
    return 0.0


def tags(completion):
    return 0.4 * ("<reasoning>" in completion[-1]["content"])


def lines(completion):
    return 0.4 * (completion[-1]["content"].count("\n") > 3)


def answered(completion):
    return 0.4 * ("<answer>" in completion[-1]["content"])


PARTS = [right, tags, lines, answered]
EITHER, ANY = Range(right=(1.0, 1.0), wrong=(0.0, 0.0)), Range((0.0, 1.0), (0.0, 1.0))
DECLARED = {"right": EITHER, "form": Range((1.0, 1.0), (0.0, 1.0)), "style": ANY}
BELOW, UP_TO = ({"right": Range(right=(1.0, 1.0), wrong=(0.0, most))} for most in (math.nextafter(1.0, 0.0), 1.0))
CASES = {
    "calls": (tooled, [right, turn_bonus], [1, 1], None, "6 calls of tools (turn_bonus: 6.0)", "1.0"),
    "single calls": (tooled, [right, tool_bonus], [10, 1], None, "24 calls of tools (tool_bonus: 24.0)", "10.0"),
    # The right answer alone has 20 characters.
    "length": (sums, [right, length_bonus], [1, 1], None, "a wrong answer (length_bonus: 2.0)", "1.2"),
    "penalty": (sums, [right, penalty], [1, -1.5], None, "a wrong answer (penalty: 0.0)", "-0.5"),
    "declared": (sums, [right, form, style], [1, -0.4, 1], DECLARED, "a wrong answer (style: 1.0)", "0.6"),
    "together": (sums, PARTS, [0.7, 1, 1, 1], None, "a wrong answer (tags and lines: 0.8 of 1.2)", "1.1"),
    "up to a right one": (sums, [right], [1], UP_TO, "a wrong answer (right: 1.0)", "1.0"),
    "declared, sound": (sums, [right, form, style], [1, 0.4, 0.6], DECLARED, "", ""),
    "together, sound": (sums, PARTS, [1, 1, 1, 1], None, "", ""),
    "just below": (sums, [right], [1], BELOW, "", ""),
    "always 0": (sums, [style], [1], None, "", ""),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_answer_that_can_beat_a_right_one_is_named_with_what_it_pays(name: str) -> None:
    make, functions, weights, ranges, wrong, best = CASES[name]
    check = check_inversion(prober(make(Rubric(functions, weights, ranges=ranges))))
    if not wrong:
        assert "inversion" not in found(check)
    else:
        finding = check.findings[0]
        assert (finding.name, finding.verdict) == ("inversion", Verdict.FAIL)
        way = "equal" if name == "up to a right one" else "beat"
        assert finding.title.removesuffix(" (by the declared ranges)") == f"{wrong} can {way} a right answer ({best})"
    figures = [(check.figures.get(name) or {}).get("reward") for name in ("best_wrong", "worst_right")]
    if name == "calls":
        assert figures == [6.0, 1.0] == [shown.reward for shown in finding.shown[:2]]
        assert finding.what == ("turn_bonus",)
    elif name == "together":
        assert finding.remedy.endswith("tags and lines must add less than 0.7 together")
    elif name == "declared, sound":
        assert figures == [1.0, 1.4] and check.figures["best_wrong"]["source"] == "declared"


def test_a_component_that_leaves_its_declared_range() -> None:
    ranges = {"right": EITHER, "form": Range(right=(0.5, 1.0), wrong=(0.0, 0.9))}
    check = check_inversion(prober(sums(Rubric([right, form], ranges=ranges, correctness="right"))))
    assert "form is 1 for a wrong answer and declares 0 to 0.9" in found(check)["range"]


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
        ({"type": "integer", "minimum": 5}, 5),
        ({"enum": ["b", "c"]}, "b"),
        ({"type": "array", "items": {"type": "number"}, "minItems": 2}, [1, 1]),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"$ref": "#/$defs/Leaf"}, {"x": "1"}),
        ({"$ref": "#/$defs/Tree"}, {"left": "1"}),
    ],
)
def test_made_up_arguments_follow_the_schema(schema: dict, value: object) -> None:
    parameters = {"required": ["a"], "properties": {"a": schema, "b": {}}, "$defs": {"Leaf": LEAF, "Tree": TREE}}
    assert made_up_call({"function": {"name": "f", "parameters": parameters}}) == ("f", {"a": value})


def test_a_negative_weight_swaps_the_ends() -> None:
    assert contribution(-2.0, (0.0, 1.0)) == (-2.0, 0.0)
    assert contribution(0.0, (0.0, math.inf)) == (0.0, 0.0)
