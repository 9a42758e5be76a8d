"""Seed one-line faults into a copy of the project and check that its tests catch each one: `make faults`.

Each file `tests/faults/ROOM.toml` lists faults as tables:

    [[fault]]
    file = "src/hone/algorithms/losses/clip.py"
    old = "one line, or a part of one, that occurs once in the file"
    new = "the same line, wrong"
    tests = ["tests/algorithms/test_losses.py::test_name"]

The named tests must pass on the copy as it is, and at least one of them must fail with the fault in place. Exit code 1
if a fault is not caught, or no longer fits the code.

    python tests/faults/run.py [ROOM ...] [--jobs 2]
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest
COPIED = ("src", "environments", "examples", "tests", "benchmarks", "scripts", "docs")


def faults_of(rooms: list[str]) -> list[dict]:
    """Read the tables of the rooms, or of all of them. Raises ValueError for a fault that does not fit its file."""
    faults = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        if rooms and path.stem not in rooms:
            continue
        for fault in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            found = (ROOT / fault["file"]).read_text(encoding="utf-8").count(fault["old"])
            if found != 1:
                raise ValueError(f"{path.name}: {fault['old']!r} occurs {found} times in {fault['file']}, not once")
            faults.append(fault)
    return faults


def run_tests(copy: Path, tests: list[str], deadline: float | None = None) -> tuple[int, str]:
    """Run tests in a copy of the project; return pytest's exit code (FAILED at the deadline) and its last lines."""
    env = dict(os.environ, PYTHONPATH=f"{copy / 'src'}:{copy / 'environments'}", OMP_NUM_THREADS="1")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not vllm", *tests]
    try:
        done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=deadline)
    except subprocess.TimeoutExpired:
        return FAILED, f"no end within {deadline:.0f} s"
    return done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])


def copy_project(into: Path) -> Path:
    """Copy what the tests need, not the environments and outputs that lie beside it."""
    for name in COPIED:
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, into / path.name)
    return into


def try_fault(fault: dict) -> str | None:
    """Return None if a test fails because of the fault, else what happened instead."""
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        copy = copy_project(Path(folder))
        path = copy / fault["file"]
        path.write_text(path.read_text(encoding="utf-8").replace(fault["old"], fault["new"]), encoding="utf-8")
        code, end = run_tests(copy, fault["tests"], deadline=600)
    return None if code == FAILED else f"pytest ended with {code}\n{end}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", help="tables to try, such as inference; all of them if none is named")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    try:
        faults = faults_of(args.rooms)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    tests = sorted({test for fault in faults for test in fault["tests"]})
    print(
        f"{len(faults)} faults; first the {len(tests)} tests that should catch them, on the code as it is", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="fault-") as folder:
        code, end = run_tests(copy_project(Path(folder)), tests)
    if code != PASSED:
        print(end)
        return 1
    missed = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for fault, problem in zip(faults, pool.map(try_fault, faults), strict=True):
            missed += problem is not None
            print(f"{'MISSED' if problem else 'caught'}  {fault['file']}: {fault['new'].strip()}", flush=True)
            if problem:
                print(problem)
    print(f"{len(faults) - missed} of {len(faults)} faults caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
