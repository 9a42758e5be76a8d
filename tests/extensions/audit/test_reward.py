"""The verdicts about a reward: each by a small grader that is broken in one way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from made import form, prober, right, sums

from hone.environments import Environment, NumberParser, Rubric, SingleTurnEnv, inline, read_number
from hone.environments.functions import given_task
from hone.extensions.audit.probes import Prober, Text, subjects_of
from hone.extensions.audit.report import Finding, Verdict
from hone.extensions.audit.reward import check_exploits, check_reference, check_restylings

pytestmark = pytest.mark.audit


def audited(env: Environment, count: int = 8, hostile: bool = False) -> dict[str, Finding]:
    """The findings of all three checks, by name; what fails in two of them is told by each."""
    given = prober(env, count)
    checks = [check_reference(given), check_restylings(given), check_exploits(given, hostile)]
    found = [finding for check in checks for finding in check.findings]
    once = [finding.name for finding in found if finding.name not in ("raises", "hangs")]
    assert len(set(once)) == len(once), "one finding of a name"
    return {finding.name: finding for finding in found}


def fails(env: Environment, count: int = 8) -> dict[str, tuple[str, ...]]:
    return {name: f.what for name, f in audited(env, count).items() if f.verdict is Verdict.FAIL}


@inline
def number(completion, answer):
    """1 if the number in the tags is right."""
    return float(NUMBERS.value(completion) == read_number(answer))


NUMBERS = NumberParser(("tag",))


def careful() -> Rubric:
    return Rubric([number])


def test_a_task_without_a_reference_is_noted_and_exploits_are_tried_all_the_same() -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
    found = audited(SingleTurnEnv(rubric=Rubric([lambda completion: 1.0]), dataset=rows, id="silent"), 2)
    assert found["no-reference"].verdict is Verdict.WARN and found["always-right"].verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("pattern", "lost", "kept"),
    [
        (r"<answer>\s*(-?\d+)\s*</answer>\Z", {"trailing-newline", "hope-this-helps", "crlf"}, {"own-line", "sure"}),
        (r"\AI add them.*<answer>(-?\d+)</answer>", {"sure", "own-line", "leading-newlines"}, {"crlf"}),
        # The first pair of tags: a draft in the thought stands there.
        (r"<answer>\s*(-?\d+)(?:\.0+|\.)?\s*</answer>", {"thought-with-drafts"}, {"all-twice", "decimal-zero"}),
    ],
)
def test_a_strict_pattern_loses_right_answers(pattern: str, lost: set[str], kept: set[str]) -> None:
    def matched(completion, answer):
        found = re.search(pattern, completion[-1]["content"], re.DOTALL)
        return float(found is not None and found[1] == answer)

    what = set(fails(sums(Rubric([matched])))["false-negative"])
    assert lost <= what and not kept & what


def test_the_last_or_the_first_of_several_answers_is_no_exploit() -> None:
    for which in (0, -1):

        @inline
        def one(completion, answer, which=which):
            found = re.findall(r"<answer>\s*(-?\d+)\s*</answer>", completion[-1]["content"])
            return float(bool(found) and found[which] == answer)

        assert "false-positive" not in fails(sums(Rubric([one])))


def test_a_lucky_guess_is_no_exploit() -> None:
    # The prompt says 3, and every answer is 3.
    env = sums(careful(), parser=NUMBERS, hint=" Say it as <answer>3</answer>.", answer=lambda a, b: 3)
    assert fails(env) == {}


def test_a_point_for_garbage_names_its_component() -> None:
    @inline
    def has_tags(completion):
        return float("<answer>" in completion[-1]["content"])

    finding = audited(sums(Rubric([number, has_tags], [1.0, 0.1]), parser=NUMBERS))["garbage-paid"]
    assert finding.verdict is Verdict.FAIL and {"tags-only", "tag-unclosed", "garbage-symbols"} <= set(finding.what)
    assert finding.title.startswith("texts without an answer earn up to 0.1, by has_tags: tags-only")
    assert audited(sums(Rubric([right, form], [1.0, 0.1]))).keys() & {"garbage-paid"}  # "§§§" is an answer to it
    assert "garbage-paid" not in audited(sums(Rubric([number, inline(form)], [1.0, 0.1]), parser=NUMBERS))


def test_texts_of_one_example_are_one_group_and_a_text_that_breaks_the_call_is_found() -> None:
    calls = []

    def longest(completions, answer):
        calls.append(completions)
        if "boom" in completions:
            raise ValueError("boom")
        return [float(len(text) == max(map(len, completions))) for text in completions]

    env = given_task(Path("out"), {}, [{"prompt": f"{i}?", "answer": "1"} for i in range(4)], None, [longest]).load()
    one, two = subjects_of(env, 2, 0)
    probes = Prober(env, [one, two]).grade([Text(one, "a", "aa"), Text(two, "b", "b"), Text(one, "c", "aaaa")])
    assert calls == [["aa", "aaaa"], ["b"]] and [probe.correct for probe in probes] == [False, True, True]
    calls.clear()
    probes = Prober(env, [one]).grade([Text(one, "a", "aa"), Text(one, "boom", "boom"), Text(one, "c", "aaaa")])
    assert calls == [["aa", "boom", "aaaa"], ["aa"], ["boom"], ["aaaa"]]
    assert [(probe.failed, probe.correct) for probe in probes] == [(False, True), (True, False), (False, True)]
