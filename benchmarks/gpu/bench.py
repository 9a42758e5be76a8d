"""What the stages of `run.py` share: their figures, which are written as they come, the clock, and the chip's rates."""

from __future__ import annotations

import gc
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
from recording import cpu_model

import hone
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.model.hf import save_model
from hone.model.shape import KNOWN
from hone.model.tokenizer import save_tokenizer

PACKAGES = ("torch", "triton", "liger-kernel", "vllm", "transformers", "numpy", "safetensors", "tokenizers")
TINY = {"num_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
PEAKS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 5090": 209e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""FLOP/s of dense bf16 products summed in fp32, from data sheets, by a part of the GPU's name: the first that fits."""


class Bench:
    """The figures of a stage, in `file`: whole at any time. The stage is ended at `end` of `time.monotonic()`."""

    def __init__(self, device: str, tiny: bool, work: Path, file: Path, end: float) -> None:
        self.device, self.tiny, self.work, self.file = torch.device(device), tiny, work, file
        self.end = end
        self.status, self.peak = "ok", 0
        self.figures: dict[str, Any] = {}
        if tiny:  # a toy's kernels are not worth a compiler's time
            torch.compiler.set_stance("force_eager")
        self.has_device = self.device.type == "cpu" or torch.cuda.is_available()
        if self.has_device:
            self._save()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def part(self, names: tuple[str, ...], measure: Callable[[dict[str, Any]], object], needs: float = 4) -> None:
        """Have `measure` fill the figures of these names. What it raises is recorded, and the stage goes on.

        It is left out if fewer than `needs` seconds are left.
        """
        found = self.figures
        for name in names:
            found = found.setdefault(name, {})
        if self.left < needs and not self.tiny:
            found["left out"] = "no time was left"
            self.status = "out of time" if self.status == "ok" else self.status
            return
        try:
            self.reset_peak()
            measure(found)
        except Exception:
            lines = traceback.format_exc()
            print(f"{', '.join(names)}: {lines}", flush=True)
            found["error"] = lines.splitlines()[-1]
            self.status = "failed"
        self.note_peak(found)
        self._save()
        self.release()

    def release(self) -> None:
        """Give back the memory of what is not used any more; a toy's is not worth the time."""
        if not self.tiny:
            gc.collect()
            torch.cuda.empty_cache()

    def reset_peak(self) -> None:
        """Begin to look for the peak of memory."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def note_peak(self, found: dict[str, Any]) -> None:
        """Note the most bytes of tensors since then, and of the blocks that torch reserved for them."""
        if self.device.type == "cuda":
            found["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
            found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
            self.peak = max(self.peak, found["peak_memory_bytes"])

    def finish(self) -> None:
        """Write how the stage ended."""
        self._save(status=self.status)

    def _save(self, **more: Any) -> None:
        on_gpu = self.device.type == "cuda"
        properties = torch.cuda.get_device_properties(0) if on_gpu else None
        machine = {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0))}
        if properties:
            machine |= {
                "gpu_memory_bytes": properties.total_memory,
                "multiprocessors": properties.multi_processor_count,
            }
        record = {
            "gpu": torch.cuda.get_device_name() if on_gpu else "cpu",
            "machine": machine,
            "versions": {
                "hone": hone.__version__,
                "python": platform.python_version(),
                "cuda": torch.version.cuda,
                "cudnn": torch.backends.cudnn.version(),
                **{name: version_of(name) for name in PACKAGES},
            },
            "peak_memory_bytes": self.peak,
            "figures": self.figures,
        }
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(record | more))
        new.replace(self.file)

    def timed(self, call: Callable[[], object]) -> float:
        """Return the seconds of a call, with all that it told the GPU to do."""
        self.synchronize()
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start

    def rounds(self, call: Callable[[], object], most: int = 3, seconds: float = 5) -> list[float]:
        """Return the seconds of so many calls at most, of which none begins after `seconds`."""
        most = 1 if self.tiny else most
        end, times = time.perf_counter() + seconds, []
        while len(times) < most and (not times or time.perf_counter() < end):
            times.append(self.timed(call))
        return times

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def profile(self, call: Callable[[], object], rows: int = 15) -> dict[str, Any]:
        """Return the kernels of a call that take the most time, and torch's kinds of attention that ran in it."""
        call()
        with torch.profiler.profile(activities=torch.profiler.supported_activities()) as profiler:
            call()
            self.synchronize()
        events = profiler.key_averages()
        kernels = sorted((e for e in events if e.self_device_time_total), key=lambda e: -e.self_device_time_total)
        total = sum(event.self_device_time_total for event in kernels)
        table = [
            {"name": e.key[:120], "calls": e.count, "share": e.self_device_time_total / total} for e in kernels[:rows]
        ]
        attention = {e.key: e.count for e in events if "::" in e.key and ("attention" in e.key or "varlen" in e.key)}
        return {"milliseconds": total / 1e3, "kernels": table, "attention": attention}

    def copy_gigabytes(self) -> float:
        """Return the GB/s of copying within the device's memory, reads and writes counted."""
        source = torch.ones((1 if self.tiny else 1024) * 2**20, device=self.device)
        target = torch.empty_like(source)
        target.copy_(source)
        return 2 * 4 * source.numel() / median(self.timed(lambda: target.copy_(source)) for _ in range(10)) / 1e9

    def gemm_flops(self) -> float:
        """Return the FLOP/s of a bf16 product of [8192, 8192] matrices of random numbers."""
        size = 64 if self.tiny else 8192
        a, b = (torch.randn(size, size, device=self.device).bfloat16() for _ in range(2))
        for _ in range(3):
            a @ b
        return 2 * size**3 / median(self.timed(lambda: a @ b) for _ in range(10))

    def peak_flops(self) -> float | None:
        """Return the FLOP/s that the data sheet gives the chip; None if it is not in the table."""
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else ""
        return next((flops for part, flops in PEAKS.items() if part in name), None)

    def shape(self, name: str) -> DecoderConfig:
        """Return the shape of a model that is known by this name, or, if tiny, a toy of its family."""
        known = replace(KNOWN[name], eos_token_ids=(2, 0), pad_token_id=0)
        return replace(known, **TINY, vocab_size=512, max_position_embeddings=512) if self.tiny else known

    @torch.no_grad()
    def random_model(self, config: DecoderConfig, precision: str) -> Decoder:
        """Return a decoder with matrices from N(0, 0.02), drawn on the device."""
        with self.device:
            model = Decoder(config, precision)
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=config.initializer_range)
        model.refresh()
        return model

    def model_folder(self, shape: str) -> Path:
        """Return the folder of a model of this shape in bf16, with a tokenizer that has a text for each of its ids."""
        folder, new = self.work / shape, self.work / f"{shape}.new"
        if folder.exists():
            return folder
        shutil.rmtree(new, ignore_errors=True)
        model = self.random_model(self.shape(shape), "bf16")
        save_tokenizer(new)
        tokenizer = json.loads((new / "tokenizer.json").read_text())
        known = tokenizer["model"]["vocab"]
        known |= {f"~{i:x}": i for i in range(len(known), model.config.vocab_size)}
        (new / "tokenizer.json").write_text(json.dumps(tokenizer))
        save_model(model, new)
        return new.rename(folder)


def version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
