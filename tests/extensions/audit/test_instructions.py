"""The forms and the lengths that prompts ask for."""

from __future__ import annotations

import pytest
from made import prober, right, sums

from hone.environments import Rubric
from hone.extensions.audit.instructions import check_instructions, forms_in
from hone.extensions.audit.report import Check, Finding, Verdict


def names(text: str) -> list[str]:
    return [form.name for form in forms_in(text)]


def only(check: Check) -> Finding:
    (finding,) = check.findings
    return finding


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("Think in <think> tags, then answer in <answer> tags.", ["<answer>"]),
        (r"Put your final answer within \boxed{}.", [r"\boxed{}"]),
        ("End with a line ANSWER: {number}", ["ANSWER:"]),
        ("Write 'Final answer: X' at the end.", ["Final answer:"]),
        ("Question: 2 + 2?\nAnswer:", []),
        ("End with #### and the number.", ["####"]),
        ('Reply with {"answer": 42}.', ['JSON with "answer"']),
        ("Return JSON with the key 'result'.", ['JSON with "result"']),
        ('Call it: {"name": "f", "arguments": {}}', []),
        ("Put the code in a ```python block.", ["a code fence"]),
        ("On the last line write ANSWER: X.", ["ANSWER:"]),
        ("<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>", ["<answer>"]),
        ("Use <b>bold</b>, call with <tool_call>, read the <document>.", []),
        ("Is 3 < 4 and a<b>c?", []),
        ("How much is 2 + 2?", []),
    ],
)
def test_forms_that_a_text_names(text: str, forms: list[str]) -> None:
    assert names(text) == forms


@pytest.mark.parametrize(
    ("hint", "verdict", "what"),
    [
        (r" Put the answer in \boxed{}.", Verdict.FAIL, r"\boxed{}"),
        (" Put the answer in <answer> tags, or after ANSWER:, that is all.", Verdict.WARN, "ANSWER:"),
        (" Answer in <answer> tags.", None, ""),
    ],
)
def test_a_form_that_the_parser_does_not_read_is_found_with_the_text_that_lost(hint, verdict, what) -> None:
    check = check_instructions(prober(sums(Rubric([right]), hint=hint)))
    if verdict is None:
        words = "What is 10 + 100? Answer in <answer> tags."
        assert check.findings == ()
        assert check.figures["forms"] == [{"form": "<answer>", "snippet": words, "read": True}]
    else:
        finding = only(check)
        assert (finding.name, finding.verdict, finding.what) == ("instructions", verdict, (what,))
        assert finding.shown[0].text == what.replace("{}", "{110}").replace("ANSWER:", "ANSWER: 110")
        assert finding.shown[0].outcome == "unparsable"


def test_references_that_do_not_fit() -> None:
    env = sums(Rubric([right]), hint=" Answer in <answer> tags.")
    count = len
    longest = max(map(count, (s.text for s in prober(env).subjects)))
    finding = only(check_instructions(prober(env), longest - 1, count))
    assert finding.verdict is Verdict.FAIL and finding.what == ("reference",)
    assert finding.title == f"the longest reference has {longest} tokens, and max_tokens is {longest - 1}"
    check = check_instructions(prober(env), 1000, count)
    assert check.findings == () and check.summary.endswith(f"the longest reference has {longest} of 1000 tokens")
    assert "lengths were not compared" in check_instructions(prober(env), 1000).summary
