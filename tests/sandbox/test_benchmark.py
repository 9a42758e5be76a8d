"""The benchmark of the sandbox runs, on a few calls."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "sandbox.py"


def test_the_benchmark_measures_all_variants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("sandbox_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    out = tmp_path / "results" / "out.json"
    benchmark.main(["--calls", "3", "--at-once", "2", "--out", str(out)])
    result = json.loads(out.read_text())
    assert capsys.readouterr().out.endswith(json.dumps(result, indent=2) + "\n")
    assert set(result["milliseconds"]) == {"python", "bubblewrap", "sandbox"}
    assert all(0 < figures["median"] <= figures["p95"] for figures in result["milliseconds"].values())
    assert set(result["calls_per_second"]) == {"2"} and result["calls_per_second"]["2"] > 0
