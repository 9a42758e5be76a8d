"""A task of which half of all completions are right, whatever the model: there is always something to learn from."""

from pathlib import Path

PARITY = """
from hone.environments import Rubric, SingleTurnEnv


def load_environment():
    rows = [{"question": "x" * (i % 5) + str(i)} for i in range(40)]
    return SingleTurnEnv(id="parity", rubric=Rubric([even]), dataset=rows, eval_dataset=rows)


def even(completion) -> float:
    return float(sum(map(ord, completion[-1]["content"])) % 2)
"""


def add_parity(folder: Path) -> None:
    """Puts the task where commands that run in `folder` find it, as `parity`."""
    (folder / "environments").mkdir()
    (folder / "environments" / "parity.py").write_text(PARITY)
