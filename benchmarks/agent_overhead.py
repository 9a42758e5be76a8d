"""What it costs to have a program make the rollouts: an agent of one call against the built-in task of one turn.

    .venv/bin/python benchmarks/agent_overhead.py --out benchmarks/results/agent_overhead.json
    .venv/bin/python benchmarks/agent_overhead.py --memory --out benchmarks/results/agent_memory.json

`--memory`: what the process has in memory over 500 steps of 64 rollouts of the tiny model, by the program.

The same prompts, reward, model (SmolLM2-135M-Instruct), keys and lengths, with and without `batch_invariant`; the two
sides take turns, run by run. A figure is the median over the runs of the median step; the first step of a run warms up.
Rollouts of both are compared: with `batch_invariant` they are the same tokens.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from recording import show

import hone
from hone.model.fetch import cached
from hone.runs import Run
from hone.runs.provenance import hardware

ROWS = [{"prompt": f"Name {i + 2} animals, please.", "answer": ""} for i in range(64)]


def letters(completion: Any) -> float:
    """Reward of the task: the share of distinct characters."""
    text = completion[-1]["content"]
    return len(set(text)) / max(1, len(text))


async def agent(client: Any, example: Any) -> float:
    """The same, as a program."""
    answer = await client.chat.completions.create(model="policy", messages=example.prompt)
    return letters([{"content": answer.choices[0].message.content or ""}])


def steps(side: str, invariant: bool, count: int, folder: Path, model: str) -> Run:
    """Train, and return the run."""
    what: dict[str, Any] = {"agent": agent} if side == "agent" else {"reward_funcs": [letters]}
    return hone.rl(
        dataset=ROWS,
        model=model,
        max_steps=count,
        seq_len=128,
        threads=2,
        display="none",
        report=False,
        output_dir=str(folder),
        **what,
        **{
            "orchestrator.batch_size": 64,
            "orchestrator.rollouts_per_example": 8,
            "orchestrator.sampling.max_tokens": 24,
            "inference.batch_invariant": invariant,
        },
    )


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(count: int, folder: Path) -> dict[str, Any]:
    """Return the memory in MiB at each tenth of the steps, and at the end."""
    settings = {
        "orchestrator.batch_size": 64,
        "orchestrator.rollouts_per_example": 8,
        "orchestrator.sampling.max_tokens": 8,
    }
    found: dict[int, float] = {}
    with hone.RL(
        dataset=ROWS,
        agent=agent,
        model="hone/tiny",
        max_steps=count,
        seq_len=128,
        threads=1,
        display="none",
        report=False,
        output_dir=str(folder),
        **settings,
    ) as rl:
        while not rl.done:
            rl.step()
            if rl.version % (count // 10) == 0:
                found[rl.version] = round(resident_mib(), 1)
    return {"steps": count, "rollouts_a_step": 64, "resident_mib": found}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each side")
    parser.add_argument("--steps", type=int, default=4, help="steps of each")
    parser.add_argument("--model", help="another model")
    parser.add_argument("--memory", action="store_true", help="measure the memory of 500 steps, and nothing else")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args(argv)
    if args.memory:
        with tempfile.TemporaryDirectory() as folder:
            show(memory(500, Path(folder) / "run") | {"machine": hardware()}, args.out)
        return
    model, result = args.model or str(cached("smollm2-135m")), {}
    for invariant in (False, True):
        seconds: dict[str, list[float]] = {"task": [], "agent": []}
        tokens: dict[str, list[Any]] = {}
        for number in range(args.rounds):
            for side, found in seconds.items():
                with tempfile.TemporaryDirectory() as folder:
                    run = steps(side, invariant, args.steps, Path(folder) / "run", model)
                    found.append(median(run.timings().to_pydict()["time/step"][1:]))
                    tokens[side] = run.rollouts(0)["token_ids"].to_pylist()
                print(f"batch_invariant {invariant}, round {number + 1}, {side}: {found[-1]:.2f} s a step", flush=True)
        both = {side: median(found) for side, found in seconds.items()}
        result["batch_invariant" if invariant else "usual"] = {
            "seconds_a_step": both,
            "overhead": both["agent"] / both["task"] - 1,
            "same_tokens": tokens["task"] == tokens["agent"],
        }
    show(result | {"machine": hardware()}, args.out)


if __name__ == "__main__":
    main()
