from __future__ import annotations

import pytest

from hone.environments import TagParser

TAGS = TagParser("t")


PAIRS = {
    "abc": ["<t>abc</t>", "<t>abc</t> and <t>unclosed", "<t>abc</t>def</t>", "<t>abc</t><t>  </t>"],
    "second": ["so <t>first</t> no, <t>second</t> done"],
    "inner": ["<t>outer<t>inner</t>"],
    "two  words": ["<t>\n  two  words\n</t>\n"],
    None: ["<T>abc</T>", "<t>abc", "abc</t>", "</t>abc<t>", "<t></t>", "<t> \n </t>", "abc", ""],
}  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), [(given, value) for value, texts in PAIRS.items() for given in texts])
def test_the_last_well_formed_pair_wins(text: str, answer: str | None):
    assert TAGS.parse(text) == answer
    assert TAGS.parse_answer([{"role": "assistant", "content": text}]) == answer


def test_many_unmatched_tags_cost_linear_time():
    assert TAGS.parse("<t>" * 100_000 + "x" + "</t>" * 100_000) == "x"


def test_of_messages_the_last_one_of_the_assistant_is_read():
    messages = [
        {"role": "assistant", "content": "<t>one</t>"},
        {"role": "user", "content": "<t>two</t>"},
        {"role": "assistant", "content": [{"type": "text", "text": "<t>thr"}, {"type": "text", "text": "ee</t>"}]},
        {"role": "user", "content": "<t>four</t>"},
    ]
    assert TAGS.parse_answer(messages) == "three"
    assert TAGS.parse_answer([{"role": "user", "content": "<t>x</t>"}]) is None


def test_tags_in_a_thought_are_no_answer():
    parser = TagParser("answer")
    assert parser.parse("<think><answer>41</answer></think>") is None
    assert parser.parse("<think>Hm: <answer>41</answer>") is None
    assert parser.parse("<answer>41</answer></think>\n<answer>42</answer>") == "42"
    assert parser.parse("<answer>42</answer>\n<think>or <answer>41</answer></think>") == "42"
    assert TagParser("think").parse("<think>41</think>") == "41"
