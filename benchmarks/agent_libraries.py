"""Programs on public agent libraries, trained as they stand: `agent_programs/`, three steps each with the tiny model.

    python3 -m venv .venv-agents
    .venv-agents/bin/pip install openai-agents smolagents "pydantic-ai-slim[openai]" langgraph langchain-openai
    .venv/bin/python benchmarks/agent_libraries.py --python .venv-agents/bin/python --out benchmarks/results/agents.json

The random tiny model says nothing sensible, so this shows that calls are taken, recorded and trained on, not that
anything is learned: for each program the outcomes of its rollouts, trajectories and tokens of one, seconds a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

from recording import show

from hone.runs import Run
from hone.runs.provenance import hardware

PROGRAMS = Path(__file__).parent / "agent_programs"
PACKAGES = ("openai", "openai-agents", "smolagents", "pydantic-ai-slim", "langgraph", "langchain-openai")
STEPS = 3


def trained(program: Path, python: Path, folder: Path) -> dict[str, Any]:
    """Train on a program; return what its rollouts were."""
    rows = [{"prompt": f"What is {i} + {i + 1}?", "answer": str(2 * i + 1)} for i in range(40)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable,
        "-m",
        "hone.cli",
        "rl",
        "--agent-command",
        f"{python} -P {program}",
        "--data",
        "rows.jsonl",
    ]
    command += ["--model.name", "hone/tiny", "--model.init.max-positions", "16384", "--seq-len", "16384"]
    command += ["--max-steps", str(STEPS), "--orchestrator.batch-size", "8", "--orchestrator.rollouts-per-example", "4"]
    command += ["--orchestrator.sampling.max-tokens", "32", "--orchestrator.grading.max-failed", "1.0"]
    command += ["--display", "none", "--no-report", "--output-dir", "out"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1]}
    run = Run(folder / "out")
    found = [row for step in run.rollout_steps() for row in run.rollouts(step).to_pylist()]
    lines = run.metrics().to_pydict()
    return {
        "outcomes": dict(Counter(row["outcome"] for row in found)),
        "trajectories": mean(1 + len(json.loads(row["branches"] or "[]")) for row in found),
        "tokens": mean(len(row["token_ids"]) for row in found),
        "failures": sorted({row["detail"][-300:] for row in found if row["reward"] is None})[:2],
        "trained_groups": sum(value or 0 for value in lines.get("groups/trained", [])),
        "seconds_a_step": median(run.timings().to_pydict()["time/step"]),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(".venv-agents/bin/python"), help="has the libraries")
    parser.add_argument("--programs", nargs="+", default=sorted(path.stem for path in PROGRAMS.glob("*.py")))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    python = args.python.absolute()
    asked = (
        f"import json; from importlib.metadata import version as v; print(json.dumps({{p: v(p) for p in {PACKAGES}}}))"
    )
    result: dict[str, Any] = {"versions": json.loads(subprocess.check_output([python, "-c", asked]))}
    for name in args.programs:
        with tempfile.TemporaryDirectory() as folder:
            result[name] = trained(PROGRAMS / f"{name}.py", python, Path(folder))
        print(name, json.dumps(result[name]), flush=True)
    result["machine"] = hardware()
    show(result, args.out)


if __name__ == "__main__":
    main()
