"""Encodes rendered conversations: the chat template's special tokens stay tokens, special tokens in data become text.

Special tokens steer a conversation. Examples are the start and end of a turn, padding, and images. Tags such as
`<think>` and `<tool_call>` are not special, because a model writes such tags itself.

After rendering, special tokens from data and from the template look alike. Therefore `mark` inserts a character into
special tokens in messages before rendering, and `encode` makes tokens only of unmarked special tokens.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

from tokenizers import Tokenizer

from hone.redaction import map_texts
from hone.types import Message

T = TypeVar("T")
MARK = "\x7f"
"""Inserted after the first character of each special token in data, and after each DEL in data. JSON does not escape
this mark, and `strip` does not remove it.
"""
TURN_TOKEN = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|\[/?[A-Z_]{3,}\]|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>")
"""Matches tokens that open or end turns in templates."""


def special_tokens_of(tokenizer: Tokenizer, stop_ids: Sequence[int], written: str = "") -> list[str]:
    """Return a tokenizer's special tokens. An added token without the flag `special` counts if it is in `stop_ids`, or
    if it matches `TURN_TOKEN` in `written`, a rendered conversation (such as DeepSeek's `<｜User｜>`).
    """
    turns, added = set(TURN_TOKEN.findall(written)), tokenizer.get_added_tokens_decoder()
    special = [t.content for i, t in added.items() if t.special or i in stop_ids or t.content in turns]
    return [token for token in special if len(token) > 1]


class TextEncoder:
    """Encodes rendered templates. `special`: the tokens that become text if they come from data."""

    def __init__(self, tokenizer: Tokenizer, special: Sequence[str]) -> None:
        self.tokenizer, self._special = tokenizer, special
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}

    def mark(self, value: T, tokens: tuple[str, ...] = ()) -> T:
        """Return a message or tool with all special tokens except `tokens` marked in its texts."""
        if not self._special:
            return value
        pattern = self._pattern(tokens)
        return map_texts(lambda text: pattern.sub(rf"\g<0>{MARK}", text), value)

    def unmark(self, text: str) -> str:
        return re.sub(f"{MARK}({MARK}?)", r"\1", text) if self._special else text

    def find_special(self, value: Any, tokens: tuple[str, ...] = ()) -> list[str]:
        """Return the special tokens in the texts of a message or tool: each once, without `tokens`."""
        found: list[str] = []

        def look(text: str) -> str:
            found.extend(self._whole.findall(text))
            return text

        if self._special:
            map_texts(look, value)
        return [token for token in dict.fromkeys(found) if token not in tokens]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a rendered template. Marked special tokens become text, unmarked ones become tokens."""
        if not self._special or MARK not in text:
            return self._ids(self.tokenizer, text)
        tokenizer, names, ids = self._renamed
        return [ids.get(i, i) for i in self._ids(tokenizer, self.unmark(self._whole.sub(lambda m: names[m[0]], text)))]

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))))

    def _pattern(self, tokens: tuple[str, ...]) -> re.Pattern[str]:
        """Return a pattern for the characters to mark: the first of each special token. Tokens may overlap."""
        if tokens not in self._patterns:
            others = "|".join(re.escape(token) for token in self._special if token not in tokens)
            self._patterns[tokens] = re.compile(f"{MARK}|(?={others}).", re.DOTALL) if others else re.compile(MARK)
        return self._patterns[tokens]

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[str, str], dict[int | None, int]]:
        """Return (tokenizer with random names for special tokens, {token: name}, {new id: true id} of added tokens)."""
        # A name begins and ends as its token: added tokens with `single_word` depend on the characters beside them.
        key = secrets.token_hex(8)
        names = {token: f"{token[0]}{key}x{i}x{token[-1]}" for i, token in enumerate(self._special)}
        spec = json.loads(self.tokenizer.to_str()) | {"post_processor": None}
        model = spec["model"]
        for token in spec["added_tokens"]:
            token["content"] = names.get(token["content"], token["content"])
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {names.get(piece, piece): i for piece, i in vocab.items()}
        else:
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocab]
        if model.get("unk_token") in names:
            model["unk_token"] = names[model["unk_token"]]
        if "merges" in model:
            model["merges"] = [m for m in model["merges"] if not names.keys() & {*m, "".join(m)}]
        renamed = Tokenizer.from_str(json.dumps(spec))
        ids = {renamed.token_to_id(token["content"]): token["id"] for token in spec["added_tokens"]}
        return renamed, names, ids

    @staticmethod
    def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids  # lets other threads run


class SpecialTexts:
    """Counts texts from data that contain special tokens, and remembers the first such text."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._first: tuple[str, list[str]] = ("", [])
        self._reported = False

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, where: str, tokens: list[str]) -> None:
        if not self._keys:
            self._first = where, tokens
        self._keys.add(key)

    def __str__(self) -> str:
        where, tokens = self._first
        count = "1 text holds" if len(self) == 1 else f"{len(self):,} texts hold"
        return (
            f"{count} special tokens of the model, encoded as text. The first: {where}, {' '.join(tokens[:3])}. "
            "If they are meant as tokens, set model.special_tokens = true."
        )

    def report(self, event: Callable[..., None], say: Callable[[str], None], step: int) -> None:
        if self._keys and not self._reported:
            self._reported = True
            where, tokens = self._first
            event("special_tokens", step, texts=len(self), first=where, tokens=tokens)
            say(f"Warning: {self}")


def composed(value: T) -> T:
    """Return the value with all texts in Unicode's composed form (NFC), so that canonically equal texts are equal."""
    return map_texts(lambda text: unicodedata.normalize("NFC", text), value)


def same_messages(one: Sequence[Message], other: Sequence[Message]) -> bool:
    """Return True if the messages are the same. Ids of tool calls and the Unicode form of texts may differ."""
    pairs = zip(map(_plain, one), map(_plain, other), strict=True)
    return len(one) == len(other) and all(a == b or composed(a) == composed(b) for a, b in pairs)


def _plain(message: Message) -> tuple[Any, ...]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return message["role"], message.get("content") or "", calls
