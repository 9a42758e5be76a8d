"""`benchmarks/gpu/run.py` to its end on the fake GPU, in toy shapes, each stage with the packages that it names.

Its table of stages has two for some functions, one a shape; of those, one is run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.device
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SCRIPT = ROOT / "benchmarks/gpu/run.py"
LIGHT = ("torch", "numpy", "safetensors", "tokenizers", "transformers")
MACHINE = ("httpx", "pyarrow", "scipy", "rich", "jinja2")
WHEELS = [line for line in (ROOT / "benchmarks/gpu/wheels.txt").read_text().splitlines() if line[0] != "#"]
PLAIN = ["parity", "sampling qwen2.5-1.5b", "training qwen2.5-1.5b", "update qwen3-0.6b", "transformers qwen3-0.6b"]
PLAIN += ["compiled sampling qwen3-0.6b", "compiled transformers qwen3-0.6b"]
RUNS = ["rl qwen3-0.6b", "quickstart", "modes", "resume"]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(names: tuple[str, ...] | list[str], without: set[str]) -> Iterator[Distribution]:
    """These packages, and what they require on this machine, however far."""
    seen, waiting = set(map(normal, without)), list(names)
    while waiting:
        if (name := normal(waiting.pop())) in seen:
            continue
        seen.add(name)
        found = distribution(name)
        yield found
        required = map(Requirement, found.requires or [])
        waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]


def bare_python(folder: Path, packages: Iterator[Distribution]) -> Path:
    """A Python that sees only these packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in packages:
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin/python"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the script writes where there are the packages of the first stages, and where there are those of all."""
    folder = tmp_path_factory.mktemp("gpu")
    few = needed(LIGHT, without={*WHEELS} - {"typing-extensions"})
    pythons = {
        "few": (bare_python(folder / "few", few), ["modes", *PLAIN]),
        "all": (bare_python(folder / "all", needed([*LIGHT, *MACHINE, *WHEELS], without=set())), RUNS),
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE / "on_fake_gpu")}
    running = {}
    for name, (python, stages) in pythons.items():
        command = [str(python), str(SCRIPT), "--tiny", "--out", str(folder / name / "out"), "--stages", *stages]
        running[name] = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    printed = {name: process.communicate()[0] for name, process in running.items()}
    assert all(process.returncode == 0 for process in running.values()), printed
    return {name: json.loads((folder / name / "out/nvidia-h200.json").read_text()) for name in pythons}


def test_stages_run_to_their_end_with_the_packages_that_they_need(records: dict[str, dict[str, Any]]) -> None:
    few, runs = records["few"]["stages"], records["all"]["stages"]
    ended = {name: (stage["status"], stage.get("end_of_log")) for name, stage in (few | runs).items()}
    assert ended == {name: ("ok", None) for name in [*PLAIN, *RUNS]}
    figures = {name: stage["figures"] for name, stage in (few | runs).items()}
    for family in ("qwen3", "qwen2", "llama"):
        assert figures["parity"]["logits"][family]["hone fp32 - transformers fp32"] <= 1e-4
    for depth in figures["parity"]["gap"].values():
        for precision in depth.values():
            assert set(precision) == {"graphs", "plain"}
            assert all(gap["within"] and gap["tokens"] == 20 for gap in precision.values())
    for name, variants in (("sampling qwen2.5-1.5b", 3), ("compiled sampling qwen3-0.6b", 2)):
        for batch in figures[name]["batches"].values():
            assert len(batch) == variants and all(one["share_of_limit"] > 0 for one in batch.values())
    assert figures["sampling qwen2.5-1.5b"]["ragged"]["decoded_tokens_per_second"] > 0
    for segments in figures["training qwen2.5-1.5b"]["segments"].values():
        assert len(segments) == 3 and all(one["sft"]["mfu"] > 0 < one["rl"]["mfu"] for one in segments.values())
    assert figures["training qwen2.5-1.5b"]["segments"]["4 x 16"]["bf16"]["head_share"] > 0
    for update in figures["update qwen3-0.6b"].values():
        assert update["load_seconds"] > 0 < update["swap_seconds"]
    for name in ("transformers qwen3-0.6b", "compiled transformers qwen3-0.6b"):
        (rate, *_) = [one["tokens_per_second"] for batch in figures[name]["batches"].values() for one in batch.values()]
        assert rate > 0
    for name, variants in (("rl qwen3-0.6b", 2), ("modes", 3)):
        steps = figures[name]["steps"]
        assert len(steps) == variants and all(one["completion_tokens"] > 5 for one in steps.values())
        assert all(one["phases"]["time/train"] > 0 for one in steps.values())
        assert all(len(one["captures"]) == 2 and one["planned_bytes"] > 0 for one in steps.values())
    assert set(figures["modes"]["cost"]) == {"default", "deterministic", "batch-invariant"}
    resumed = figures["resume"]
    assert resumed["exact"] and resumed["updates"] == 4 and resumed["killed_after_steps"] < 4
    assert set(figures["quickstart"]) >= {"after SFT", "after SFT + RL"}


def test_a_stage_that_fails_is_recorded_and_the_rest_goes_on(records: dict[str, dict[str, Any]]) -> None:
    """Here for want of a package: a stage of runs, with the packages of the first stages only."""
    stages = records["few"]["stages"]
    failed = stages.pop("modes")
    assert failed["status"] == "failed" and "No module named 'pydantic" in "\n".join(failed["end_of_log"])
    assert list(stages)[-1] == "compiled transformers qwen3-0.6b" and stages[list(stages)[-1]]["status"] == "ok"
    assert str(ROOT) not in json.dumps(records)
