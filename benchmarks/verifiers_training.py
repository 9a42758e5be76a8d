"""Ten steps of RL on tasksets that verifiers runs: a user, a judge at a local URL, a reward of several siblings.

    .venv/bin/python benchmarks/verifiers_training.py --out benchmarks/results/verifiers_training.json

The tasksets are those of the tests; the random tiny model learns which letters they reward. Their agents call the model
from verifiers' own process (`direct.py`), for 64 rollouts a step. It needs `make verifiers-env`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from recording import show

from hone.runs import Run
from hone.runs.provenance import hardware

TASKSETS = Path(__file__).parents[1] / "tests" / "extensions" / "libraries" / "verifiers_tasksets"
DIRECT = {"env": {"agent": {"harness": {"id": "direct"}}}, "agent_limits": {"concurrency": 64}}


class Judge(BaseHTTPRequestHandler):
    """A judge that rates a text by the share of digits in it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"][-1]["content"]
        text = asked.removeprefix("Rate ").rpartition(" as an answer to ")[0]
        rating = sum(letter.isdigit() for letter in text) / max(1, len(text))
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        head = {"id": "1", "object": "chat.completion", "created": 0, "model": "judge", "usage": usage}
        message = {"role": "assistant", "content": f"{rating:.4f}"}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        content = json.dumps({**head, "choices": choices}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


class JudgeServer(ThreadingHTTPServer):
    request_queue_size = 128  # all rollouts of a step ask at once


def trained(taskset: str, seed: int, judge: str, steps: int, lr: float) -> dict[str, Any]:
    """Train; return the mean reward of each step, and the rollouts that failed."""
    arguments: dict[str, Any] = dict(DIRECT)
    if taskset == "judged":
        arguments["task"] = {"judge": {"base_url": judge, "api_key_var": "NO_KEY", "model": "judge"}}
    command = [sys.executable, "-m", "hone.cli", "rl", "--orchestrator.env.id", f"verifiers:{taskset}"]
    command += ["--orchestrator.env.args", json.dumps(arguments), "--seed", str(seed), "--trainer.optim.lr", str(lr)]
    command += ["--model.name", "hone/tiny", "--seq-len", "512", "--max-steps", str(steps)]
    command += ["--orchestrator.batch-size", "64", "--orchestrator.rollouts-per-example", "8"]
    command += ["--orchestrator.sampling.max-tokens", "16", "--display", "none", "--no-report", "--output-dir", "out"]
    with tempfile.TemporaryDirectory() as folder:
        for path in TASKSETS.glob("*.py"):
            shutil.copy(path, folder)
        subprocess.run(command, cwd=folder, check=True)
        run = Run(Path(folder) / "out")
        rows = [row for step in run.rollout_steps() for row in run.rollouts(step).to_pylist()]
        failed = [row["detail"] for row in rows if row["reward"] is None]
        return {
            "rewards": [value for value in run.metrics().to_pydict()["reward/mean"] if value is not None],
            "rollouts": len(rows),
            "failed": len(failed),
            "failures": sorted({words[-300:] for words in failed})[:2],
        }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasksets", nargs="+", default=["talk", "judged", "chorus"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    server = JudgeServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    result: dict[str, Any] = {"lr": args.lr, "rollouts_a_step": 64}
    for taskset in args.tasksets:
        result[taskset] = {}
        for seed in args.seeds:
            found = trained(taskset, seed, f"http://127.0.0.1:{server.server_port}/v1", args.steps, args.lr)
            result[taskset][str(seed)] = found
            print(taskset, seed, json.dumps(found), flush=True)
    server.shutdown()
    result["machine"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
