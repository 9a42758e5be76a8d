"""What the ids of tokens stand for, as text.

The bytes of each token are known here, because the text of a token alone often is none: a character outside of ASCII is
several tokens of one byte each. `tokenizers` has a token's spelling and the decoder of its family; its own `decode`
gives the text of a list, not what each token gives to it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hone.errors import UserError
from hone.runs.reader import Run

FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Piece(NamedTuple):
    """A text that the tokens `start` to `start + count - 1` of a list give: one token, or several of one character."""

    text: str
    start: int
    count: int
    special: bool = False


class Vocabulary:
    """The tokens of a tokenizer.json. UserError if it can't be read."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise UserError(f"{path} cannot be read ({error})") from None
        decoder: Any = self._tokenizer.decoder
        self._kind = _kind(json.loads(decoder.__getstate__()) if decoder is not None else {})
        added = self._tokenizer.get_added_tokens_decoder()
        self._bytes = {i: token.content.encode("utf-8", "replace") for i, token in added.items()}
        self._special = {i for i, token in added.items() if token.special}

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to the text, as UTF-8; of an id that the tokenizer lacks, `<id 99>`."""
        if token not in self._bytes:
            spelling = self._tokenizer.id_to_token(token) if token >= 0 else None
            self._bytes[token] = f"<id {token}>".encode() if spelling is None else self._spelled(spelling)
        return self._bytes[token]

    def _spelled(self, spelling: str) -> bytes:
        if self._kind == "bytes" and all(c in _byte_table() for c in spelling):
            return bytes(_byte_table()[c] for c in spelling)
        if self._kind == "metaspace":
            if found := _BYTE.fullmatch(spelling):
                return bytes([int(found[1], 16)])
            spelling = spelling.replace("▁", " ")
        if self._kind == "wordpiece":
            spelling = spelling[2:] if spelling.startswith("##") else f" {spelling}"
        return spelling.encode("utf-8", "replace")

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return the texts of a list of ids, end to end. Bytes that are no UTF-8 are shown as U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        made: list[Piece] = []
        text, start = "", 0
        for i, token in enumerate(ids):
            text += decoder.decode(self.bytes_of(token), i == len(ids) - 1)
            if not decoder.getstate()[0]:
                made.append(Piece(text, start, i + 1 - start, start == i and token in self._special))
                text, start = "", i + 1
        return made


@cache
def _byte_table() -> dict[str, int]:
    """Return the byte that each character of byte-level BPE stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _kind(decoder: dict[str, Any]) -> str:
    """Return how spellings become text, by the decoder of the tokenizer: its own, or one of a sequence."""
    parts = (decoder, *decoder.get("decoders", ()))
    types = {part.get("type") for part in parts}
    if "ByteLevel" in types:
        return "bytes"
    if "WordPiece" in types:
        return "wordpiece"
    replaces = any(part.get("pattern", {}).get("String") == "▁" for part in parts)
    return "metaspace" if types & {"Metaspace", "ByteFallback"} or replaces else "plain"


@lru_cache(maxsize=2)
def _load(path: Path, changed: int) -> Vocabulary:
    return Vocabulary(path)


def load(path: Path) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json; the last two are kept."""
    return _load(path, path.stat().st_mtime_ns)


def find(run: Run) -> tuple[Vocabulary | None, str]:
    """Return the run's vocabulary, from its newest weights or checkpoint or its model; or None, and a sentence why."""
    why = "tokens are not coloured: there is no tokenizer, for neither weights, a checkpoint nor the model is here"
    for path in _places(run):
        if path.is_file():
            try:
                return load(path), ""
            except UserError as error:
                why = str(error)
    return None, why


def _places(run: Run) -> list[Path]:
    """Return where the tokenizer of a run may lie, the best first. Nothing is fetched from the hub."""
    folders = [*list(run.weights().values())[-1:], *sorted((run.path / "checkpoints").glob("step_*"))[::-1]]
    try:
        model = run.config.get("model", {})
    except (UserError, OSError):
        model = ""
    name = model.get("name") if isinstance(model, dict) else model
    if isinstance(name, str) and name:
        folders += [Path(name), run.path.parent / name]
    places = [folder / FILE for folder in folders]
    if isinstance(name, str) and name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(name, FILE)
        except (HFValidationError, OSError):
            found = None
        places += [Path(found)] if isinstance(found, str) else []
    return places
