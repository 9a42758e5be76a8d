"""Texts of data as token ids: a special token in them is text, and one that the chat template writes is a token.

Special tokens are those that steer a conversation: start and end of a turn, begin and end of a text, padding, images.
Tags that a model writes itself (`<think>`, `<tool_call>`) are none of them.

A template gives one string, in which both kinds look the same. So `mark` puts a character into the special tokens in
the texts of messages before the template writes them, and `encode` takes those without it for the template's.
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

T = TypeVar("T")
MARK = "\x7f"
"""Stands behind the first character of each special token in a text of data, and behind each DEL. JSON does not escape
it, and `strip` does not take it for white space.
"""
TURN_TOKEN = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|\[/?[A-Z_]{3,}\]|</?s>|<(?:bos|eos|start_of_turn|end_of_turn)>")
"""A pattern of the tokens by which templates open and end turns."""


def special_tokens_of(tokenizer: Tokenizer, stop_ids: Sequence[int], written: str = "") -> list[str]:
    """Return the added tokens that the tokenizer calls special, those that end a turn, and those that have the form of
    `TURN_TOKEN` in a conversation that the template has `written`: DeepSeek's `<｜User｜>` is not called special.
    """
    turns, added = set(TURN_TOKEN.findall(written)), tokenizer.get_added_tokens_decoder()
    special = [t.content for i, t in added.items() if t.special or i in stop_ids or t.content in turns]
    return [token for token in special if len(token) > 1]


class TextEncoder:
    """Encodes what a template has written. Without `special` tokens, those in a text of data stay tokens."""

    def __init__(self, tokenizer: Tokenizer, special: Sequence[str]) -> None:
        self.tokenizer, self._special = tokenizer, special
        self._patterns: dict[tuple[str, ...], re.Pattern[str]] = {}

    def mark(self, value: T, tokens: tuple[str, ...] = ()) -> T:
        """Return the message or tool with the special tokens in its texts marked, but for `tokens`."""
        if not self._special:
            return value
        pattern = self._pattern(tokens)
        return map_texts(lambda text: pattern.sub(rf"\g<0>{MARK}", text), value)

    def unmark(self, text: str) -> str:
        """Return a marked text as it was."""
        return re.sub(f"{MARK}({MARK}?)", r"\1", text) if self._special else text

    def find_special(self, value: Any, tokens: tuple[str, ...] = ()) -> list[str]:
        """Return the special tokens in the texts of a message or tool, each once, but for `tokens`."""
        found: list[str] = []

        def look(text: str) -> str:
            found.extend(self._whole.findall(text))
            return text

        if self._special:
            map_texts(look, value)
        return [token for token in dict.fromkeys(found) if token not in tokens]

    def encode(self, text: str) -> list[int]:
        """Return the ids of what a template has written: marked special tokens are text, whole ones are tokens."""
        if not self._special or MARK not in text:
            return self._ids(self.tokenizer, text)
        tokenizer, names, ids = self._renamed
        return [ids.get(i, i) for i in self._ids(tokenizer, self.unmark(self._whole.sub(lambda m: names[m[0]], text)))]

    @cached_property
    def _whole(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self._special, key=len, reverse=True))))

    def _pattern(self, tokens: tuple[str, ...]) -> re.Pattern[str]:
        """Return the pattern of what is marked: first characters of special tokens, also of overlapping ones."""
        if tokens not in self._patterns:
            others = "|".join(re.escape(token) for token in self._special if token not in tokens)
            self._patterns[tokens] = re.compile(f"{MARK}|(?={others}).", re.DOTALL) if others else re.compile(MARK)
        return self._patterns[tokens]

    @cached_property
    def _renamed(self) -> tuple[Tokenizer, dict[str, str], dict[int, int]]:
        """Return the tokenizer with names for its special tokens that no text can hold, these names, and the ids that
        its added tokens have in the original.
        """
        # They begin and end as the tokens do: some added tokens are tokens only beside what is no letter.
        key = secrets.token_hex(8)
        names = {token: f"{token[0]}{key}x{i}x{token[-1]}" for i, token in enumerate(self._special)}
        spec = json.loads(self.tokenizer.to_str()) | {"post_processor": None}
        model, added = spec["model"], [token["content"] for token in spec["added_tokens"]]
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
        ids = {renamed.token_to_id(names.get(token, token)): self.tokenizer.token_to_id(token) for token in added}
        return renamed, names, ids

    @staticmethod
    def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
        return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids  # lets other threads run


class SpecialTexts:
    """The texts of data that held special tokens: a count, and where the first one is."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, list[str]]] = {}
        self._reported = False

    def __len__(self) -> int:
        return len(self._found)

    def add(self, key: str, where: str, tokens: list[str]) -> None:
        """Count a text; of texts of the same `key` only the first."""
        self._found.setdefault(key, (where, tokens))

    def __str__(self) -> str:
        where, tokens = next(iter(self._found.values()))
        several, count = ("", "text holds") if len(self) == 1 else ("the first: ", f"{len(self):,} texts hold")
        return (
            f"{count if several else f'1 {count}'} special tokens of the model, encoded as text "
            f"({several}{where}, {' '.join(tokens[:3])}). If they are meant as tokens, set model.special_tokens = true."
        )

    def report(self, event: Callable[..., None], say: Callable[[str], None], step: int) -> None:
        """Record an event and say it, once, if there is any."""
        if self._found and not self._reported:
            self._reported = True
            where, tokens = next(iter(self._found.values()))
            event("special_tokens", step, texts=len(self), first=where, tokens=tokens)
            say(f"Warning: {self}")


def map_texts(change: Callable[[str], str], value: T) -> T:
    """Return the value with each text in it changed, those in lists and the keys and values of dicts included."""
    new: Any = value
    if isinstance(value, str):
        new = change(value)
    elif isinstance(value, dict):
        new = {map_texts(change, key): map_texts(change, item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        new = [map_texts(change, item) for item in value]
    return new


def composed(value: T) -> T:
    """Return the value with its texts in Unicode's composed form (NFC), in which canonically equal texts are equal."""
    return map_texts(lambda text: unicodedata.normalize("NFC", text), value)
