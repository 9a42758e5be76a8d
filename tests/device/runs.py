"""Train, resume, evaluate and serve on the fake GPU and on the CPU; print what came of it as JSON.

    python runs.py FOLDER PRECISION

FOLDER gets the runs. Rewards differ among the completions of a prompt, so that every step of RL makes an update.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from fake_cuda import FakeCuda  # first: it patches torch.cuda, and hone looks there
from fastapi.testclient import TestClient
from safetensors.torch import load_file

from hone.config.eval import EvalConfig
from hone.config.parse import parse
from hone.extensions.server import commands as inference
from hone.extensions.server.config import ServeConfig
from hone.inference.engine import Engine
from hone.loops.evaluating import Evaluation
from hone.loops.machine import restored_settings
from hone.loops.rl import RL
from hone.loops.sft import SFT
from hone.runs import Run
from hone.trainer.step import Trainer

INIT = {"model.init.layers": 1, "model.init.hidden": 48}
COMMON: dict[str, Any] = {"model.name": "hone/tiny", **INIT, "max_steps": 4, "ckpt.interval": 2, "display": "none"}
SFT_SETTINGS = COMMON | {
    "data.env.id": "reverse-text",
    "data.seq_len": 64,
    "data.batch_size": 4,
    "data.micro_batch_tokens": 128,
    "data.pack": False,
    "val.interval": 2,
    "val.max_examples": 4,
    "optim.lr": 1e-3,
}
RL_SETTINGS = COMMON | {
    "seq_len": 64,
    "orchestrator.batch_size": 8,
    "orchestrator.rollouts_per_example": 4,
    "orchestrator.sampling.max_tokens": 8,
    "trainer.micro_batch_tokens": 64,
    "trainer.optim.lr": 1e-3,
    "trainer.loss.kl_coef": 0.1,
}
MEMORY = {
    "fp32": {},
    "bf16_linear": {"checkpointing": "selective", "optim.offload": True},
    "bf16": {"checkpointing": "layer"},
}
"""Settings of the trainer that save memory, by precision, on both devices. 8 bits would be compiled for a GPU."""
DATA = [{"prompt": f"Say {word}", "answer": word} for word in ("one", "two", "three", "four")]


def letters(completion: Any, **more: Any) -> float:
    """Reward a completion by its letters: in no two of a group alike."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return sum(map(ord, text)) % 97 / 97


class Waits:
    """Counts the waits of each step of a trainer and of an engine, beside what they had to do."""

    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu
        self.train: list[tuple[int, int]] = []
        self.decode: list[int] = []
        self.offloads = 0
        """Copies of gradients to the host, with `optim.offload`: in no step's waits."""
        self.places: Counter[str] = Counter()

    @contextlib.contextmanager
    def counted(self) -> Any:
        step, decode = Trainer.step, Engine.step

        def counted_step(trainer: Trainer, micro_batches: Any) -> Any:
            result, waits = self._during(lambda: step(trainer, micro_batches))
            self.train.append((waits, len(micro_batches)))
            return result

        def counted_decode(engine: Engine) -> Any:
            result, waits = self._during(lambda: decode(engine))
            self.decode.append(waits)
            return result

        Trainer.step, Engine.step = counted_step, counted_decode
        try:
            yield
        finally:
            Trainer.step, Engine.step = step, decode

    def _during(self, call: Callable[[], Any]) -> tuple[Any, int]:
        before = self.gpu.waits.copy()
        result = call()
        new = self.gpu.waits - before
        offloads = {where: n for where, n in new.items() if where[0].startswith("copy") and "optim.py" in where[1]}
        self.offloads += sum(offloads.values())
        self.places.update({f"{kind} at {place}": count for (kind, place), count in new.items()})
        return result, new.total() - sum(offloads.values())


def trained(make: Callable[..., Any], out: Path, steps: int = 4, resume: bool = False) -> dict[str, Any]:
    """Train to this version; return losses, rewards, gradients, where the weights are, and with RL what was sampled."""
    with make(output_dir=out, resume=resume) as run:
        while run.version < steps:
            run.step()
    read = Run(out)
    metrics = read.metrics()
    names = ("loss", "grad_norm", "reward/mean", "optimizer/skipped")
    columns = {name: metrics.column(name).to_pylist() for name in names if name in metrics.column_names}
    sampled = [read.rollouts(step).column("token_ids").to_pylist() for step in read.rollout_steps()]
    return columns | {"sampled": sampled, "weights": str(out / "weights" / f"step_{steps}" / "model.safetensors")}


def compared(make: Callable[..., Any], folder: Path, precision: str) -> dict[str, Any]:
    """Train on the CPU, on the GPU, and on the GPU in two parts."""
    found = {"cpu": trained(lambda **more: make(precision, "cpu", **more), folder / "cpu")}
    with FakeCuda().there() as gpu:
        waits = Waits(gpu)
        with waits.counted():
            found["gpu"] = trained(lambda **more: make(precision, "cuda", **more), folder / "gpu")
        found |= {name: getattr(waits, name) for name in ("train", "decode", "offloads", "places")}
        found["graphs"] = gpu.recorded
        trained(lambda **more: make(precision, "cuda", **more), folder / "parts", steps=2)
        found["resumed"] = trained(lambda **more: make(precision, "cuda", **more), folder / "parts", resume=True)
    files = {name: load_file(found[name].pop("weights")) for name in ("cpu", "gpu", "resumed")}
    found["apart"] = {
        name: max(float((files["gpu"][key] - files[name][key]).abs().max()) for key in files["gpu"])
        for name in ("cpu", "resumed")
    }
    return found


def sft(precision: str, device: str, **more: Any) -> SFT:
    settings = SFT_SETTINGS | MEMORY[precision] | {"precision": precision, "model.device": device}
    return SFT(**settings, **more)


def rl(precision: str, device: str, **more: Any) -> RL:
    settings = RL_SETTINGS | {f"trainer.{name}": value for name, value in MEMORY[precision].items()}
    settings |= {"precision": precision, "model.device": device}
    return RL(dataset=DATA, reward_funcs=letters, **settings, **more)


def evaluated(model: Path, precision: str) -> list[dict[str, Any]]:
    """Return what `hone eval` samples and how it is graded, on the GPU if there is one."""
    words = ["reverse-text", "-m", str(model), "-n", "3", "-r", "2", "-t", "8", "-T", "0.7", "--no-save"]
    result = Evaluation(parse(EvalConfig, [*words, "--precision", precision], "eval")).run()
    return [{name: row[name] for name in ("completion", "reward", "completion_tokens")} for row in result.rows()]


def served(model: Path, precision: str, *flags: str) -> dict[str, Any]:
    """Return what the server of `hone inference` answers, on the GPU if there is one, and if kernels are pinned."""
    found: dict[str, Any] = {}

    def ask(app: Any, *args: Any) -> None:
        body = {"model": str(model), "messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, "seed": 3}
        with TestClient(app, base_url="http://localhost") as client:
            answer = client.post("/v1/chat/completions", json=body | {"n": 2, "logprobs": True}).json()
        found["choices"] = [choice["message"]["content"] for choice in answer["choices"]]
        logprobs = [token["logprob"] for choice in answer["choices"] for token in choice["logprobs"]["content"]]
        found.update(logprobs=logprobs, pinned=torch.are_deterministic_algorithms_enabled())

    inference.serve = ask
    config = parse(ServeConfig, ["--model.name", str(model), "--precision", precision, *flags], "inference")
    with restored_settings(), contextlib.redirect_stdout(sys.stderr):
        torch.use_deterministic_algorithms(False)
        inference._serve_hone(config, cast(Any, None))  # `ask` stands in for what would listen
    return found


def main(folder: Path, precision: str) -> None:
    found: dict[str, Any] = {
        "sft": compared(sft, folder / "sft", precision),
        "rl": compared(rl, folder / "rl", precision),
    }
    model = folder / "rl" / "cpu" / "weights" / "step_4"
    found["eval"] = {"cpu": evaluated(model, precision)}
    found["inference"] = {"cpu": served(model, precision)}
    with FakeCuda().there() as gpu:
        found["eval"]["gpu"] = evaluated(model, precision)
        graphs = [gpu.recorded]
        found["inference"]["gpu"] = served(model, precision)
        graphs.append(gpu.recorded)
        found["inference"]["without graphs"] = served(model, precision, "--no-cuda-graphs")
        graphs.append(gpu.recorded)
    json.dump(found | {"graphs": graphs}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
