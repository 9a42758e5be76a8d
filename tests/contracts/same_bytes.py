"""Do two revisions of hone write the same bytes?

    python tests/contracts/same_bytes.py REV [RUN ...] [--work FOLDER]

Checks REV out beside this tree, does the same RUNS with both, one after the other on this machine, and compares what
they wrote, key by key: metrics, hashes, rollouts, evaluations, checkpoints and weights. Then this tree resumes,
verifies, replays, reports and shows runs that REV wrote. Exit code 1 if anything differs.

A key that one side alone has is a difference, unless `ONE_SIDED` lists it with its reason.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
ONE_SIDED: dict[str, str] = {}
"""Keys that one revision alone has, as patterns, and why."""
LIMIT = 600
"""Seconds after which a command counts as hung."""

TINY = "--model.name hone/tiny --model.init.layers 2 --model.init.hidden 64"
WARM = "sft/weights/step_80"
COUNTER = "tools-sft/weights/step_160"
QUIET = "--display none --threads 1 --no-report --no-audit"
RL = (
    f"rl {QUIET} --model.name {WARM} --max-steps 3 --seed 3 --seq-len 96 --ckpt.interval 1 --trainer.optim.lr 1e-3 "
    "--orchestrator.batch-size 16 --orchestrator.rollouts-per-example 4 --orchestrator.sampling.max-tokens 16 "
    "--orchestrator.env.id reverse-text --orchestrator.eval.interval 2 --orchestrator.eval.num-examples 6"
)
SFT = f"sft {QUIET.replace(' --no-audit', '')} {TINY} --seed 3 --data.batch-size 16 --no-data.pack --optim.lr 3e-3"
MIX = json.dumps([{"id": "reverse-text", "weight": 2}, {"id": "char-count", "sampling": {"top_k": 20}}])
AGENT = """
async def agent(client, example):
    async def ask(*messages):
        answer = await client.chat.completions.create(model="policy", messages=list(messages))
        return answer.choices[0].message.content or ""

    question = example.prompt[-1]
    first = await ask(question)
    second = await ask({"role": "user", "content": "Another branch"})  # calls side by side come in any order
    last = await ask(question, {"role": "assistant", "content": first}, {"role": "user", "content": "More"})
    scores = [sum(c.isalpha() for c in text) / 16 for text in (first, second, last)]
    return {"letters": sum(scores), "calls": scores}
"""
ROWS = "".join(json.dumps({"prompt": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(20))
EVAL = "eval reverse-text -n 300 -r 1 -t 16 --seed 1"


@dataclass
class Side:
    """A checked out revision, and the folder that its runs are in."""

    tree: Path
    folder: Path

    def hone(self, line: str) -> int:
        """Run a command of this revision in its folder to its end; return the exit code. Output goes to `log`."""
        with self.started(line) as process:
            return process.wait(LIMIT)

    def must(self, line: str) -> None:
        if code := self.hone(line):
            raise SystemExit(f"exit code {code} of hone {line}\n{(self.folder / 'log').read_text()[-4000:]}")

    @contextmanager
    def started(self, line: str) -> Iterator[subprocess.Popen]:
        """Run a command in the block; at its end it is killed, if it is running still."""
        path = os.pathsep.join(map(str, (self.tree / "src", self.tree / "environments", self.folder)))
        env = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
        with (self.folder / "log").open("a") as log:
            command = [sys.executable, "-m", "hone.cli", *shlex.split(line)]
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
            try:
                yield process
            finally:
                process.kill()
                process.wait()

    def wait_for(self, process: subprocess.Popen, there: Callable[[], bool]) -> None:
        """Wait until `there` is true of a running command."""
        end = time.monotonic() + LIMIT
        while not there():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"it ended, or hung, too early:\n{(self.folder / 'log').read_text()[-4000:]}")
            time.sleep(0.02)


def agent(side: Side) -> None:
    """A program with two branches and rewards by call."""
    (side.folder / "an_agent.py").write_text(AGENT)
    (side.folder / "rows.jsonl").write_text(ROWS)
    flags = RL.partition("--orchestrator.env.id")[0]
    side.must(f"{flags} --agent an_agent:agent --data rows.jsonl --inference.batch-invariant --output-dir agent")


def tools(side: Side) -> None:
    """RL of a task whose model calls a tool."""
    data = "--data.env.id calculator --data.seq-len 256 --max-steps 160"
    side.must(f"{SFT} {data} --output-dir tools-sft")
    task = "--orchestrator.env.id calculator --seq-len 256 --orchestrator.sampling.max-tokens 64"
    side.must(f"{RL} --model.name {COUNTER} {task} --output-dir tools")


def line(words: str) -> Callable[[Side], None]:
    return lambda side: side.must(words)


RUNS: dict[str, Callable[[Side], None]] = {
    # The models that all others begin with.
    "sft": line(
        f"{SFT} --data.env.id reverse-text --data.seq-len 96 --max-steps 80 --ckpt.interval 40 --val.interval 40 "
        "--val.max-examples 8 --output-dir sft"
    ),
    "fp32": line(f"{RL} --precision fp32 --output-dir fp32"),
    "kl": line(f"{RL} --precision bf16_linear --trainer.loss.kl-coef 0.1 --output-dir kl"),
    "tools": tools,
    "agent": agent,
    "cut": line(f"{RL} --orchestrator.sampling.top-p 0.9 --orchestrator.sampling.min-p 0.05 --output-dir cut"),
    "mix": line(
        f"{RL} --seq-len 192 --orchestrator.envs {shlex.quote(MIX)} --orchestrator.refill.oversample 1.5 "
        "--orchestrator.refill.max-rounds 2 --output-dir mix"
    ),
    "lora": line(f"{RL} --model.lora.rank 4 --trainer.loss.kl-coef 0.1 --output-dir lora"),
    "eval": line(f"{EVAL} -m {WARM} --threads 1 --output-dir eval"),
}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(url: str) -> bool:
    """Return True if a page is there."""
    try:
        return urllib.request.urlopen(url, timeout=10).status == 200
    except OSError:
        return False


def records(run: Path) -> dict[str, Any]:
    """Return all that a run wrote which a repetition has to write again, by name; floats with all their digits."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in run.rglob("*") if "superseded" not in path.parts):
        name = str(path.relative_to(run))
        if path.name in ("metrics.jsonl", "hashes.jsonl", "results.jsonl") or name.startswith("evals/"):
            rows = [json.loads(row) for row in path.read_text().splitlines()]
            for key in {key: None for row in rows for key in row if key != "seconds"}:
                found[f"{name} {key}"] = [row.get(key, "nothing") for row in rows]
        elif path.suffix == ".parquet":
            found |= {f"{name} {key}": values for key, values in pq.read_table(path).to_pydict().items()}
        elif path.suffix == ".safetensors":
            for key, tensor in load_file(path).items():
                content = tensor.flatten().view(torch.uint8).numpy().tobytes()
                found[f"{name} {key}"] = f"{tensor.dtype} {list(tensor.shape)} {hashlib.sha256(content).hexdigest()}"
        elif path.name == "state.json":
            found |= {f"{name} {key}": value for key, value in json.loads(path.read_text()).items()}
    return found


def differences(base: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """List the keys that differ, in the order in which they were written."""
    if not here:
        yield "nothing was written"
    for key in base | here:
        if key not in base or key not in here:
            if not any(fnmatch.fnmatch(key, pattern) for pattern in ONE_SIDED):
                yield f"{key}: only {'here' if key in here else 'there'}"
        elif repr(base[key]) != repr(here[key]):
            yield f"{key}: {short(base[key])} there, {short(here[key])} here"


def short(value: Any) -> str:
    return repr(value) if len(repr(value)) <= 150 else repr(value)[:150] + "…"


def read_by(here: Side, base: Side, done: list[str]) -> Iterator[str]:
    """Resume, verify, replay, report and show copies of runs that the other revision wrote; list what fails."""
    for name in ("kl", "mix", "tools"):
        if name not in done:
            continue
        run = here.folder / f"{name}-of-base"
        shutil.copytree(base.folder / name, run)
        commands = {
            "verify": f"verify {run.name} --steps 2",
            "replay": f"replay {run.name} --output-dir {run.name}-replayed",
            "report": f"report {run.name}",
            "resume": f"rl @ {run.name}/config.toml --output-dir {run.name} --max-steps 4 --resume",
        }
        for command, words in commands.items():
            if code := here.hone(words):
                yield f"{command} of {name} of the base: exit code {code}"
        port = free_port()
        with here.started(f"view {run.name} --port {port}") as process:
            here.wait_for(process, lambda port=port: answers(f"http://127.0.0.1:{port}/"))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rev")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}; sft is always done")
    parser.add_argument("--work", type=Path, help="keep what is written here")
    args = parser.parse_args(argv)
    if unknown := set(args.runs) - RUNS.keys():
        parser.error(f"there is no run {', '.join(sorted(unknown))}")
    chosen = [name for name in RUNS if name == "sft" or not args.runs or name in args.runs]
    with tempfile.TemporaryDirectory() as temporary, checked_out(args.rev, Path(temporary) / "tree") as tree:
        work = args.work or Path(temporary)
        base, here = Side(tree, work / "base"), Side(ROOT, work / "here")
        bad = 0
        for side in (base, here):
            side.folder.mkdir(parents=True)
        for name in chosen:
            started = time.monotonic()
            for side in (base, here):
                RUNS[name](side)
            records_of = [records(side.folder / name) for side in (base, here)]
            found = list(differences(*records_of))
            what = f"{len(found)} differences" if found else f"equal in {len(records_of[0])} keys"
            print(f"{name:8} {what}  ({time.monotonic() - started:.0f} s)", flush=True)
            print("".join(f"    {line}\n" for line in found[:8]), end="", flush=True)
            bad += len(found)
        for failure in read_by(here, base, chosen):
            print(failure, flush=True)
            bad += 1
    return 1 if bad else 0


@contextmanager
def checked_out(rev: str, folder: Path) -> Iterator[Path]:
    """A worktree of a revision."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), rev], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


if __name__ == "__main__":
    sys.exit(main())
