"""What the ids of tokens stand for, as text.

The bytes of each token are known here, because the text of a token alone often is none: a character outside of ASCII is
several tokens of one byte each. `tokenizers` tells a token's spelling and the decoder of its family; its own `decode`
gives the text of a list, not what each token gives to it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hone.errors import UserError
from hone.runs.checkpoint import step_of
from hone.runs.reader import Run

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise UserError(f"{path} cannot be read ({error})") from None
        decoder: Any = self._tokenizer.decoder
        self._kind = _kind(json.loads(decoder.__getstate__()) if decoder is not None else {})
        self._added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        self.special = {i for i, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._known: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}

    def bytes_of(self, token: int) -> bytes:
        """What a token adds to the text, as UTF-8; of an id that the tokenizer lacks, `<id 99>`."""
        if token not in self._known:
            self._known[token] = self._bytes_of(token)
        return self._known[token]

    def _bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode("utf-8", "replace")
        spelling = self._tokenizer.id_to_token(token) if token >= 0 else None
        if spelling is None:
            return f"<id {token}>".encode()
        if self._kind == "bytes":
            table = _byte_table()
            if all(c in table for c in spelling):
                return bytes(table[c] for c in spelling)
        if self._kind == "metaspace":
            if found := _BYTE.fullmatch(spelling):
                return bytes([int(found[1], 16)])
            spelling = spelling.replace("▁", " ")
        if self._kind == "wordpiece":
            spelling = spelling[2:] if spelling.startswith("##") else f" {spelling}"
        return spelling.encode("utf-8", "replace")

    def _text_of(self, token: int) -> str | None:
        """The text of a token that is whole characters."""
        if token not in self._texts:
            try:
                self._texts[token] = self.bytes_of(token).decode()
            except UnicodeDecodeError:
                self._texts[token] = None
        return self._texts[token]

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """The texts of a list of ids, end to end. Bytes that are no UTF-8 are shown as U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        made: list[Piece] = []
        text, start = "", 0
        for i, token in enumerate(ids):
            alone = self._text_of(token) if start == i else None
            if alone is not None:
                made.append(Piece(alone, i, 1, token in self.special))
                start = i + 1
                continue
            text += decoder.decode(self.bytes_of(token), i == len(ids) - 1)
            if not decoder.getstate()[0]:
                made.append(Piece(text, start, i + 1 - start))
                text, start = "", i + 1
        return made


@lru_cache(maxsize=1)
def _byte_table() -> dict[str, int]:
    """The byte that each character of byte-level BPE stands for (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


def _kind(decoder: dict[str, Any]) -> str:
    """How spellings become text, by the decoder of the tokenizer: its own, or one of a sequence."""
    types = {part.get("type") for part in (decoder, *decoder.get("decoders", ()))}
    contents = [part.get("pattern", {}).get("String") for part in decoder.get("decoders", ()) if "pattern" in part]
    if "ByteLevel" in types:
        return "bytes"
    if "WordPiece" in types:
        return "wordpiece"
    return "metaspace" if types & {"Metaspace", "ByteFallback"} or "▁" in contents else "plain"


@lru_cache(maxsize=2)
def _load(path: Path, changed: int) -> Vocabulary:
    return Vocabulary(path)


def load(path: Path) -> Vocabulary:
    """The vocabulary of a tokenizer.json; the last two are kept."""
    try:
        return _load(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None


def of_run(run: Run) -> tuple[Vocabulary | None, str]:
    """The run's vocabulary, from its newest weights or checkpoint or its model's folder; None, and a sentence why."""
    places = _places(run)
    why = ""
    for path in places:
        if path.is_file():
            try:
                return load(path), ""
            except UserError as error:
                why = str(error)
    return None, why or (
        "tokens are not coloured, for there is no tokenizer: neither weights nor a checkpoint of the run is here, nor "
        "its model"
    )


def _places(run: Run) -> list[Path]:
    """Where the tokenizer of a run may lie, the best first."""
    exports = list(reversed(run.weights().values()))
    folders = [path for path in (run.path / "checkpoints").glob("step_*") if step_of(path) is not None]
    checkpoints = sorted(folders, key=lambda path: step_of(path) or 0, reverse=True)
    places = [path / FILE for path in (*exports[:1], *checkpoints[:1])]
    try:
        model = run.config.get("model", {})
    except (UserError, OSError):
        return places
    name = model.get("name") if isinstance(model, dict) else model
    if isinstance(name, str) and name:
        folder = Path(name)
        places += [(base / folder) / FILE for base in (Path(), run.path.parent)]
        if not folder.is_absolute() and name.count("/") == 1:
            places += _downloaded(name)
    return places


def _downloaded(name: str) -> list[Path]:
    """The tokenizer of a model of the hub, if it was downloaded before: nothing is fetched."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, FILE)
    except (HFValidationError, OSError):
        return []
    return [Path(found)] if isinstance(found, str) else []
