"""Pages that keep up with what happens to a run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from looking import metrics_of, serving
from run_folders import held, write_lines

from hone.runs.files import write_file, write_json

pytestmark = pytest.mark.browser

REWARD = '[data-chart="reward"]'


@pytest.fixture(scope="module")
def folder(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is at work and has taken no step."""
    folder, much = tmp_path_factory.mktemp("following") / "runs", ("rollouts", "weights", "checkpoints", "tokens")
    young = shutil.copytree(root / "quickstart" / "rl", folder / "young", ignore=shutil.ignore_patterns(*much))
    write_json(young / "run.json", json.loads((young / "run.json").read_text()) | {"status": "running", "ended": None})
    for name in ("metrics", "timings"):
        write_file(young / f"{name}.jsonl", "")
    return folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with serving(folder) as address:
        yield address


def test_a_run_without_a_step_gets_its_curves_is_rolled_back_and_ends(
    page: Any, url: str, root: Path, folder: Path
) -> None:
    run, lines = folder / "young", metrics_of(root / "quickstart" / "rl")

    def take(steps: int, first: int = 0) -> None:
        write_lines(run / "metrics.jsonl", lines[first:steps], "a")
        write_lines(run / "timings.jsonl", [{"step": s, "time/step": 1.0} for s in range(first, steps)], "a")

    def drawn(points: int) -> None:
        page.wait_for_function(f"() => document.querySelector('{REWARD}')?.data?.[0].x.length === {points}")

    def shown(*words: str) -> None:
        look = "words => words.every((one) => document.querySelector('#words').innerText.includes(one))"
        page.wait_for_function(look, arg=list(words))

    with held(run) as process:
        page.goto(f"{url}/run/young/?smooth=1")
        page.evaluate("window.notReloaded = true")
        assert page.locator("#no-charts").is_visible() and page.locator("#live").inner_text() == "live"
        take(3)
        drawn(3)
        assert page.locator("#no-charts").count() == 0
        shown("running", "3 of 40")
        take(20, 3)
        drawn(20)
        for name in ("metrics", "timings"):  # a resume from step 10
            kept = (run / f"{name}.jsonl").read_text().splitlines(keepends=True)[:10]
            write_file(run / f"{name}.jsonl", "".join(kept))
        drawn(10)
        take(12, 10)
        drawn(12)
        rewards = page.evaluate(f"document.querySelector('{REWARD}').data[0].y")
        assert rewards == pytest.approx([line["reward/mean"] for line in lines[:12]])
        write_json(run / "run.json", json.loads((run / "run.json").read_text()) | {"status": "stopped"})
        process.terminate()
        process.wait()
        page.wait_for_selector("#live", state="hidden")
    shown("stopped", "12 of 40")
    assert page.evaluate("window.notReloaded") is True
