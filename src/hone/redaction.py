"""Takes API keys out of everything that hone writes and prints."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

SHORTEST = 6
"""Characters that a value must have to be taken out: "none" and "EMPTY" are no keys."""
_names = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"}


def add_key_variable(name: str | None) -> str | None:
    """Have `redact` also take out the value of this environment variable. Returns the name."""
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


def redact_texts(value: Any) -> Any:
    """Return a value of JSON, redacted in its texts: a key such as "123456" also occurs in numbers."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {name: redact_texts(one) for name, one in value.items()}
    return [redact_texts(one) for one in value] if isinstance(value, list | tuple) else value
