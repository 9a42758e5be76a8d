"""Templates: rows of any columns become a task's columns, and whatever can't be is said with the row and the remedy."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hone.environments import SingleTurnEnv, answer_rubric, load_environment
from hone.environments.template import Template
from hone.errors import UserError

ROW = {
    "q": "2 + 3?",
    "gold": 5,
    "meta": {"level": 2, "tags": ["sum", "easy"]},
    "a.b": "dotted",
    "none": None,
    "ok": True,
}


@pytest.mark.parametrize(
    ("made", "value"),
    [
        ("{q}", "2 + 3?"),
        ("{gold}", 5),
        ("{none}", None),
        ("{meta}", {"level": 2, "tags": ["sum", "easy"]}),
        ("{meta.level}", 2),
        ("{meta.tags.1}", "easy"),
        ("{a.b}", "dotted"),
        (" {gold}", " 5"),
        ("{q} Answer: {gold}", "2 + 3? Answer: 5"),
        ("{ok}, {meta.tags}", 'true, ["sum", "easy"]'),
        ("{{{gold}}} and {{x}}", "{5} and {x}"),
        (7, 7),
        ({"level": "{meta.level}", "source": "mine"}, {"level": 2, "source": "mine"}),
        ([{"role": "user", "content": "{gold}"}], [{"role": "user", "content": "5"}]),
        ([{"role": "{q}", "content": "{q}", "name": "{gold}"}], [{"role": "2 + 3?", "content": "2 + 3?", "name": 5}]),
    ],
)
def test_what_a_template_makes(made, value):
    row = Template({"column": made}).row(ROW, "row")
    assert row == {"column": value} and type(row["column"]) is type(value)


@pytest.mark.parametrize("text", ["{q!r}", "{q:>9}", "{q:{gold}}", "{}", "{ }", "{meta[level]}", "{q", "q}", "{q}}"])
def test_what_is_no_placeholder_is_refused(text):
    with pytest.raises(UserError, match=r"^data\.template\.prompt: .*write .*braces$"):
        Template({"prompt": text}, "data.template").row(ROW, "row")


LACKING = {
    "{golden}": "no column 'golden', which template.x wants (did you mean {gold}?); there is 'q', ",
    "{meta.levle}": "no 'levle' in 'meta', which template.x wants (did you mean {meta.level}?); there is",
    "{q.__class__}": "no '__class__' in 'q', which template.x wants; that is '2 + 3?'",
    "{meta.__class__}": "no '__class__' in 'meta'",
    "{meta.tags.2}": "no '2' in 'meta.tags', which template.x wants; that is ['sum', 'easy']",
    "{meta.tags.-1}": "no '-1' in 'meta.tags'",
    "It is {none}": "'none', which template.x writes into a text, is null",
}
TURNS = {
    "each": "{conversations}",
    "role": "{from}",
    "content": "{value}",
    "roles": {"human": "user", "gpt": "assistant"},
}


def test_turns_become_messages_also_between_others():
    turns = [("system", "Be brief."), ("human", "2 + 2?"), ("gpt", 4), ("gpt", "{yes}")]
    row = {"conversations": [{"from": who, "value": what} for who, what in turns], "other": 1}
    made = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4"},
        {"role": "assistant", "content": "{yes}"},
    ]
    assert Template({"messages": TURNS}).row(row, "row") == {"messages": made}
    bye = {"role": "user", "content": "Bye"}
    assert Template({"messages": [bye, TURNS, bye]}).row(row, "row") == {"messages": [bye, *made, bye]}


BAD_TURNS = [
    ({"talk": []}, "row: no column 'conversations', which template.x.each wants"),
    ({"conversations": "hi"}, "row: {conversations} of template.x.each is 'hi', not a list of turns"),
    ({"conversations": [{"from": "gpt", "value": "a"}, {"from": "gpt"}]}, "row, turn 1: no column 'value'"),
]
NO_TURNS = [
    (TURNS | {"rolse": {}}, "template.x has 'rolse'; beside each, only role, content, roles and name are allowed"),
    (TURNS | {"roles": {"human": 1}}, "template.x.roles is {'human': 1}: give a table"),
    (TURNS | {"roles": "user"}, "template.x.roles is 'user': give a table"),
    ({"each": "{conversations}"}, "template.x has each, but no content: name a part of a turn, such as"),
    ({"each": "{conversations}", "content": "a"}, "template.x has each, but no role"),
]
REFUSED = [(text, ROW, f"row: .*{re.escape(why)}") for text, why in LACKING.items()]
REFUSED += [(TURNS, row, re.escape(why)) for row, why in BAD_TURNS]
REFUSED += [(value, {"conversations": []}, re.escape(why)) for value, why in NO_TURNS]


@pytest.mark.parametrize(("value", "row", "why"), REFUSED)
def test_what_is_missing_in_a_row_or_in_a_table_of_turns_is_named(value, row, why):
    with pytest.raises(UserError, match=f"^{why}"):
        Template({"x": value}).row(row, "row")


GSM8K = {"question": "{task.text}", "answer": "{steps}\n#### {gold}"}


def test_a_task_reads_a_data_set_of_other_columns(tmp_path: Path):
    odd = tmp_path / "odd.jsonl"
    rows = [{"task": {"text": f"What is {i} + 1?"}, "steps": f"{i} and 1", "gold": i + 1} for i in range(20)]
    odd.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = load_environment("gsm8k", dataset=str(odd))
    env.use_template(GSM8K)
    train, held_out = env.split("train"), env.split("eval")
    assert (len(train), len(held_out)) == (18, 2)
    asked = {example.prompt[0]["content"].split("?")[0]: example for example in [*train, *held_out]}
    assert set(asked) == {f"What is {i} + 1" for i in range(20)}
    example = asked["What is 4 + 1"]
    assert example.answer == "5" and env.reference(example) == "4 and 1\nANSWER: 5"
    assert env.grade(example, "ANSWER: 5").outcome == "correct"
    assert train.where(0).startswith(f"{odd}, line ")
    assert env.example(task={"text": "What is 4 + 1?"}, steps="4 and 1", gold=5) == example


def correctness(completion, answer):
    return float(completion[-1]["content"] == answer)


def test_a_template_that_is_of_no_use_is_refused():
    env = SingleTurnEnv(id="own", dataset=[{"x": "a"}], rubric=answer_rubric(correctness))
    with pytest.raises(UserError, match=r"env.template: unknown column 'anwser'; own reads .*did you mean 'answer'"):
        env.use_template({"question": "{x}", "anwser": "{x}"}, "env.template")
    with pytest.raises(UserError, match=r"template is for the rows of a data set, but gsm8k generates its rows"):
        load_environment("gsm8k").use_template(GSM8K)
