"""The settings that a run takes from the machine: threads, device, kernels, memory. Decided once, then recorded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from hone.config.base import changed, dotted, lookup, value_of, walk
from hone.config.rl import RLConfig, TrainerConfig
from hone.config.sft import SFTConfig
from hone.errors import UserError
from hone.hardware import CORES, SHARES_GPU, ram, share_of_cores
from hone.inference.memory import GIB, KV_GIB
from hone.loops.memory import fitted, needed, server_bytes, with_precision
from hone.model import fusion
from hone.model.config import DecoderConfig
from hone.model.decoder import Decoder
from hone.runs.display import say
from hone.runs.files import RESTORE
from hone.runs.settings import flat
from hone.runs.view import CONFIG, read_toml, run_info
from hone.trainer import heap
from hone.trainer.memory import host_bytes, longest, trainer_of
from hone.trainer.parallel import ALONE, Ranks

SMALL_MODEL = 10_000_000
"""With fewer parameters than this, a second thread slows training, on a busy machine by much."""


def device_of(name: str) -> str:
    """Return a device's name: `auto` is CUDA if there is one, else the CPU. Raises UserError if it is missing here."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"model.device = {name!r} is no device that hone runs on: use auto, cpu, cuda or cuda:1")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"model.device = {name!r}, but torch finds no CUDA device here: use auto or cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"model.device = {name!r}, but there are {torch.cuda.device_count()} CUDA devices, counted from cuda:0"
        )
    return name


Config = TypeVar("Config", bound=RLConfig | SFTConfig)


@dataclass(frozen=True)
class Machine:
    """The facts that decide unset settings: the model, the device that trains it, and the ranks.

    `turns` is the maximum number of turns of a conversation. `trainer` is None or, if the trainer is in another
    process, the settings and threads that it chose by its device's memory.
    """

    model: DecoderConfig
    device: str
    ranks: Ranks = ALONE
    turns: int = 1
    trainer: tuple[TrainerConfig, int] | None = None


def resolve(config: Config, machine: Machine) -> Config:
    """Return the config with a value for each setting that is left to the machine. The run keeps these values.

    A resumed run keeps its settings, even if an older hone left some unset. Warns if memory is too small for a step.
    """
    model, device, ranks = machine.model, machine.device, machine.ranks
    if machine.trainer is not None:
        config = changed(config, {"trainer": machine.trainer[0]})
    if trainer_of(config).optim.type == "muon" and model.implementation != "hone":
        raise UserError(
            f"optim.type = muon needs hone's own decoder, but {model.family} is computed by "
            "transformers' layers: set it to adamw"
        )
    kind = torch.device(device).type
    begun = config_of_begun(config)
    if begun is not None:
        stored, optim = flat(read_toml(begun)), trainer_of(config).optim
        section = "trainer.optim." if isinstance(config, RLConfig) else "optim."
        names = [] if "precision" in config.model_fields_set else ["precision"]
        names += [section + name for name in ("state", "offload") if name not in optim.model_fields_set]
        config = changed(config, {name: stored[name] for name in names if name in stored})
        config = _filled(_as_begun(config, begun), {"deterministic": kind == "cpu"})
    else:
        threads = machine.trainer[1] if machine.trainer else default_threads(model.parameters, ranks)
        values: dict[str, Any] = {"threads": threads, "deterministic": kind == "cpu"}
        if isinstance(config, RLConfig):
            exact = config.deterministic or config.inference.batch_invariant
            values["orchestrator.max_async_level"] = int(config.mode == "split" and kind == "cuda" and not exact)
        config = _filled(with_precision(config, kind), values)
    if machine.trainer is not None:
        return config
    room = free_memory(device) // (ranks.local_world if kind == "cpu" else 1)
    # What is free beside a server depends on how far it has come.
    if isinstance(config, RLConfig) and kind == "cuda" and os.environ.get(SHARES_GPU):
        room = torch.cuda.mem_get_info(device)[1] - server_bytes(config, model)
    work = (*longest(config, machine.turns), machine.turns, ranks.world)
    if begun is None:
        config, saving = fitted(config, model, kind, room, *work, here=True)
        if saving and config.display != "none" and ranks.first:
            say(saving)
    if config.display != "none" and ranks.first:
        _warn(config, model, device, room, needed("training", config, model, kind, *work))
    return config


def config_of_begun(config: RLConfig | SFTConfig) -> Path | None:
    """Return the config.toml of the run to resume, or None if there is none."""
    source = config.resume and (config.resume.dir or config.output_dir)
    if source is None or run_info(source) is None or not (source / CONFIG).exists():
        return None
    return source / CONFIG


def _as_begun(config: Config, file: Path) -> Config:
    config = _filled(config, flat(read_toml(file)))
    try:
        values = json.dumps(config.model_dump(warnings=False), default=str)
        type(config).model_validate_json(values, strict=True)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            name = ".".join(map(str, one["loc"]))
            if (key := lookup(type(config), tuple(name.split(".")))) and key.meta.from_machine:
                why = f"{name} = {one['input']!r}: {one['msg']}"
                raise UserError(f"{file} is damaged ({why}): {RESTORE}") from None
    return config


def _warn(config: RLConfig | SFTConfig, model: DecoderConfig, device: str, room: int, step: int) -> None:
    section, on_gpu = "trainer." if isinstance(config, RLConfig) else "", torch.device(device).type == "cuda"
    optim, lora, free = trainer_of(config).optim, config.model.lora, ram()[1]
    host = host_bytes(model, optim, lora) if on_gpu else 0
    if step > room:
        ways = ["precision = bf16"] if config.precision != "bf16" or not on_gpu else []
        ways += ["model.lora.rank = 16"] if on_gpu and optim.type == "adamw" and lora is None else []
        leaner = f"lower {section or 'data.'}micro_batch_tokens" + f", or set {' or '.join(ways)}" * bool(ways)
        text = f"a step takes about {step / GIB:.1f} GiB, and {room / GIB:.1f} GiB are free on {device}: {leaner}"
    elif host > free:
        text = (
            f"{section}optim.offload takes {host / GIB:.1f} GiB of the host's memory, but {free / GIB:.1f} GiB "
            f"are free: set {section}optim.state = 8bit instead, or train a smaller model"
        )
    else:
        return
    say(f"Warning: {text}")


def _filled(config: Config, values: Mapping[str, Any]) -> Config:
    decided = [dotted(key.path) for key in walk(type(config)) if key.meta.from_machine]
    names = [name for name in decided if name in values and value_of(config, name) is None]
    return changed(config, {name: values[name] for name in names})


def free_memory(device: str) -> int:
    """Return the bytes that this process may still take: free memory, and memory that it reserved, but doesn't use."""
    if torch.device(device).type == "cpu":
        return ram()[1]
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def serving_kv_gib(device: str) -> float:
    """Return GiB for the KV cache if nothing trains; on a GPU half the free memory, because copies need room."""
    if torch.device(device).type == "cpu":
        return KV_GIB
    return max(1, free_memory(device) // 2 // 2**20) * 2**20 / GIB


def configure(
    threads: int | None,
    parameters: int,
    *,
    deterministic: bool = True,
    ranks: Ranks = ALONE,
    compiled: bool = False,
    device: str | torch.device = "cpu",
) -> int:
    """Set CPU threads, deterministic kernels and compilation for `device`; return the number of threads."""
    heap.tune(ranks.alone)
    if compiled:
        fusion.check_compiler(device)
    fusion.set_compiled(compiled)
    count = threads or default_threads(parameters, ranks)
    torch.set_num_threads(count)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # where neither `hone` nor `hone.rl` has begun it
        torch.use_deterministic_algorithms(True)
        # Writing NaN into every fresh tensor is for finding reads of unset memory; it costs 5 % of a step.
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
    return count


def configure_run(
    config: RLConfig | SFTConfig, model: Decoder, ranks: Ranks = ALONE, threads: int | None = None
) -> int:
    how: dict[str, Any] = {"deterministic": bool(config.deterministic), "compiled": config.model.compile}
    return configure(threads or config.threads, model.num_parameters, **how, ranks=ranks, device=model.device)


def default_threads(parameters: int, ranks: Ranks = ALONE) -> int:
    """Return the threads of a process: 1 for a small model, else a rank's equal share of the usable cores."""
    cores = int(os.environ.get(CORES) or share_of_cores(1))  # a share of them, where a run's roles share the machine
    return 1 if parameters < SMALL_MODEL else max(1, cores // ranks.local_world)


@contextmanager
def restored_settings() -> Iterator[None]:
    """At the block's end, restore the threads and kernels that `configure` has changed."""
    threads, pinned = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    compiled = fusion.is_compiled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        fusion.set_compiled(compiled)
        torch.set_num_threads(threads)
        now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if now != (pinned, warn_only):  # the call imports much, which Ctrl-C may have left half imported
            torch.use_deterministic_algorithms(pinned, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = filled  # pyright: ignore[reportAttributeAccessIssue]
