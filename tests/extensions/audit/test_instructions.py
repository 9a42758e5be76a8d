"""The forms and the lengths that prompts ask for."""

from __future__ import annotations

import pytest
from made import TAGS, Sums, prober, right, sums

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
    (tag,), (json_form,) = forms_in("Use <answer> tags."), forms_in('Reply with {"answer": 42}.')
    assert tag.texts("4") == ["<answer>4</answer>", "<answer>\n4\n</answer>"]
    assert json_form.texts('say "hi"')[0] == '{"answer": "say \\"hi\\""}'


def test_tags_around_data_and_what_some_prompts_name_ask_for_nothing() -> None:
    prompts = ["<story>One</story> <answer>2</answer> #### 1", "<story>Two</story> <answer>2</answer>"]
    assert [form.name for form in asked_forms(prompts)] == ["<answer>"]
    assert asked_forms([]) == []


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


class Wrapped(Sums):
    """Sums whose reference is the answer within `wrapping`."""

    wrapping = "{}"

    def reference(self, example: Example) -> str:
        return self.wrapping.format(example.answer)


class Boxed(Wrapped):
    wrapping = r"<answer>\boxed{{{}}}</answer>"


@pytest.mark.parametrize(
    ("kind", "parser", "prompt"),
    [
        (Boxed, AnswerParser(str, ("boxed",)), r"<answer>\boxed{ }</answer>"),
        (Sums, TAGS, "Answer like this:\n```\n<answer>5</answer>\n```"),
        (Wrapped, Parser(), "Say the number please."),
        (Sums, LastNumberParser(), "End with the number."),
    ],
)
def test_forms_that_go_together_are_read_together_and_a_bare_answer_needs_none(kind, parser, prompt) -> None:
    env = sums(Rubric([right]), parser=parser, system_prompt=prompt)
    env.__class__ = kind
    assert check_instructions(prober(env)).findings == ()


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
