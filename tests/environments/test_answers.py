from __future__ import annotations

import pytest

from hone.environments.parsers import Ambiguous, AnswerParser, TagParser


def read(text: str) -> str | None:
    """Well-formed is one word of letters; "x or y" is ambiguous."""
    if " or " in text:
        raise Ambiguous(text)
    return text if text.isalpha() else None


PARSER = AnswerParser(read)


ANSWERS = {
    "a": ["<answer>a</answer>", r"\boxed{a}", r"\boxed{a} then \boxed{b", r"\boxed{1 {2} \boxed{a}}",
        "<answer>a</answer>b</answer>", r"} \boxed{a}", r"<answer>It is \boxed{a}</answer>", "ANSWER: a",
        "answer:a\nfurther text", "Final Answer :  a ", "**Answer:** a", "**ANSWER**: a", "ANSWER:\n\n  a\nb",
        "ANSWER:\n$$\na\n$$", "ANSWER: a\nANSWER: 4", "ANSWER: a<|im_end|>", "<answer>Answer: a</answer>",
        "<answer>a</answer><think><answer>b</answer></think>", "a</answer>"],
    "b": ["<answer>a</answer> and <answer>b</answer> done", "<answer>b</answer> and <answer>4 2</answer>",
        "<answer>b</answer> and <answer>c", "<answer>\n\n b \t</answer>\n\n", "<answer>a<answer>b</answer>",
        r"\boxed {a} then \boxed{b}", r"<answer>a</answer> so \boxed{b}", r"\boxed{a} so <answer>b</answer>",
        "<think><answer>a</answer></think><answer>b</answer>", "a draft <answer>a</answer></think><answer>b</answer>",
        "<think>I close <think> tags</think><answer>b</answer>", "reasons</think><answer>b</answer>",
        "<think>x</think> <answer>a</answer> </think> <answer>b</answer>"],
    None: ["<answer>b</answer> and <answer>c or d</answer>", "<answer></answer>", "a", "", r"\boxed{a\}}",
        r"<answer>\boxed{a} or \boxed{b}</answer>", "reanswer: a", "ANSWER: {number}",
        "<think><answer>a</answer></think>", "<think> unfinished <answer>a</answer>",
        "a draft <answer>a</answer></think>\n", "so it is b</answer>"],
}  # fmt: skip
"""What was thought does not count; a tag that the chat template opened does."""


REMARKS: dict[str | None, list[str]] = {  # behind an answer in its line: no part of it
    "a": ["ANSWER: a (I checked it)", "ANSWER: a. I hope it is correct.", "ANSWER: a. I checked it",
        "ANSWER: a because it fits", "ANSWER: a - I checked it", "ANSWER: a — 1 of 2",
        "Final answer: The final answer is a. I hope it is correct.", "ANSWER: b. Answer: a", "ANSWER: a<br>",
        "ANSWER: a. " + "I go on. " * 1000],
    None: ["ANSWER: a<b c", "ANSWER: a. Or b.", "ANSWER: a. No, b.", "ANSWER: a (or b)",
        "ANSWER: a or b (I checked it)", r"\boxed{a} ANSWER: b. Or c."],
}  # fmt: skip


PROSE = {  # without a reader any text is an answer, but prose after a marker replaces none
    "a red house": ["<answer>a red house</answer>", "Answer: a red house"],
    "St. Louis": ["Answer: St. Louis"],
    "a": [
        "<answer>a</answer>\nI am sure of my answer: every step was checked.",
        "\\boxed{a}\nAnswer: see the box above.",
    ],
    "b": ["ANSWER: a\nANSWER: b"],
    None: ["<answer></answer>", "The answer is a.", "a"],
}


TAGS = TagParser("t")


PAIRS = {
    "abc": ["<t>abc</t>", "<t>abc</t> and <t>unclosed", "<t>abc</t>def</t>", "<t>abc</t><t>  </t>"],
    "second": ["so <t>first</t> no, <t>second</t> done"],
    "inner": ["<t>outer<t>inner</t>"],
    "42": ["<t>41</t></think>\n<t>42</t>", "<t>42</t>\n<think>or <t>41</t></think>"],
    "two  words": ["<t>\n  two  words\n</t>\n"],
    None: ["<T>abc</T>", "<t>abc", "abc</t>", "</t>abc<t>", "<t></t>", "<t> \n </t>", "abc", "",
        "<think><t>41</t></think>", "<think>Hm: <t>41</t>"],
}  # fmt: skip


TABLES = [
    (PARSER.parse, ANSWERS),
    (PARSER.value, ANSWERS),
    (PARSER.value, REMARKS),
    (AnswerParser().parse_answer, PROSE),
]
TABLES += [(AnswerParser().value, PROSE), (TAGS.parse, PAIRS)]


@pytest.mark.parametrize(("read", "table"), TABLES)
def test_the_last_well_formed_answer_is_read_and_no_remark_behind_it(read, table):
    for answer, texts in table.items():
        assert {text: read(text) for text in texts} == dict.fromkeys(texts, answer)


def test_of_messages_the_last_one_of_the_assistant_is_read():
    messages = [
        {"role": "assistant", "content": "<t>one</t>"},
        {"role": "user", "content": "<t>two</t>"},
        {"role": "assistant", "content": [{"type": "text", "text": "<t>thr"}, {"type": "text", "text": "ee</t>"}]},
        {"role": "user", "content": "<t>four</t>"},
    ]
    assert TAGS.parse_answer(messages) == "three"
    assert TAGS.parse_answer([{"role": "user", "content": "<t>x</t>"}]) is None


def test_hostile_text_is_read_in_linear_time():
    for part in ("<answer>", "answer:", "<think>", "</think>", "<|a|>", "1"):
        assert PARSER.parse(part * 50_000) is None
    assert PARSER.parse(r"\boxed{" * 50_000 + "}" * 50_000) is None
    assert PARSER.parse("answer" + " " * 300_000 + "a") is None
    assert PARSER.parse("answer:" + " " * 300_000 + "a") == "a"
    assert TAGS.parse("<t>" * 100_000 + "x" + "</t>" * 100_000) == "x"
    for part in ("answer: 4 (", "answer: <", "answer: a. ", "answer: 4 — ", "answer: ((4 "):
        PARSER.parse(part * 20_000)
