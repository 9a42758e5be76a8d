"""Pass-rate profile: how often a model solves each training example, to train on useful ones only.

    hone eval gsm8k -m MODEL --profile gsm8k.parquet -n 2000 -r 8
    hone rl ... --orchestrator.env.profile gsm8k.parquet --orchestrator.env.pass-rate '[0.1, 0.9]'

The file has a row for each example: `example_id`, `graded` and `correct` completions, `pass_rate`, and `low` and `high`
of its 95 % interval (Wilson's). A group in which all completions pass, or all fail, has no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hone.config.tasks import TaskConfig
from hone.environments import Environment
from hone.environments.environment import Split
from hone.errors import UserError, first_line
from hone.evaluation.intervals import wilson
from hone.evaluation.result import EvalResult
from hone.runs.files import write_file
from hone.types import Outcome


def pass_rates(result: EvalResult) -> list[dict[str, Any]]:
    rows = []
    for samples in filter(None, result.by_example):
        graded, correct = len(samples), sum(sample.score.outcome is Outcome.CORRECT for sample in samples)
        ends = wilson(correct, graded)
        counts = {"example_id": samples[0].example.id, "graded": graded, "correct": correct}
        rows.append(counts | {"pass_rate": correct / graded, "low": ends.low, "high": ends.high})
    return rows


def write_profile(path: Path, result: EvalResult) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    written = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(pass_rates(result)), written)
    write_file(path, written.getvalue().to_pybytes())


def train_within(env: Environment, task: TaskConfig) -> None:
    """Train on the examples of `env` with a pass rate in `task.profile` within `task.pass_rate`.

    The first use of the split reads the profile and sets `env.left_out`. It raises UserError if the profile can't be
    read, is of another task, or leaves no example.
    """
    assert task.profile and task.pass_rate
    path, (least, most) = task.profile.expanduser(), task.pass_rate

    def choose(split: Split) -> Sequence[int]:
        measured = _read(path)
        rates = [measured.get(example.id) for example in split]
        used = [i for i, rate in enumerate(rates) if rate is not None and least <= rate <= most]
        known = sum(rate is not None for rate in rates)
        if not known:
            raise UserError(
                f"orchestrator.env.profile = {path} has no training example of {env.id} with its arguments: write "
                f"a profile with `hone eval {env.id} -m MODEL --profile FILE`"
            )
        if not used:
            raise UserError(
                f"no training example has a pass rate from {least:g} to {most:g} in {path}: widen "
                "orchestrator.env.pass_rate, or measure more examples"
            )
        env.left_out = (
            f"{len(used):,} of {len(rates):,} training examples are used: {known - len(used):,} have a pass rate below "
            f"{least:g} or above {most:g} in {path.name}, {len(rates) - known:,} are not in it"
        )
        return used

    env.restrict("train", choose)


def _read(path: Path) -> dict[str, float]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        raise UserError(
            f"orchestrator.env.profile = {path} does not exist: `hone eval ENV -m MODEL --profile FILE` writes one"
        )
    try:
        table = pq.read_table(path, columns=["example_id", "pass_rate"])
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"orchestrator.env.profile = {path} is no profile that `hone eval` wrote ({first_line(error)})"
        ) from None
    return dict(zip(table["example_id"].to_pylist(), table["pass_rate"].to_pylist(), strict=True))
