"""Tokens/s of sampling: hone's engine against transformers' `generate` and vLLM, same model, workload and threads.

    .venv/bin/python benchmarks/sampling.py --vllm-python .venv-vllm/bin/python --out benchmarks/results/sampling.json

- tiny: the tiny preset, 128 different prompts of 32 tokens, 128 new tokens each (no early stop), one thread.
- large: Qwen3-0.6B's shape with random weights in bf16, 16 prompts of 32 tokens, 32 new ones, on 1 and on 2 threads.
- group: what the prompt of a group costs, 16 samples of one prompt of 256 tokens, shared or computed for each.

All sides take turns, round by round, on other prompts; figures are medians, prefill included. hone returns logprobs,
which RL needs; transformers does not; vLLM is measured with and without, eager and compiled, and hone is compared with
the fastest. Beside them stand the limits of the machine (`limits.py`). vLLM needs an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from statistics import median
from typing import IO, Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from limits import gemm_gflops, read_gigabytes, sampling_limits
from recording import show

from hone import rng
from hone.config.shared import InitConfig
from hone.inference.engine import Engine
from hone.inference.types import Job, SamplingParams
from hone.loops.machine import configure
from hone.model.config import DecoderConfig
from hone.model.hf import load_model, save_model
from hone.model.presets import random_decoder, tiny_config
from hone.runs.provenance import hardware

ROOT = Path(__file__).resolve().parents[1]
Prompts = list[list[int]]
Side = Callable[[Prompts, int], float]
"""(prompts, new tokens) -> seconds until every prompt has that many."""

QWEN3_06B = DecoderConfig(
    family="qwen3",
    vocab_size=151936,
    hidden_size=1024,
    intermediate_size=3072,
    num_layers=28,
    num_heads=16,
    num_kv_heads=8,
    head_dim=128,
    rope_theta=1e6,
    qk_norm=True,
    max_position_embeddings=40960,
)


@dataclass(frozen=True)
class Workload:
    prompts: int
    prompt_tokens: int
    new_tokens: int

    def make(self, vocab_size: int, turn: int) -> Prompts:
        """Different prompts for each turn, so that no cache of prefixes helps."""
        drawn = rng.stream(0, "bench", turn).integers(3, vocab_size, (self.prompts, self.prompt_tokens))
        return drawn.tolist()


TINY, LARGE = Workload(128, 32, 128), Workload(16, 32, 32)
QUICK_TINY, QUICK_LARGE = Workload(4, 8, 8), Workload(2, 8, 4)
GROUP, GROUP_PROMPT = 16, 256


class HoneSide:
    """hone's engine in this process."""

    def __init__(self, folder: Path, precision: str, device: str = "cpu", **options: Any) -> None:
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.engine = Engine(load_model(folder, dtype=dtype, device=device, precision=precision), **options)

    def __call__(self, prompts: Prompts, new_tokens: int) -> float:
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        start = time.perf_counter()
        samples = self.engine.generate(prompts, params)
        seconds = time.perf_counter() - start
        assert all(len(completion.token_ids) == new_tokens for (completion,) in samples)
        return seconds


class TransformersSide:
    """`generate` in this process, without any logits processor or stop token."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str = "cpu") -> None:
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()

        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()
        self.model.generation_config = GenerationConfig(pad_token_id=0)

    def __call__(self, prompts: Prompts, new_tokens: int) -> float:
        start = time.perf_counter()
        ids = torch.tensor(prompts, device=self.model.device)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, max_new_tokens=new_tokens
        ).cpu()
        seconds = time.perf_counter() - start
        assert out.shape[1] == ids.shape[1] + new_tokens
        return seconds


class VllmSide:
    """vLLM in a child process with threads of its own; idle while others take their turn."""

    def __init__(
        self, python: Path, folder: Path, dtype: str, eager: bool, work: Workload, threads: int, log: IO[str]
    ) -> None:
        arguments = {
            "model": str(folder),
            "dtype": dtype,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "enforce_eager": eager,
            "enable_prefix_caching": False,
            "max_model_len": max(64, work.prompt_tokens + work.new_tokens),
            "max_num_seqs": work.prompts,
            "max_num_batched_tokens": max(2048, work.prompts * work.prompt_tokens),
            "kv_cache_memory_bytes": 2**29,
            "logprobs_mode": "processed_logprobs",
        }
        own = {"OMP_NUM_THREADS": str(threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        own |= {"TORCH_COMPILE_DISABLE": "1"} if eager else {}
        own |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        inherited = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "PYTHONPATH")}
        self.process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("vllm_worker.py")), json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=inherited | own,
        )
        ready = self._answer()
        self.version = ready["version"]
        assert ready["threads"] == threads, ready

    def __call__(self, prompts: Prompts, new_tokens: int, logprobs: bool = True) -> float:
        job = {"prompts": prompts, "max_tokens": new_tokens, "logprobs": logprobs}
        assert self.process.stdin is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        answer = self._answer()
        assert answer["tokens"] == len(prompts) * new_tokens
        time.sleep(0.3)  # its threads may spin for 0.2 s before they leave the cores to the next side
        return answer["seconds"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"vLLM ended with exit code {self.process.wait()}; its output is in the log")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def take_turns(sides: dict[str, Side], work: Workload, vocab_size: int, rounds: int, title: str) -> list[dict]:
    """Tokens/s of each side in each round, after one round that does not count."""
    names, results = list(sides), []
    for index in range(rounds + 1):
        prompts = work.make(vocab_size, index)
        row = {}
        for name in names[index % len(names) :] + names[: index % len(names)]:
            row[name] = work.prompts * work.new_tokens / sides[name](prompts, work.new_tokens)
        if index:
            results.append({name: row[name] for name in names})
            said = ", ".join(f"{name} {value:,.0f}" for name, value in results[-1].items())
            print(f"{title}, round {index}/{rounds}: {said} tokens/s", flush=True)
    return results


def speedups(rounds: list[dict], ours: str, theirs: str) -> dict[str, float]:
    """Median over the rounds of ours over the fastest side that begins with `theirs`; vLLM's also without logprobs."""
    names = [name for name in rounds[0] if name.startswith(theirs)]
    found = {}
    for suffix in ("", "_no_logprobs"):
        rivals = [name for name in names if name.endswith("_no_logprobs") == bool(suffix)]
        if rivals:
            found[f"{ours}_vs_{theirs}{suffix}"] = median(row[ours] / max(row[r] for r in rivals) for row in rounds)
    return found


def measure(
    args: argparse.Namespace, folder: Path, title: str, work: Workload, threads: int, large: bool
) -> dict[str, Any]:
    """One model on so many threads: every side that is there, and the limits."""
    torch.set_num_threads(threads)
    precisions = ("bf16",) if large else ("fp32", "bf16_linear")
    with ExitStack() as ends:
        sides: dict[str, Side] = {f"hone_{precision}": HoneSide(folder, precision) for precision in precisions}
        theirs = "bfloat16" if large else "float32"
        sides[f"transformers_{theirs}"] = TransformersSide(folder, getattr(torch, theirs))
        vllm_version = None
        if args.vllm_python:
            log = ends.enter_context(open(args.vllm_log, "a"))
            for dtype, mode in product(("bfloat16",) if large else ("bfloat16", "float32"), args.vllm_modes):
                print(f"{title}: starting vLLM, {dtype}, {mode} (half a minute)", flush=True)
                side = VllmSide(args.vllm_python, folder, dtype, mode == "eager", work, threads, log)
                ends.callback(side.close)
                sides[f"vllm_{dtype}_{mode}"] = side
                sides[f"vllm_{dtype}_{mode}_no_logprobs"] = partial(side, logprobs=False)
                vllm_version = side.version
        engine = sides[f"hone_{precisions[0]}"].engine  # type: ignore[attr-defined]
        config: DecoderConfig = engine.model.config
        rounds = take_turns(sides, work, config.vocab_size, args.large_rounds if large else args.rounds, title)
        parameters = engine.model.num_parameters
    gflops = {name: gemm_gflops(getattr(torch, name)) for name in ("float32", "bfloat16")}
    gigabytes = read_gigabytes()
    shape = (work.prompts, work.prompt_tokens, work.new_tokens)
    pairs = [(f"hone_{precisions[-1]}", "vllm"), (f"hone_{precisions[0]}", f"transformers_{theirs}")]
    pairs += [] if large else [("hone_fp32", "vllm_float32")]
    return {
        "workload": {**asdict(work), "parameters": parameters, "layers": config.num_layers, "threads": threads},
        "tokens_per_second": {name: median(row[name] for row in rounds) for name in rounds[0]},
        "speedup": {name: value for pair in pairs for name, value in speedups(rounds, *pair).items()},
        "limits_tokens_per_second": {p: sampling_limits(config, p, *shape, gflops, gigabytes) for p in precisions},
        "gemm_gflops": gflops,
        "read_gigabytes_per_second": gigabytes,
        "rounds": len(rounds),
        "vllm": vllm_version,
    }


def measure_group(args: argparse.Namespace, folder: Path, prompt_tokens: int) -> dict[str, Any]:
    """Seconds until a group has its first tokens: its prompt computed once, or for each sample as if alone."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {"workload": {"samples": GROUP, "prompt_tokens": prompt_tokens, "threads": 1}}
    gflops = {name: gemm_gflops(getattr(torch, name)) for name in ("float32", "bfloat16")}
    gigabytes = read_gigabytes()
    for precision in ("fp32", "bf16_linear"):
        engine = HoneSide(folder, precision).engine
        rows: list[dict[str, float]] = []
        for index in range(args.rounds + 1):
            (prompt,) = Workload(1, prompt_tokens, 1).make(engine.model.config.vocab_size, index)
            first = SamplingParams(max_tokens=1, ignore_eos=True)
            # Another first token each: nothing is common, and all are computed in one pass, as the engine likes it.
            others = [[3 + i, *prompt[1:]] for i in range(GROUP)]
            row = {}
            for name, prompts in (("shared", [prompt] * GROUP), ("separate", others)):
                start = time.perf_counter()
                engine.run([Job(tuple(ids), key, 1) for key, ids in enumerate(prompts)], first)
                row[name] = time.perf_counter() - start
            rows.append(row)
        rows = rows[1:]
        limits = {
            name: {
                kind: count / rate
                for kind, rate in sampling_limits(
                    engine.model.config, precision, count, prompt_tokens, 1, gflops, gigabytes
                ).items()
            }
            for name, count in (("shared", 1), ("separate", GROUP))
        }
        found[precision] = {
            "limits_seconds": limits,
            "seconds": {name: median(row[name] for row in rows) for name in rows[0]},
            "cheaper": median(row["separate"] / row["shared"] for row in rows),
        }
        said = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in found[precision]["seconds"].items())
        print(f"group, {precision}: {said}", flush=True)
    return found


def make_model(folder: Path, config: DecoderConfig, precision: str) -> Path:
    save_model(random_decoder(config, seed=0, precision=precision), folder)
    return folder


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=["tiny", "large", "group"], choices=["tiny", "large", "group"])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side that count, tiny preset")
    parser.add_argument("--large-rounds", type=int, default=3, help="the same, Qwen3-0.6B's shape")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the large model")
    parser.add_argument("--vllm-python", type=Path, help="the Python of vLLM's environment (default: .venv-vllm's)")
    modes = ("eager", "compiled")
    parser.add_argument("--vllm-modes", nargs="*", default=modes, help=f"of {', '.join(modes)}; none leaves vLLM out")
    parser.add_argument("--vllm-log", type=Path, help="file for what vLLM prints (default: thrown away)")
    parser.add_argument("--quick", action="store_true", help="a toy of everything: says nothing but that it runs")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    args.vllm_log = args.vllm_log or Path(os.devnull)
    here = ROOT / ".venv-vllm/bin/python"
    args.vllm_python = args.vllm_python or (here if here.exists() else None)
    if not set(args.vllm_modes) <= set(modes):
        parser.error(f"--vllm-modes takes {' and '.join(modes)}")
    if not args.vllm_modes:
        args.vllm_python = None
    elif args.vllm_python is None:
        print(f"vLLM is left out: there is no {here} (make vllm-env makes it, or name one with --vllm-python)")
    configure(1, 0, deterministic=False)  # as the commands do; transformers runs in this process too
    with tempfile.TemporaryDirectory() as tmp:
        result = run(args, Path(tmp))
    show(result, args.out)


def run(args: argparse.Namespace, tmp: Path) -> dict[str, Any]:
    tiny, large = tiny_config(), QWEN3_06B
    if args.quick:
        tiny = tiny_config(InitConfig(layers=1, hidden=32, heads=2, kv_heads=1, head_dim=32, intermediate=32))
        large = tiny
        args.rounds = args.large_rounds = 1
    result: dict[str, Any] = {}
    if {"tiny", "group"} & set(args.cases):
        folder = make_model(tmp / "tiny", tiny, "fp32")
        if "tiny" in args.cases:
            result["tiny"] = measure(args, folder, "tiny", QUICK_TINY if args.quick else TINY, 1, large=False)
        if "group" in args.cases:
            result["group"] = measure_group(args, folder, 32 if args.quick else GROUP_PROMPT)
    if "large" in args.cases:
        print("Making Qwen3-0.6B's shape with random weights", flush=True)
        folder = make_model(tmp / "large", large, "bf16")
        for threads in args.threads:
            work, title = (QUICK_LARGE if args.quick else LARGE), f"large, {threads} thread{'s' * (threads > 1)}"
            result[f"large_{threads}"] = measure(args, folder, title, work, threads, large=True)
    versions = {name: version(name) for name in ("torch", "transformers")}
    result["versions"] = {**versions, "python": platform.python_version()}
    result["machine"] = hardware()
    return result


if __name__ == "__main__":
    main()
