"""Removes API keys from everything that hone writes and prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import quote

T = TypeVar("T")
SHORTEST = 6
"""Fewest characters of a value to remove: "none" and "EMPTY" are not keys."""
_names = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"}


def add_key_variable(name: str | None) -> str | None:
    """Make `redact` also remove the value of this environment variable. Returns `name`."""
    if name:
        _names.add(name)
    return name


def redact(text: str) -> str:
    """Return the text with `[NAME]` instead of the value of each variable that holds a key."""
    values = sorted(((os.environ.get(name, "").strip(), name) for name in _names), key=lambda one: -len(one[0]))
    for value, name in values:
        if len(value) < SHORTEST:
            continue
        for form in {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")}:
            text = text.replace(form, f"[{name}]")
    return text


def map_texts(change: Callable[[str], str], value: T) -> T:
    new: Any = value
    if isinstance(value, str):
        new = change(value)
    elif isinstance(value, dict):
        new = {map_texts(change, key): map_texts(change, item) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        new = [map_texts(change, item) for item in value]
    return new
