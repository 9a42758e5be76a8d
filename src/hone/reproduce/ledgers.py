"""The ledger in each checkpoint against the rollouts: all draws of the steps before it, and no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hone.errors import UserError
from hone.runs import Run
from hone.runs.draws import MEASURED, drawn
from hone.runs.rollouts import rollouts_file

Entry = dict[str, Any]


def check_ledgers(run: Run, ledgers: Mapping[int, Any], spoilt: set[int]) -> Iterator[tuple[str, str]]:
    """(file, problem) of all that does not fit. `ledgers` are by step; rollouts of `spoilt` steps are not read."""
    before, unread = max(ledgers), set(spoilt)
    entries: list[Entry] = []
    for step in run.rollout_steps():
        if step < before and step not in spoilt:
            try:
                entries += drawn(run, step)
            except (UserError, KeyError, TypeError):  # without hashes.jsonl nothing else has looked at it
                unread.add(step)
                yield rollouts_file(step), "is not a file of rollouts that can be read"
    for step, ledger in ledgers.items():
        if problem := _problem(ledger, step, entries, unread):
            yield f"checkpoints/step_{step}/state.json", problem


def _problem(ledger: Any, step: int, entries: list[Entry], unread: set[int]) -> str:
    """Why this is not the ledger before `step`; "" if it is, as far as rollouts could be read."""
    if not isinstance(ledger, list) or not all(isinstance(entry, dict) and "draw" in entry for entry in ledger):
        return "it has no ledger of draws"
    if [entry["draw"] for entry in ledger] != list(range(len(ledger))):
        return "the draws in its ledger are not in order, each once"
    expected = {entry["draw"]: entry for entry in entries if entry["step"] < step}
    drawn_before: set[str] = set()
    for draw, entry in enumerate(ledger):
        seen_before = entry.get("example_id") in drawn_before
        drawn_before.add(entry.get("example_id"))
        if entry.get("step") in unread:
            continue
        if _is_passed_over(entry) and draw not in expected:
            if not seen_before or draw + 1 == len(ledger) or ledger[draw + 1].get("step") != entry.get("step"):
                return f"draw {draw} is in its ledger as {_facts(entry)}, which no curriculum passes over"
            continue
        if draw not in expected:
            return f"draw {draw} is in its ledger as {_facts(entry)}, and in no rollouts of the steps before it"
        measured = {name: value for name, value in expected[draw].items() if name not in MEASURED or name in entry}
        if measured != entry:
            return f"draw {draw} is in its ledger as {_facts(entry)}, in the rollouts as {_facts(measured)}"
    if missing := sorted(draw for draw in expected if draw >= len(ledger)):
        facts = _facts({name: expected[missing[0]][name] for name in expected[missing[0]] if name not in MEASURED})
        return f"draw {missing[0]} is in the rollouts as {facts}, and not in its ledger"
    return ""


def _is_passed_over(entry: Entry) -> bool:
    """A draw of a retired example: nothing was sampled, so there are no rollouts of it."""
    return entry.get("state") == "retired" and entry.get("tokens") == 0 and not entry.keys() & set(MEASURED)


def _facts(entry: Entry) -> str:
    told = (entry.get("example_id"), entry.get("step"), entry.get("state"), entry.get("tokens"))
    solved = f", {entry['solved']} of {entry.get('graded')} solved" if "solved" in entry else ""
    return "example {} of step {}, {}, {} tokens".format(*told) + solved
