"""Real runs, a real `hone view`, and a real browser: made once for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hostile
import pytest
import viewer_run
from looking import FLAGS, STEPS, Looks, serving

from hone.cli import call

ROOT = Path(__file__).resolve().parents[4]
EXAMPLES = ROOT / "examples" / "reverse_text"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: the quickstart in short, an evaluation, one of many steps, one of hostile texts."""
    folder = tmp_path_factory.mktemp("browser") / "runs"
    sft, rl = folder / "quickstart" / "sft", folder / "quickstart" / "rl"
    hone("sft", "@", EXAMPLES / "tiny_sft.toml", "--max-steps", 250, "--output-dir", sft)
    model = sft / "weights" / "step_250"
    flags = ["--max-steps", STEPS, "--orchestrator.eval.interval", 10, "--orchestrator.eval.num-examples", 64]
    flags += [
        "--predict",
        "reward/mean@39 > 0.4 p=0.7",
        "--predict",
        "reward/mean@39 > 0.9 p=0.1",
        "--ckpt.interval",
        20,
    ]
    hone("rl", "@", EXAMPLES / "tiny.toml", "--model.name", model, *flags, "--output-dir", rl)
    made = rl / "weights" / f"step_{STEPS}"
    hone("eval", "reverse-text", "-m", made, "-n", 16, "--output-dir", folder / "evaluation")
    viewer_run.make(folder / "many", steps=200, completions=32)
    hostile.make(folder / hostile.NAME)
    return folder


def hone(*words: Any) -> None:
    name, *rest = map(str, words)
    assert call(name, [*rest, "--display", "none"] if name in ("sft", "rl") else rest, f"hone {name}") == 0


@pytest.fixture(scope="session")
def url(root: Path) -> Iterator[str]:
    with serving(root) as address:
        yield address


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Debian's chromium, without a window. Playwright's own browsers would be another download."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program, "the tests in a browser need chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def looks(chromium: Any) -> Iterator[Looks]:
    """Visitors; at the end nothing may have gone wrong on any page, nor been asked of another machine."""
    made = Looks(chromium)
    yield made
    made.close()
    assert made.troubles == []


@pytest.fixture
def page(looks: Looks) -> Any:
    """A visitor's page, 1280 pixels wide, light."""
    return looks.page(color_scheme="light")
