"""The tiny tokenizer: any text survives, and transformers agrees on every id."""

from __future__ import annotations

import random
from pathlib import Path

from hone.model.tokenizer import ROLES, TAGS, build_tiny_tokenizer, save_tokenizer


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
