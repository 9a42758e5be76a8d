"""The texts of tokens, by a run's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hone.errors import UserError
from hone.runs.reader import Run
from hone.runs.view import CHECKPOINTS

FILE = "tokenizer.json"


class Piece(NamedTuple):
    """The text of the tokens `start` to `start + count - 1` of a list: one token, or several that form a character."""

    text: str
    start: int
    count: int
    special: bool = False


class Vocabulary:
    """The tokens of a tokenizer.json. Raises UserError if the file can't be read."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception
            raise UserError(f"{path} cannot be read ({error})") from None
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = {i for i, token in added.items() if token.special}

    def pieces(self, ids: Sequence[int]) -> list[Piece]:
        """Return the texts of token ids: U+FFFD for bytes that are not UTF-8, `<id 99>` for an unknown id."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        made: list[Piece] = []
        start = 0
        for i, token in enumerate(ids):
            known = token >= 0 and self._tokenizer.id_to_token(token) is not None
            text = stream.step(self._tokenizer, token) if known else f"<id {token}>"
            if text is None and i == len(ids) - 1:
                text = self._tokenizer.decode(ids[start:], skip_special_tokens=False)
            if text is not None:
                made.append(Piece(text, start, i + 1 - start, start == i and token in self._special))
                start = i + 1
        return made


@lru_cache(maxsize=2)
def _load(path: Path, changed: int) -> Vocabulary:
    return Vocabulary(path)


def load(path: Path) -> Vocabulary:
    return _load(path, path.stat().st_mtime_ns)


def find(run: Run) -> tuple[Vocabulary | None, str]:
    """Return the vocabulary of the newest weights or checkpoint, or of the model, and ""; or None and the reason."""
    why = "tokens are not coloured: there is no tokenizer, as weights, checkpoints and the model are not here"
    for path in _places(run):
        if path.is_file():
            try:
                return load(path), ""
            except UserError as error:
                why = str(error)
    return None, why


def _places(run: Run) -> list[Path]:
    """Return possible paths of a run's tokenizer, the best first; fetches nothing from the hub."""
    folders = [*list(run.weights().values())[-1:], *reversed(run.folders(CHECKPOINTS).values())]
    try:
        model = run.config.get("model", {})
    except (UserError, OSError):
        model = ""
    name = model.get("name") if isinstance(model, dict) else model
    if not isinstance(name, str) or not name:
        return [folder / FILE for folder in folders]
    places = [folder / FILE for folder in (*folders, Path(name), run.path.parent / name)]
    if name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            found = try_to_load_from_cache(name, FILE)
        except (HFValidationError, OSError):
            found = None
        places += [Path(found)] if isinstance(found, str) else []
    return places
