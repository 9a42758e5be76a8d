"""What SFT learns from: which tokens carry loss, in which order examples come, and how bad rows are reported."""

from __future__ import annotations

import numpy as np
import pytest

from hone.config.sft import SFTDataConfig
from hone.environments.data import Rows, epoch_order
from hone.errors import UserError
from hone.model.chat import load_renderer
from hone.model.tokenizer import CHAT_TEMPLATE
from hone.trainer.sft_data import (
    DatasetSource,
    DemonstrationSource,
    Limit,
    hold_out_rows,
    next_batch,
    prepare,
    row_messages,
    tokenize,
    validation_set,
)
from hone.types import Example


@pytest.fixture(scope="module")
def renderer(tiny_model_dir):
    return load_renderer(str(tiny_model_dir))


def table(rows: list[dict]) -> Rows:
    return Rows(rows, lambda i: f"data.jsonl, line {i + 1}")


def pair(i: int, length: int = 5) -> dict:
    return {"prompt": f"say {i:02d}", "completion": f"{i:02d}" + "x" * (length - 2)}


def text(renderer, sequence, mask: bool) -> str:
    """The tokens that carry loss (or don't), with special tokens kept."""
    return renderer.tokenizer.decode(sequence.token_ids[sequence.loss_mask == mask].tolist(), skip_special_tokens=False)


def source_of(rows, renderer, seed=0, **data):
    config = SFTDataConfig(path="data.jsonl", **data)
    return DatasetSource(rows, renderer, Limit(config, max_positions=1024), seed), config


# ---- loss mask ------------------------------------------------------------------------------------------------------


def test_loss_is_on_the_completion_and_its_end_of_turn_token(renderer):
    messages, start = row_messages({"prompt": "hi", "completion": "ho"}, "row 0")
    sequence = tokenize(renderer, messages, start, "row 0")
    assert sequence.token_ids.tolist() == renderer.prompt_ids(messages[:1]) + renderer.completion_ids(
        messages[:1], "ho"
    )
    assert text(renderer, sequence, True) == "ho<|im_end|>"
    assert text(renderer, sequence, False).endswith("assistant\n")


def test_a_multi_turn_conversation_has_loss_on_every_assistant_message(renderer):
    said = [user("one"), assistant("1"), user("two"), assistant("22"), user("not answered")]
    messages = [{"role": "system", "content": "be brief"}, *said]
    sequence = tokenize(renderer, *row_messages({"messages": messages}, "row 0"), "row 0")
    assert text(renderer, sequence, True) == "1<|im_end|>22<|im_end|>"
    whole = renderer.tokenizer.decode(sequence.token_ids.tolist(), skip_special_tokens=False)
    assert "be brief" in whole and "two" in whole and "not answered" not in whole


def test_a_conversation_with_tool_calls_has_loss_on_the_calls_and_the_answer(renderer):
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "name": "add", "tool_call_id": "1", "content": "2"},
        {"role": "assistant", "content": "It is 2."},
    ]
    sequence = tokenize(renderer, messages, 1, "row 0", tools)
    assert text(renderer, sequence, True) == (
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>It is 2.<|im_end|>'
    )
    assert sequence.token_ids.tolist() == [
        *renderer.prompt_ids(messages[:3], tools),
        *renderer.completion_ids(messages[:3], "It is 2.", tools),
    ]
    mute = load_renderer("hone/tiny", CHAT_TEMPLATE.replace("message['tool_calls'] or []", "[]"))
    with pytest.raises(UserError, match="row 0: the chat template does not write the assistant's tool calls"):
        tokenize(mute, messages, 1, "row 0", tools)


REASONING = CHAT_TEMPLATE.replace(
    "(message['content'] or '')",
    "('<think>\\n' + message['reasoning_content'] + '\\n</think>\\n\\n' if message['reasoning_content'] else '')"
    " + (message['content'] or '')",
)
FORGETFUL = REASONING.replace("if message['reasoning_content']", "if message['reasoning_content'] and loop.last")


def assistant(content: str, **more) -> dict:
    return {"role": "assistant", "content": content, **more}


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def test_a_thought_is_learned_as_the_template_writes_it():
    renderer = load_renderer("hone/tiny", REASONING)
    row = [user("2+2?"), assistant("4", reasoning_content="two and two"), user("More"), assistant("5")]
    sequence = tokenize(renderer, *row_messages({"messages": row}, "row 1"), "row 1")
    assert text(renderer, sequence, True) == "<think>\ntwo and two\n</think>\n\n4<|im_end|>5<|im_end|>"


@pytest.mark.parametrize(
    ("template", "key", "thought"),
    [
        (CHAT_TEMPLATE, "reasoning_content", "hm"),
        (REASONING, "thinking", "hm"),
        (REASONING, "reasoning", "4"),  # which the answer holds
        (REASONING, "thinking", ["hm"]),
    ],
)
def test_a_thought_that_the_template_does_not_write_is_refused(template, key, thought):
    renderer = load_renderer("hone/tiny", template)
    for row in (
        [user("2+2?"), assistant("4", **{key: thought})],
        [user("2+2?"), assistant("4", weight=0, **{key: thought}), user("More"), assistant("5")],
    ):
        with pytest.raises(UserError, match=f"row 1: the chat template does not write `{key}`"):
            tokenize(renderer, row, 0, "row 1")


def test_a_template_may_drop_thoughts_of_earlier_turns_that_are_not_learned():
    renderer = load_renderer("hone/tiny", FORGETFUL)
    earlier, last = assistant("4", reasoning_content="hm"), assistant("5", reasoning_content="so")
    row = [user("2+2?"), earlier, user("More"), last]
    sequence = tokenize(renderer, row, 2, "row 1")
    assert text(renderer, sequence, True) == "<think>\nso\n</think>\n\n5<|im_end|>"
    assert text(renderer, sequence, False).count("<think>") == 0
    assert np.array_equal(
        tokenize(renderer, [row[0], earlier | {"weight": 0}, *row[2:]], 0, "").token_ids, sequence.token_ids
    )
    with pytest.raises(UserError, match=r'row 1: the chat template rewrites .* "weight": 0'):
        tokenize(renderer, row, 0, "row 1")


def test_a_message_of_weight_0_carries_no_loss(renderer):
    row = [
        *(user("a"), assistant("WRONG", weight=0)),
        *(user("b"), assistant("right", weight=1)),
        *(user("c"), assistant("no", weight=0.0)),
        *(user("d"), assistant("yes")),
        *(user("e"), assistant("no", weight=0)),
    ]
    sequence = tokenize(renderer, *row_messages({"messages": row}, "row 1"), "row 1")
    assert text(renderer, sequence, True) == "right<|im_end|>yes<|im_end|>"
    plain = [{name: part for name, part in message.items() if name != "weight"} for message in row[:8]]
    assert np.array_equal(sequence.token_ids, tokenize(renderer, plain, 0, "row 1").token_ids)
    with pytest.raises(UserError, match="row 1 has no assistant message to learn from"):
        tokenize(renderer, row[:2], 0, "row 1")
    with pytest.raises(UserError, match=r"row 1: the weight of message 1 is 0\.5; it must be 0 \(no loss\) or 1"):
        tokenize(renderer, [user("a"), assistant("b", weight=0.5)], 0, "row 1")


# ---- bad rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a", "answer": "b"}, r"data.jsonl, line 1 has no column 'completion' \(columns: prompt, answer\)"),
        ({"text": "a"}, "no column 'prompt' or 'completion'"),
        ({"messages": "a"}, "column `messages` must be a list of messages"),
        ({"messages": [{"role": "user"}]}, "column `messages` must be a list of messages"),
        ({"messages": [{"role": "user", "content": "a"}]}, "no assistant message to learn from"),
        ({"prompt": 3, "completion": "b"}, "column `prompt` must be a string or a list of messages"),
        ({"prompt": "a", "completion": [{"role": "assistant", "content": None}]}, "must be plain text"),
    ],
)
def test_a_row_that_cannot_be_learned_from_is_named(renderer, row, problem):
    source, config = source_of(table([row]), renderer, batch_size=1)
    with pytest.raises(UserError, match=problem):
        next_batch(source, 0, 0, config)


def test_an_example_longer_than_the_limit_is_an_error_dropped_or_truncated(renderer):
    rows = table([pair(0), pair(1, length=60), pair(2)])
    full = len(tokenize(renderer, *row_messages(rows[1], ""), ""))

    source, config = source_of(rows, renderer, seq_len=full - 3, batch_size=3, pack=False)
    with pytest.raises(UserError, match=rf"line 2 has {full} tokens, more than data.seq_len = {full - 3}: raise data"):
        prepare(source, config, 1, lambda done: None)

    source, config = source_of(rows, renderer, seq_len=full - 3, batch_size=2, pack=False, too_long="drop")
    sequences, position = next_batch(source, 0, 0, config)
    assert sorted(text(renderer, s, True)[:2] for s in sequences) == ["00", "02"] and position in (2, 3)
    next_batch(source, 1, position, config)
    assert source.limit.dropped == {"data.jsonl, line 2"}

    source, config = source_of(rows, renderer, seq_len=full - 3, batch_size=3, pack=False, too_long="truncate")
    sequences, _ = next_batch(source, 0, 0, config)
    cut = max(sequences, key=len)
    assert len(cut) == full - 3 and text(renderer, cut, True) == rows[1]["completion"][:-2]
    assert source.limit.truncated == {"data.jsonl, line 2"} and not source.limit.dropped


# ---- order, epochs, positions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [True, False])
def test_each_example_comes_once_per_epoch_in_the_order_of_seed_and_epoch(renderer, pack):
    rows = table([pair(i, length=4 + i % 5) for i in range(11)])
    source, config = source_of(rows, renderer, seed=3, seq_len=60, batch_size=2, pack=pack)
    position, stream, steps = 0, [], []
    for step in range(30):
        before = position
        sequences, position = next_batch(source, step, position, config)
        assert position - before == len(sequences)
        steps.append(sorted(text(renderer, s, True)[:2] for s in sequences))
        stream += [epoch_order(11, 3, p // 11)[p % 11] for p in range(before, position)]
    orders = np.concatenate([epoch_order(11, 3, epoch) for epoch in range(position // 11 + 1)])
    assert stream == orders[:position].tolist()
    assert [name for step in steps for name in step] != sorted(name for step in steps for name in step)
    taken = 0
    for step in steps:
        assert step == sorted(f"{i:02d}" for i in orders[taken : taken + len(step)])
        taken += len(step)
    assert not np.array_equal(epoch_order(11, 3, 0), epoch_order(11, 3, 1))


# ---- demonstrations -------------------------------------------------------------------------------------------------


class Echo:
    """An environment whose demonstrations are random digits."""

    id, tool_schemas = "echo", None

    def __init__(self, n=5):
        self.n = n

    def split(self, name):
        return [Example([{"role": "user", "content": f"{name} {i}"}]) for i in range(self.n)]

    def demonstrate(self, example, rng):
        return "".join(str(digit) for digit in rng.integers(0, 10, 12))


def test_demonstrations_are_fresh_each_time_and_repeatable(renderer):
    config = SFTDataConfig(env={"id": "echo"}, batch_size=5, pack=False)

    def texts(seed, *steps):
        source = DemonstrationSource(Echo(), renderer, Limit(config, 1024), seed=seed)
        made = [next_batch(source, step, 5 * step, config)[0] for step in steps]
        assert all(len({text(renderer, s, False) for s in batch}) == 5 for batch in made)
        return [text(renderer, s, True) for batch in made for s in batch]

    once = texts(1, 0, 1)
    assert len(set(once)) == 10 and texts(1, 1) == once[5:] and not set(texts(2, 1)) & set(once)


# ---- validation split -----------------------------------------------------------------------------------------------


def test_the_validation_split_is_seeded_and_disjoint_in_content(renderer):
    rows = table([pair(i % 30) for i in range(60)])
    train, held_out = hold_out_rows(rows, 0.2, seed=0)
    assert len(train) + len(held_out) == 60 and len(held_out) == 2 * 6
    contents = {row["prompt"] for row in train}, {row["prompt"] for row in held_out}
    assert not contents[0] & contents[1] and len(contents[0] | contents[1]) == 30
    assert [row["prompt"] for row in hold_out_rows(rows, 0.2, seed=0)[1]] == [row["prompt"] for row in held_out]
    assert {row["prompt"] for row in hold_out_rows(rows, 0.2, seed=1)[1]} != contents[1]
    assert held_out.where(0) == rows.where([row["prompt"] for row in rows].index(held_out[0]["prompt"]))

    sequences = validation_set(held_out, renderer, Limit(SFTDataConfig(path="data.jsonl"), 1024), max_examples=4)
    assert [text(renderer, s, True)[:2] for s in sequences] == [held_out[i]["completion"][:2] for i in range(4)]
