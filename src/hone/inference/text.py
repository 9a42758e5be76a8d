"""Decodes sampled ids to text while sampling goes on."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

_PARTIAL = "\ufffd"
"""Tokenizers decode bytes that are not a whole character to this."""


class Detokenizer:
    """Decodes a growing list of ids. The returned texts, joined, are the text of all ids.

    The last part is decoded again with new ids, because tokens may decode differently together.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = self._shown = 0

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` add. If the text ends within a character, return "" and wait for more ids."""
        self._ids += ids
        text = self._rest()
        if not text or text.endswith(_PARTIAL):
            return ""
        self._start, self._shown = self._shown, len(self._ids)
        return text

    def finish(self) -> str:
        text = self._rest()
        self._start, self._shown = self._shown, len(self._ids)
        return text

    def _rest(self) -> str:
        return self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._shown])) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


class StopStrings:
    """Ends a growing text before its first stop string. Holds back an end that may be the start of a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """Add `text`; return the text that can no longer be part of a stop string. Returns "" once `found` is set."""
        if self.found is not None:
            return ""
        text = self._held + text
        hits = [(text.find(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if hits:
            at, _, self.found = min(hits)
            self._held = ""
            return text[:at]
        keep = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Return the length of the longest suffix of `text` that is a prefix of `stop`."""
        longest = min(len(text), len(stop) - 1)
        return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Return the text before its first stop string; the whole text if it has no stop string."""
    strings = StopStrings(stops)
    return strings.push(text) + strings.finish()


class StopWatch:
    """Finds stop strings in the text of a growing list of ids."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._text, self._stops = Detokenizer(tokenizer), StopStrings(stops)

    @property
    def found(self) -> str | None:
        return self._stops.found

    def push(self, token: int) -> bool:
        self._stops.push(self._text.push([token]))
        return self.found is not None


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return one token as text. A token that is a part of a character is written as in the vocabulary."""
    text = tokenizer.decode([token], skip_special_tokens=False)
    return (tokenizer.id_to_token(token) or "") if _PARTIAL in text or not text else text
