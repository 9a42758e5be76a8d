"""The pages of evaluations: samples of one evaluation, and a comparison of two evaluations, example by example."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

from starlette.datastructures import QueryParams

from hone.errors import UserError
from hone.extensions.viewer import conversation
from hone.extensions.viewer.card.measures import mcnemar
from hone.extensions.viewer.catalog import Entry, NotFound
from hone.extensions.viewer.query import PAGE
from hone.extensions.viewer.site import Site, whole
from hone.extensions.viewer.store import Row
from hone.extensions.viewer.tokens import plain
from hone.runs.view import RunView

CHANGES = {
    "right": "turned right",
    "wrong": "turned wrong",
    "better": "more reward",
    "worse": "less reward",
    "same": "as before",
}
"""Ways an example changes between two evaluations, in the page's order."""


class Side(NamedTuple):
    """One of two evaluations. `version` is the evaluated version; None for `hone eval`."""

    label: str
    slug: str
    version: int | None
    rows: list[Row]


class Pair(NamedTuple):
    """Two completions of a held-out example, one from each evaluation."""

    before: Row
    after: Row
    change: str


def read_eval(run: RunView, version: int | None) -> list[Row]:
    """Read an evaluation's rows, each with all keys that pages use. Raises UserError if they can't be read."""
    try:
        rows = run.eval_rows(version)
    except OSError as error:
        raise UserError(f"the samples of this evaluation cannot be read ({error.strerror})") from None
    weights = run.info.get("reward_weights")
    known = weights if isinstance(weights, dict) else {}
    found = []
    for place, row in enumerate(rows):
        made: Row = {"place": place, **row}
        for name in ("prompt", "completion"):
            made[name] = made.get(name) if conversation.is_messages(made.get(name)) else []
        for name in ("outcome", "detail", "answer", "stop_reason", "example_id"):
            made[name] = str(made.get(name) or "")
        for name in ("reward", "completion_tokens", "example", "rollout"):
            value = made.get(name)
            made[name] = value if isinstance(value, int | float) and math.isfinite(value) else None
        parts = made.get("components")
        numbers = parts.items() if isinstance(parts, dict) else ()
        made["components"] = {name: value for name, value in numbers if isinstance(value, int | float)}
        made["weights"] = {name: known[name] for name in made["components"] if name in known}
        found.append(made)
    return found


def evaluation(site: Site, query: QueryParams, slug: str, version: str | None = None) -> str:
    """Show samples of a run's version, or of a `hone eval` run; its query `against` names another to compare with."""
    entry = site.catalog.entry(slug)
    run, number = entry.state.files, None if version is None else whole("version", version)
    if number is not None:
        _check_version(entry, number, run.evals())
    else:
        _check_evaluation(entry)
        if query.get("against"):
            _check_evaluation(other := site.catalog.entry(query["against"]))
            sides = [Side(one.name, one.slug, None, read_eval(one.state.files, None)) for one in (other, entry)]
            return _compare(site, query, entry, "eval/", sides)
    rows = read_eval(run, number)
    outcome, one = query.get("outcome", ""), query.get("one", "")
    others = [] if number is not None else [e for e in site.catalog.entries() if e.is_evaluation and e.slug != slug]
    return site.run_page(
        "eval.html",
        entry,
        "eval/" if number is None else f"eval/{number}/",
        f"Evaluation {entry.name}" if number is None else f"Evaluation of version {number} of {entry.name}",
        version=number,
        total=len(rows),
        one=one,
        counts=dict(Counter(row["outcome"] for row in rows).most_common()),
        mean=_mean(rows),
        plain=plain,
        others=others,
        **_page(query, [row for row in rows if outcome in ("", row["outcome"]) and one in ("", str(row["place"]))]),
    )


def _page(query: QueryParams, found: list[Any]) -> dict[str, Any]:
    page = max(1, whole("page", query.get("page") or "1"))
    shown = found[(page - 1) * PAGE : page * PAGE]
    facts = {"query": query, "rows": shown, "page": page, "pages": math.ceil(len(found) / PAGE)}
    return facts | {"turns": conversation.turns, "asks": conversation.asks}


def _mean(rows: list[Row]) -> float | None:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return sum(rewards) / len(rewards) if rewards else None


def change(site: Site, query: QueryParams, slug: str, before: str, after: str) -> str:
    """Show two evaluations of a run side by side; examples that became right or wrong come first."""
    entry = site.catalog.entry(slug)
    run, sides = entry.state.files, []
    for version in (whole("version", before), whole("version", after)):
        _check_version(entry, version, run.evals())
        sides.append(Side(f"version {version}", slug, version, read_eval(run, version)))
    return _compare(site, query, entry, f"change/{sides[0].version}/{sides[1].version}/", sides)


def _compare(site: Site, query: QueryParams, entry: Entry, path: str, sides: list[Side]) -> str:
    kind = query.get("change", "")
    if kind not in ("", *CHANGES):
        raise UserError(f"change cannot be {kind[:50]!r}: give one of {', '.join(CHANGES)}")
    pairs, lone = paired(sides[0].rows, sides[1].rows)
    counts = Counter(pair.change for pair in pairs)
    turned, several = counts["right"] + counts["wrong"], any(pair.after["rollout"] for pair in pairs)
    common = [[pair.before for pair in pairs], [pair.after for pair in pairs]]
    return site.run_page(
        "change.html",
        entry,
        path,
        f"{entry.name}: {sides[0].label} and {sides[1].label}",
        sides=sides,
        kinds=CHANGES,
        counts={name: counts[name] for name in CHANGES},
        right=[sum(row["outcome"] == "correct" for row in side) for side in common],
        means=[_mean(side) for side in common],
        # several completions of an example are not independent
        odds=f"p = {mcnemar(counts['right'], counts['wrong']):.2g}" if turned and not several else "",
        lone=lone,
        total=len(pairs),
        **_page(query, [pair for pair in pairs if kind in ("", pair.change)]),
    )


def paired(before: list[Row], after: list[Row]) -> tuple[list[Pair], int]:
    """Pair completions by example and rollout. Return pairs, changed ones first, and the count of lone completions."""
    known = _by_example(before)
    both = [(known[key], row) for key, row in _by_example(after).items() if key in known]
    pairs = [Pair(was, became, _change(was, became)) for was, became in both]

    def order(pair: Pair) -> tuple[int, float, int]:
        gain = (pair.after["reward"] or 0.0) - (pair.before["reward"] or 0.0)
        return list(CHANGES).index(pair.change), -abs(gain), pair.after["place"]

    return sorted(pairs, key=order), len(before) + len(after) - 2 * len(pairs)


def _by_example(rows: list[Row]) -> dict[Any, Row]:
    """Return completions by (task, example, rollout, count). The count is for a task that repeats an example."""
    seen: Counter[Any] = Counter()
    found = {}
    for row in rows:
        key = row.get("env"), row["example_id"], row["rollout"]
        found[*key, seen[key]] = row
        seen[key] += 1
    return found


def _change(before: Row, after: Row) -> str:
    was_right, is_right = before["outcome"] == "correct", after["outcome"] == "correct"
    if was_right != is_right:
        return "right" if is_right else "wrong"
    if before["reward"] is None or after["reward"] is None or before["reward"] == after["reward"]:
        return "same"
    return "better" if after["reward"] > before["reward"] else "worse"


def _check_evaluation(entry: Entry) -> None:
    if not entry.is_evaluation:
        raise NotFound(f"{entry.name} is not an evaluation: choose a run of `hone eval`, or an evaluated version")


def _check_version(entry: Entry, version: int, versions: list[int]) -> None:
    if not versions:
        raise NotFound(f"{entry.name} has no samples of evaluations: RL runs have them with `orchestrator.eval`")
    if version not in versions:
        has = ", ".join(map(str, versions))
        raise NotFound(f"there is no evaluation of version {version}: evaluated versions are {has}")
