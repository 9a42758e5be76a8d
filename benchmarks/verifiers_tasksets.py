r"""verifiers' own tasksets and environments: one step of RL each with the tiny model, or why they are refused.

    pip download --no-deps --no-binary :all: verifiers==0.4.0 && tar xf verifiers-0.4.0.tar.gz
    .venv/bin/python benchmarks/verifiers_tasksets.py --sdist verifiers-0.4.0 \
        --out benchmarks/results/verifiers_tasksets.json

Fixtures are those of its tests; the others are the generic ones of the package, an environment with the fixture
`echo-v1` as its taskset. The random tiny model says nothing sensible: this shows what loads, is sampled, rewarded and
trained on. It needs `make verifiers-env`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from recording import show

from hone.runs import Run
from hone.runs.provenance import hardware

DOCKER = {"runtime": {"type": "docker"}}
JUDGED = {"judge": {"harness": {"id": "bash"}}, "solver": DOCKER}
GENERIC: dict[str, tuple[str, dict[str, Any]]] = {
    "best-of-n": ("echo-v1", {"env": {"id": "best-of-n", "n": 2}}),
    "single-agent": ("echo-v1", {"env": {"id": "single-agent"}}),
    "user-sim": ("echo-v1", {"env": {"id": "user-sim", "user": {"max_turns": 2}}}),
    "agentic-judge": ("echo-v1", {"env": {"id": "agentic-judge"} | JUDGED}),
    "shared-agentic-judge": ("echo-v1", {"env": {"id": "shared-agentic-judge"} | JUDGED}),
    "isolated-verifier": ("echo-v1", {"env": {"id": "isolated-verifier", "agent": DOCKER}}),
    "echo-v1 with the harness bash": ("echo-v1", {"env": {"agent": {"harness": {"id": "bash"}}}}),
    "textarena": ("textarena", {"game": "Wordle-v0"}),
    "openenv": ("openenv", {}),
    "nemo-gym": ("nemo-gym", {}),
    "harbor": ("harbor", {}),
}
"""Of each generic part: the taskset, and its arguments."""


def one_step(taskset: str, arguments: dict[str, Any], folder: Path, *flags: str) -> dict[str, Any]:
    """Train one step in a folder; return the outcomes of its rollouts and the rewards, or why there are none.

    A reward that the audit refuses is trained on without it, and its finding kept.
    """
    command = [sys.executable, "-m", "hone.cli", "rl", "--orchestrator.env.id", f"verifiers:{taskset}"]
    command += ["--orchestrator.env.args", json.dumps(arguments)]
    command += ["--model.name", "hone/tiny", "--model.init.max-positions", "2048", "--seq-len", "2048"]
    command += ["--max-steps", "1", "--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    command += ["--orchestrator.sampling.max-tokens", "16", "--orchestrator.grading.max-failed", "1.0"]
    command += ["--display", "none", "--no-report", "--output-dir", "out", *flags]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines()[-1].removeprefix("error: ")
        if "fails its audit" in words and not flags:
            return {"audit": words} | one_step(taskset, arguments, folder, "--no-audit")
        return {"refused": words}
    rows = Run(folder / "out").rollouts(0).to_pylist()
    return {
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        "rewards": sorted({name for row in rows for name, _ in row["components"]}),
        "trajectories": sum(1 + len(json.loads(row.get("branches") or "[]")) for row in rows),
        "failures": sorted({row["detail"][-300:] for row in rows if row["reward"] is None})[:2],
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sdist", type=Path, required=True, help="folder of the unpacked source of verifiers")
    parser.add_argument("--only", nargs="+", help="names of the cases to run")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    fixtures = args.sdist / "tests" / "v1" / "fixtures"
    cases = {
        path.stem.replace("_", "-"): (path.stem.replace("_", "-"), {})
        for path in sorted(fixtures.glob("*.py"))
        if re.search(r"\(\s*vf\.Taskset\[|Taskset\)", path.read_text())
    } | GENERIC
    result: dict[str, Any] = {"verifiers": args.sdist.name.removeprefix("verifiers-"), "cases": {}}
    for name in args.only or cases:
        with tempfile.TemporaryDirectory() as folder:
            for path in fixtures.glob("*.py"):
                shutil.copy(path, folder)
            result["cases"][name] = one_step(*cases[name], Path(folder))
        print(name, json.dumps(result["cases"][name]), flush=True)
    result["machine"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
