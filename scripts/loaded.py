"""Count the lines of hone that a tiny run of `hone.RL` loads, to its end.

python scripts/loaded.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = r"""
import sys
import hone
small = {"max_steps": 2, "display": "none", "output_dir": sys.argv[2], "model.name": "hone/tiny"}
small |= {"orchestrator.batch_size": 16, "orchestrator.eval.num_examples": 4}
with hone.RL(sys.argv[1], **small) as rl:
    while not rl.done:
        rl.step()
print(*(module.__file__ for name, module in sys.modules.items() if name.split(".")[0] == "hone"), sep="\n")
"""


def loaded() -> dict[Path, int]:
    """Return the lines of each file that the run loads."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", RUN, str(ROOT / "examples/reverse_text/tiny.toml"), f"{folder}/run"]
        env = os.environ | {"CUDA_VISIBLE_DEVICES": ""}  # on a GPU it would load more
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    files = [Path(line) for line in done.stdout.splitlines() if line.endswith(".py")]
    return {file: file.read_bytes().count(b"\n") for file in sorted(files)}


if __name__ == "__main__":
    files = loaded()
    for file, lines in files.items():
        print(f"{lines:>6} {file.relative_to(ROOT)}")
    print(f"{sum(files.values()):,} lines in {len(files)} files")
