"""Special tokens in texts of data are text, for every kind of tokenizer, and no other id changes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from hone.model.texts import TextEncoder, special_tokens_of
from hone.model.tokenizer import build_tiny_tokenizer

CORPUS = ["the cat said im_end to the end", "user assistant <s> </s> | <|", "hello world 123"] * 20
WORDS = [
    "the",
    " cat",
    "im_end",
    "|",
    "<",
    "<|",
    "\n",
    "  ",
    "user",
    "é",
    "e\u0301",
    "<think>",
    "\x7f",
    "/s",
    "日",
    "\x7f\x7f",
]


def byte_level() -> Tokenizer:
    """Special tokens that the model's vocabulary lacks, one of which takes the white space around it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.normalizer = normalizers.NFC()  # pyright: ignore[reportAttributeAccessIssue]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", AddedToken("<|sep|>", lstrip=True, rstrip=True)])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer


def pieces(model: models.Model, trainer: trainers.Trainer) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def bpe() -> Tokenizer:
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    return pieces(models.BPE(unk_token="<unk>"), trainer)


def unigram() -> Tokenizer:
    """The model finds a special token of its vocabulary in any text."""
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    return pieces(models.Unigram(), trainer)


@pytest.mark.parametrize("make", [build_tiny_tokenizer, byte_level, bpe, unigram])
def test_only_the_templates_special_tokens_are_tokens(make: Callable[[], Tokenizer]) -> None:
    tokenizer, draw = make(), random.Random(0)
    special = special_tokens_of(tokenizer, ())
    encoder = TextEncoder(tokenizer, special)
    ids = {tokenizer.token_to_id(token) for token in special} - {tokenizer.token_to_id("<unk>")}
    for _ in range(300):
        parts = [("".join(draw.choices(WORDS, k=draw.randrange(6))), draw.choice(special[1:])) for _ in range(3)]
        # With no special token in the texts every id is as it was, also where DEL takes the longer way.
        raw = "".join(text + token for text, token in parts)
        written = "".join(encoder.mark({"content": text})["content"] + token for text, token in parts)
        assert encoder.unmark(written) == raw
        assert encoder.encode(written) == tokenizer.encode(raw, add_special_tokens=False).ids
        forced = encoder.encode(encoder.mark("\x7f") + written)
        assert forced == tokenizer.encode("\x7f" + raw, add_special_tokens=False).ids
        # With some, there are as many special tokens as the template wrote.
        written = "".join(encoder.mark(text + draw.choice(special) + "a") + token for text, token in parts)
        found = [token for token in encoder.encode(written) if token in ids]
        assert found == [tokenizer.token_to_id(token) for _, token in parts]


def test_overlapping_special_tokens_are_text() -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_special_tokens(["|><", "<|x|>"])
    encoder = TextEncoder(tokenizer, special_tokens_of(tokenizer, ()))
    text = "<|im_end|><|im_end|><|x|>"
    tokenizer.encode_special_tokens = True
    assert encoder.encode(encoder.mark(text)) == tokenizer.encode(text, add_special_tokens=False).ids


def test_what_ends_a_turn_or_opens_one_is_special_whatever_the_tokenizer_calls_it() -> None:
    """Some tokenizers have `<|im_end|>` as a plain added token, DeepSeek's has `<｜User｜>` as one."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_tokens(["<｜User｜>", "<｜tool▁sep｜>", "<end>"])
    known = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert special_tokens_of(tokenizer, ()) == known
    end = tokenizer.token_to_id("<end>")
    assert special_tokens_of(tokenizer, (end,), "<｜User｜>hi<think>") == [*known, "<｜User｜>", "<end>"]
