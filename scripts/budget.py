"""Fail if the project grew: a part of `make check`.

    python scripts/budget.py            # exit code 1 above a number of scripts/budget.json
    python scripts/budget.py --slice    # the same, but 800 lines above are allowed while a change is being made
    python scripts/budget.py --write    # write down what is there; no number may rise

All text files under version control count, docstrings and blank lines too, but for the list of English words; and the
circles among files and the imports against the order that scripts/circles.py lists, and the lines that a tiny run loads
(scripts/loaded.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from circles import against_the_order, circles, imports
from loaded import loaded

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "scripts" / "budget.json"
NOT_COUNTED = "src/hone/environments/words."
BINARY = {".parquet", ".png", ".jpg", ".gz", ".safetensors", ".gguf", ".woff2", ".ico"}
SLICE = 800


def measure() -> dict[str, int]:
    """Count lines of `src`, of `tests` and of Python elsewhere, bytes of Python in `src`, and words of `docs`."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and not name.startswith(NOT_COUNTED)]
    texts = {
        name: (ROOT / name).read_bytes()
        for name in names
        if (ROOT / name).is_file() and Path(name).suffix not in BINARY
    }
    lines = lambda folder: {name: text.count(b"\n") for name, text in texts.items() if name.startswith(folder)}  # noqa: E731
    src, tests, python = lines("src/"), lines("tests/"), lines("")
    imported = imports()
    docs = [text for name, text in texts.items() if name.startswith("docs/") and name.endswith(".md")]
    return {
        "lines of src": sum(src.values()),
        "bytes of Python in src": sum(len(texts[name]) for name in src if name.endswith(".py")),
        "lines of tests": sum(tests.values()),
        "lines of Python elsewhere": sum(
            python[n] for n in python.keys() - src.keys() - tests.keys() if n.endswith(".py")
        ),
        "words of docs": sum(len(text.split()) for text in docs),
        "circles of files": len([members for members in circles(imported) if len(members) > 2]),
        "imports against the order": len(against_the_order(imported)),
        "lines of hone that a run loads": sum(loaded().values()),
    }


def main(argv: list[str]) -> int:
    there, recorded = measure(), json.loads(RECORD.read_text()) if RECORD.exists() else {}
    slack = {name: SLICE * (name.startswith("lines") and argv == ["--slice"]) for name in there}
    above = [name for name, count in there.items() if count > recorded.get(name, count) + slack[name]]
    for name, count in there.items():
        print(f"{name:30} {count:>9,}  recorded {recorded.get(name, count):>9,}{'  too many' * (name in above)}")
    if above:
        print("The project only shrinks: delete as much as you add.")
        return 1
    if "--write" in argv:
        RECORD.write_text(json.dumps(there, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
