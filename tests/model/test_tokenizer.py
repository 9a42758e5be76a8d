"""The tiny tokenizer: any text survives, tags stay visible, role words stand alone, transformers agrees on every id."""

from __future__ import annotations

import random
from pathlib import Path

from hone.model.tokenizer import (
    BYTES,
    ENDOFTEXT_ID,
    IM_END_ID,
    INSTRUCTIONS,
    ROLES,
    SPECIALS,
    TAGS,
    VOCAB_SIZE,
    build_tiny_tokenizer,
    save_tokenizer,
)


def random_texts(count: int) -> list[str]:
    """Unicode of every plane, control characters, and the tokenizer's own tokens in between."""
    rng = random.Random(0)
    pieces = [*TAGS, *ROLES, "username", "<think", "\r\n", "  ", "\t", "\x00", "\u0301", "\u200d", "Ġ", "Ċ", "▁", "��"]
    planes = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    ascii = [chr(code) for code in range(0x20, 0x7F)]
    return ["".join(rng.choice(rng.choice([pieces, planes, ascii])) for _ in range(12)) for _ in range(count)]


def test_any_text_round_trips_and_transformers_agrees(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path)
    ours, theirs = build_tiny_tokenizer(), AutoTokenizer.from_pretrained(tmp_path)
    for text in random_texts(400):
        ids = ours.encode(text, add_special_tokens=False).ids
        assert ours.decode(ids, skip_special_tokens=True) == text
        assert ours.encode(text).ids == ids
        assert theirs.encode(text) == ids
        assert theirs.decode(ids, skip_special_tokens=True) == text


def test_vocabulary() -> None:
    tokenizer = build_tiny_tokenizer()
    assert tokenizer.get_vocab_size(with_added_tokens=True) == VOCAB_SIZE == 3 + 3 + 10 + 1 + 243
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))
    assert [tokenizer.token_to_id(token) for token in (*SPECIALS, *ROLES, *TAGS, *INSTRUCTIONS)] == list(range(17))
    assert (tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")) == (IM_END_ID, ENDOFTEXT_ID)
    assert [tokenizer.encode(chr(c)).ids for c in range(0x20, 0x7F)] == [[17 + i] for i in range(95)]
    assert set(BYTES) == {b for c in range(0x110000) if not 0xD800 <= c < 0xE000 for b in chr(c).encode()}


def test_tags_survive_decoding_and_markers_do_not() -> None:
    tokenizer = build_tiny_tokenizer()
    text = "<|im_start|>assistant\n<think>a</think><reversed_text>b</reversed_text><|im_end|>"
    ids = tokenizer.encode(text).ids
    assert len(ids) == 10
    assert tokenizer.decode(ids) == "assistant\n<think>a</think><reversed_text>b</reversed_text>"
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
