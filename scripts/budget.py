"""Print the lines of each room beside its budget: part of `make check`, which a room over its budget does not fail.

Counted is every text file under src, environments and scripts, but for the word list and its licence; docstrings and
blank lines count.
"""

import subprocess
from collections import Counter
from pathlib import Path

BUDGETS = {  # lines; rooms that share a budget stand together
    "cli, commands": 2500,
    "config": 1300,
    "model": 2400,
    "inference": 3400,
    "trainer, algorithms": 2400,
    "orchestrator, transport, composition": 3600,
    "environments": 2900,
    "evaluation": 1000,
    "runs": 3500,
    "reproduce": 1800,
    "audit": 2500,
    "planning": 1800,
    "viewer, pages": 5000,
    "grading": 2300,
}
SRC, FILES = 38000, 280
NOT_COUNTED = "src/hone/environments/words."


def room_of(path: str) -> str:
    """Return the room of a file: a package of hone, a module beside the packages, or a folder beside src."""
    parts = Path(path).parts
    return Path(parts[2]).stem if parts[0] == "src" else f"{parts[0]}/"


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "src", "environments", "scripts"], capture_output=True, text=True)
    files = [path for path in listed.stdout.split() if not path.startswith(NOT_COUNTED) and Path(path).exists()]
    lines = Counter()
    for path in files:
        lines[room_of(path)] += len(Path(path).read_text(encoding="utf-8").splitlines())
    for rooms, budget in BUDGETS.items():
        count = sum(lines.pop(room, 0) for room in rooms.split(", "))
        print(f"{rooms:38} {count:6,} of {budget:6,} lines{'  OVER' if count > budget else ''}")
    for room, count in sorted(lines.items()):
        print(f"{room:38} {count:6,}")
    in_src = [path for path in files if path.startswith("src/")]
    total = sum(len(Path(path).read_text(encoding="utf-8").splitlines()) for path in in_src)
    print(f"{'src':38} {total:6,} of {SRC:6,} lines, {len(in_src)} of {FILES} files")


if __name__ == "__main__":
    main()
