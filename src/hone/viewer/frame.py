"""What the pages of a run share: its tabs, and the numbers in their addresses."""

from __future__ import annotations

from typing import Any

from hone.viewer.catalog import Entry, NotFound
from hone.viewer.site import Site
from hone.viewer.store import Store


def run_frame(site: Site, entry: Entry, store: Store, at: int | None = None) -> dict[str, Any]:
    """What templates need for the links between the pages of a run; `at` is the step that a page is about."""
    steps = site.kept(entry.slug, store.steps())
    return {"entry": entry, "slug": entry.slug, "steps": steps, "evals": store.run.evals(), "at": at}


def step_frame(site: Site, entry: Entry, store: Store, step: int) -> dict[str, Any]:
    """The same for a page about a step. NotFound if its completions are not there."""
    frame = run_frame(site, entry, store, step)
    if step not in frame["steps"]:
        raise NotFound(no_step(step, frame["steps"]))
    return frame


def whole(name: str, text: str) -> int:
    """A number in an address. NotFound if it is none."""
    if not text.isdecimal() or len(text) > 9:
        raise NotFound(f"{name} is {_short(text)}, which is no number")
    return int(text)


def step_in(text: str, steps: list[int]) -> int:
    """The step in the address of a page about one of `steps`. NotFound, with their range, if it is no number."""
    try:
        return whole("step", text)
    except NotFound as error:
        raise NotFound(f"{error}: the run has steps {steps[0]} to {steps[-1]}" if steps else str(error)) from None


def _short(text: str) -> str:
    return repr(text if len(text) <= 20 else f"{text[:20]}…")


def no_step(step: int, steps: list[int]) -> str:
    """Why there is no page of a step, where there are those of `steps`."""
    if not steps:
        return "this run has no completions: an RL run has them, once its first step is done"
    return f"there are no completions of step {step}: the run has those of {steps[0]} to {steps[-1]}"
