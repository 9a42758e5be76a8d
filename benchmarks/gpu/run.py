"""All that hone promises of a GPU, measured in one command: at most eight minutes, offline, with random weights.

    python3 benchmarks/gpu/run.py --out benchmarks/results/gpu

It writes FOLDER/NAME-OF-THE-GPU.json, again after each stage, and a log beside it. hone need not be installed. The
stages up to `training` need torch, numpy, safetensors, tokenizers and transformers; those after them more, which they
also take from benchmarks/gpu/wheels (`make gpu-wheels`). Each stage is a process of its own, with its share of the
time and what earlier ones left of theirs. One that fails, or is ended, is recorded with what it had measured. What
matters most comes first; the last stages are left out when no time is left for them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NO_GPU = 3
"""Exit code of a stage that finds no GPU."""
LOG_BYTES, ERROR_LINES = 200_000, 25


@dataclass(frozen=True)
class Stage:
    """`function` of `module`, with what it measures as `arguments`; `seconds` that it may take.

    It is left out if less than a third of them is left.
    """

    seconds: int
    module: str
    function: str
    arguments: dict[str, Any] = field(default_factory=dict)


SMALL, LARGE = "qwen3-0.6b", "qwen2.5-1.5b"
RL = {"shape": SMALL, "prompts": 8, "rollouts": 16, "new_tokens": 128}
STAGES = {
    "parity": Stage(45, "measures", "parity"),
    f"sampling {SMALL}": Stage(45, "measures", "sampling", {"shape": SMALL}),
    f"training {SMALL}": Stage(45, "measures", "training", {"shape": SMALL}),
    f"rl {SMALL}": Stage(45, "runs", "rl", RL),
    f"update {SMALL}": Stage(20, "measures", "update", {"shape": SMALL}),
    f"sampling {LARGE}": Stage(30, "measures", "sampling", {"shape": LARGE}),
    f"training {LARGE}": Stage(35, "measures", "training", {"shape": LARGE}),
    f"rl {LARGE}": Stage(40, "runs", "rl", {"shape": LARGE, "prompts": 4, "rollouts": 4, "new_tokens": 512}),
    f"transformers {SMALL}": Stage(25, "measures", "transformers", {"shape": SMALL}),
    f"vllm {SMALL}": Stage(45, "measures", "vllm", {"shape": SMALL}),
    "quickstart": Stage(65, "runs", "quickstart"),
    f"compiled sampling {SMALL}": Stage(35, "measures", "sampling", {"shape": SMALL, "compiled": True}),
    f"compiled training {SMALL}": Stage(35, "measures", "training", {"shape": SMALL, "compiled": True}),
    f"compiled rl {SMALL}": Stage(35, "runs", "rl", RL | {"compiled": True}),
    "compiled parity": Stage(30, "measures", "parity", {"compiled": True}),
    "modes": Stage(35, "runs", "modes", RL | {"new_tokens": 64}),
    "resume": Stage(35, "runs", "resume"),
    f"compiled transformers {SMALL}": Stage(40, "measures", "transformers", {"shape": SMALL, "compiled": True}),
}
"""In the order in which they run."""
SECONDS = 470
"""For all stages together."""


class Runner:
    """Runs stages one after the other, and keeps the record of all."""

    def __init__(self, args: argparse.Namespace, work: Path) -> None:
        self.args, self.work = args, work
        self.record: dict[str, Any] = {"gpu": None, "tiny": args.tiny, "revision": revision(), "stages": {}}
        self.child: subprocess.Popen[bytes] | None = None
        site = work / "site"
        wheels = sorted((HERE / "wheels").glob("*.whl"))
        python = f"-cp{sys.version_info.major}{sys.version_info.minor}-"
        if any("-cp" in wheel.name and python not in wheel.name for wheel in wheels):
            print(f"{HERE / 'wheels'} is for another Python and left out: make gpu-wheels GPU_PYTHON=VERSION")
            wheels = []
        for wheel in wheels:
            zipfile.ZipFile(wheel).extractall(site)
        paths = [ROOT / "src", ROOT / "environments", site, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(str(path) for path in paths if str(path)),
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "TORCHINDUCTOR_CACHE_DIR": str(work / "inductor"),
        }

    def run(self, name: str, seconds: float) -> bool:
        """Run a stage for at most so long, and record it; False if it is the first one and finds no GPU."""
        figures, log = self.work / "figures.json", self.work / "log.txt"
        figures.unlink(missing_ok=True)
        words = [
            "--child",
            name,
            "--figures",
            str(figures),
            "--work",
            str(self.work),
            "--end",
            str(time.monotonic() + seconds),
        ]
        words += ["--device", self.args.device, *(["--tiny"] if self.args.tiny else [])]
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        began = time.monotonic()
        with open(log, "wb") as out:
            self.child = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
            code = None
            try:
                with suppress(subprocess.TimeoutExpired):
                    code = self.child.wait(seconds)
            finally:
                self.end_child()
        if code == NO_GPU and not self.record["stages"]:
            return False
        found = json.loads(figures.read_text()) if figures.exists() else {}
        self.record |= {key: found.pop(key) for key in ("gpu", "machine", "versions") if key in found}
        status = found.pop("status", "failed") if code is not None else "out of time"
        stage = {"status": status, "seconds": round(time.monotonic() - began, 1), **found}
        lines = self._plain(log).splitlines()
        if status == "failed" or code:
            stage["status"], stage["exit_code"] = "failed", code
            stage["end_of_log"] = lines[-ERROR_LINES:]
        self.record["stages"][name] = stage
        self._write("\n".join(["", f"===== {name}: {stage['status']}", *lines, ""]))
        print(f"  {stage['status']} after {stage['seconds']:.0f} s", flush=True)
        print("".join(f"  | {line}\n" for line in stage.get("end_of_log", [])[-12:]), end="", flush=True)
        return True

    def leave_out(self, name: str) -> None:
        self.record["stages"][name] = {"status": "left out", "figures": {}}
        self._write(f"\n===== {name}: left out\n")
        print(f"{name}: left out, no time is left", flush=True)

    def end_child(self) -> None:
        """End the stage's process, and those that it started."""
        if self.child is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()
            self.child = None

    def _plain(self, log: Path) -> str:
        """Return the end of a log, without the places of this machine."""
        text = log.read_bytes()[-LOG_BYTES:].decode("utf-8", "replace")
        return text.replace(f"{self.work}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")

    def _write(self, log: str) -> None:
        """Write the record, whole or not at all, and add to the log."""
        name = re.sub(r"[^a-z0-9]+", "-", (self.record["gpu"] or "gpu").lower()).strip("-")
        out: Path = self.args.out / f"{name}.json"
        out.parent.mkdir(parents=True, exist_ok=True)
        new = out.with_suffix(".new")
        new.write_text(json.dumps(self.record, indent=1) + "\n")
        new.replace(out)
        with open(out.with_suffix(".log"), "a" if len(self.record["stages"]) > 1 else "w") as file:
            file.write(log)


def work_folder() -> str | None:
    """Return a folder in memory with room for models, or None for the usual one on a disk."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free > 40e9 else None


def revision() -> str | None:
    """Return the revision of this checkout, with "-dirty" if files differ from it; None outside of a repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def child(args: argparse.Namespace) -> int:
    """Run one stage in this process."""
    sys.path[0] = str(HERE.parent)
    bench = import_module("gpu.bench").Bench(args.device, args.tiny, args.work, args.figures, args.end)
    if not bench.has_device:
        return NO_GPU
    stage = STAGES[args.child]
    getattr(import_module(f"gpu.{stage.module}"), stage.function)(bench, **stage.arguments)
    bench.finish()
    return 0


def stop(number: int, frame: Any) -> None:
    """Turn SIGTERM into an exception, so that the stage's processes are ended too."""
    raise SystemExit(128 + number)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the result")
    parser.add_argument("--stages", nargs="+", metavar="WORD", help="only those with these names or words")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy shapes: says only that it runs")
    for name in ("--child", "--figures", "--work", "--end"):
        parser.add_argument(name, type={"--child": str, "--end": float}.get(name, Path), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        return child(args)
    if args.out is None:
        parser.error("say with --out where the result goes")
    words = set(args.stages or ())
    chosen = [name for name in STAGES if not words or name in words or (words - {*STAGES}) & {*name.split()}]
    if not chosen:
        parser.error(f"no stage is named so: there are {', '.join(STAGES)}")
    began, budget = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(dir=work_folder(), ignore_cleanup_errors=True) as work:
        runner = Runner(args, Path(work))
        scale = 4 if args.tiny else 1
        for name in chosen:
            budget += STAGES[name].seconds * scale
            left = began + min(budget, SECONDS * scale) - time.monotonic()
            if left < STAGES[name].seconds * scale / 3:
                runner.leave_out(name)
            elif not runner.run(name, left):
                print(
                    f"Nothing is measured: torch finds no device {args.device} here. A toy of all: --device cpu --tiny"
                )
                return NO_GPU
    table = runpy.run_path(str(ROOT / "scripts" / "gpu_table.py"))
    print("\n".join(table["rows"]([runner.record])))
    lost = any(stage.get("exit_code") == NO_GPU for stage in runner.record["stages"].values())
    return 1 if lost else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(main())
