"""The forms and the lengths that prompts ask for."""

from __future__ import annotations

import pytest
from made import Sums, prober, right, sums

from hone.environments import AnswerParser, LastNumberParser, Parser, Rubric
from hone.extensions.audit.instructions import asked_forms, check_instructions, forms_in
from hone.extensions.audit.report import Check, Finding, Verdict
from hone.types import Example


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


def test_an_answer_is_written_in_each_way() -> None:
    (tag,) = forms_in("Use <answer> tags.")
    assert tag.texts("4") == ["<answer>4</answer>", "<answer>\n4\n</answer>"]
    (json_form,) = forms_in('Reply with {"answer": 42}.')
    assert json_form.texts('say "hi"')[0] == '{"answer": "say \\"hi\\""}'


def test_tags_around_data_and_what_some_prompts_name_ask_for_nothing() -> None:
    prompts = ["<story>One</story> <answer>2</answer> #### 1", "<story>Two</story> <answer>2</answer>"]
    assert [form.name for form in asked_forms(prompts)] == ["<answer>"]
    assert asked_forms([]) == []


def test_a_form_that_the_parser_does_not_read_is_a_failure_with_the_text_that_lost() -> None:
    finding = only(check_instructions(prober(sums(Rubric([right]), hint=r" Put the answer in \boxed{}."))))
    assert (finding.name, finding.verdict, finding.what) == ("instructions", Verdict.FAIL, (r"\boxed{}",))
    assert finding.title == (
        "the prompt asks for an answer in a form that the parser does not read: "
        r'\boxed{} ("What is 10 + 100? Put the answer in \boxed{}.")'
    )
    assert finding.shown[0].text == r"\boxed{110}" and finding.shown[0].outcome == "unparsable"


def test_a_form_that_is_read_is_no_finding() -> None:
    check = check_instructions(prober(sums(Rubric([right]), hint=" Answer in <answer> tags.")))
    assert check.findings == ()
    words = "What is 10 + 100? Answer in <answer> tags."
    assert check.figures["forms"] == [{"form": "<answer>", "snippet": words, "read": True}]


def test_of_two_forms_the_one_that_is_not_read_is_a_warning() -> None:
    hint = r" Put the answer in <answer> tags, or after ANSWER:, that is all."
    finding = only(check_instructions(prober(sums(Rubric([right]), hint=hint))))
    assert finding.verdict is Verdict.WARN and finding.what == ("ANSWER:",)
    assert finding.title.endswith("; it reads <answer>")


def test_forms_that_go_together_are_read_together() -> None:
    class Boxed(Sums):
        def reference(self, example: Example) -> str:
            return rf"<answer>\boxed{{{example.answer}}}</answer>"

    env = sums(Rubric([right]), parser=AnswerParser(str, ("boxed",)), system_prompt=r"<answer>\boxed{ }</answer>")
    env.__class__ = Boxed
    assert check_instructions(prober(env)).findings == ()
    fenced = "Answer like this:\n```\n<answer>5</answer>\n```"
    assert check_instructions(prober(sums(Rubric([right]), system_prompt=fenced))).findings == ()


def test_a_parser_that_reads_the_bare_answer_needs_no_form() -> None:
    class Plain(Sums):
        def reference(self, example: Example) -> str:
            return example.answer

    rows = [{"question": f"Say {a} please.", "answer": f"word{a}"} for a in range(8)]
    env = Plain(rubric=Rubric([right]), dataset=rows, parser=Parser(), id="plain")
    assert check_instructions(prober(env)).findings == ()
    numbers = sums(Rubric([right]), parser=LastNumberParser(), hint=" End with the number.")
    assert check_instructions(prober(numbers)).findings == ()


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
