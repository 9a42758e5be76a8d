"""What a study takes beside its runs: the clock from its command to its page, against the clock of its runs.

    .venv/bin/python benchmarks/study_overhead.py studies/order.toml --out benchmarks/results/study_overhead.json

In a new folder. Cores that are idle at the end, while the last run is at work, count as overhead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recording import show

from hone.environments.workers import cores
from hone.runs.provenance import hardware


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, help="a study's file")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = ["study", "@", str(args.study), "--seeds", str(args.seeds), "--jobs", str(args.jobs)]
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hone.cli", *words, "--output-dir", folder], check=True)
        took = time.perf_counter() - began
        runs = [json.loads(line)["seconds"] for line in (Path(folder) / "seconds.jsonl").read_text().splitlines()]
    share = took * args.jobs / sum(runs) - 1
    result = {"study": str(args.study), "runs": len(runs), "jobs": args.jobs, "seconds": round(took, 2)}
    result |= {"seconds_of_runs": round(sum(runs), 2), "overhead": round(share, 4), "machine": hardware()}
    show(result, args.out)


if __name__ == "__main__":
    main()
