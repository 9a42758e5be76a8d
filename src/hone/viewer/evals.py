"""The pages of evaluations: the samples of one, and two of them example by example: what training changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from hone.errors import UserError
from hone.runs.reader import Run
from hone.viewer import conversation
from hone.viewer.card.measures import mcnemar
from hone.viewer.catalog import Entry, NotFound
from hone.viewer.diff import word_diff
from hone.viewer.query import PAGE
from hone.viewer.site import Site, whole
from hone.viewer.store import Row
from hone.viewer.tokens import plain

CHANGES = {
    "right": "turned right",
    "wrong": "turned wrong",
    "better": "more reward",
    "worse": "less reward",
    "same": "as before",
}
"""What can become of an example between two evaluations, in the order of the page."""


@dataclass(frozen=True)
class Side:
    """One of two evaluations: of a version of a run, or a run of `hone eval`."""

    label: str
    slug: str
    version: int | None
    rows: list[Row]


@dataclass(frozen=True)
class Pair:
    """A held-out example's completion in two evaluations."""

    before: Row
    after: Row
    change: str

    @property
    def gain(self) -> float:
        """By how much its reward rose."""
        return (self.after["reward"] or 0.0) - (self.before["reward"] or 0.0)


def read_eval(run: Run, version: int | None) -> list[Row]:
    """Read an evaluation; each row has all keys that the pages use. UserError if there is none or it is damaged."""
    try:
        rows = run.eval_rows(version)
    except OSError as error:
        raise UserError(f"the samples of this evaluation cannot be read ({error.strerror})") from None
    weights = run.info.get("reward_weights")
    return [_filled(i, row, weights if isinstance(weights, dict) else {}) for i, row in enumerate(rows)]


def _filled(place: int, row: dict[str, Any], weights: Mapping[str, float]) -> Row:
    made: Row = {"place": place, **row}
    for name in ("prompt", "completion"):
        made[name] = made.get(name) if conversation.is_messages(made.get(name)) else []
    for name in ("outcome", "detail", "answer", "stop_reason", "example_id"):
        made[name] = str(made.get(name) or "")
    for name in ("reward", "completion_tokens", "example", "rollout"):
        value = made.get(name)
        made[name] = value if isinstance(value, int | float) and math.isfinite(value) else None
    components = made.get("components")
    numbers = components.items() if isinstance(components, dict) else ()
    made["components"] = {name: value for name, value in numbers if isinstance(value, int | float)}
    made["weights"] = {name: weights[name] for name in made["components"] if name in weights}
    return made


def evaluation(site: Site, query: QueryParams, slug: str, version: str | None = None) -> str:
    """Show the samples of an evaluation: of a version of a run, or of a run of `hone eval`."""
    entry = site.catalog.entry(slug)
    run = Run(entry.path)
    number = None if version is None else whole("version", version)
    if number is not None:
        _check_version(entry, number, run.evals())
    elif not entry.is_evaluation:
        raise NotFound(f"{entry.name} is no evaluation: choose one of its versions' {run.evals() or ''}".rstrip())
    elif query.get("against"):
        return _against(site, query, entry)
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
    """Return what a template needs of a list of which it shows a page."""
    page = max(1, whole("page", query.get("page") or "1"))
    shown = found[(page - 1) * PAGE : page * PAGE]
    facts = {"query": query, "rows": shown, "page": page, "pages": math.ceil(len(found) / PAGE)}
    return facts | {"turns": conversation.turns, "asks": conversation.asks}


def _mean(rows: list[Row]) -> float | None:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return sum(rewards) / len(rewards) if rewards else None


def change(site: Site, query: QueryParams, slug: str, before: str, after: str) -> str:
    """Show two evaluations of a run side by side, the examples that turned right or wrong first."""
    entry = site.catalog.entry(slug)
    run, sides = Run(entry.path), []
    for version in (whole("version", before), whole("version", after)):
        _check_version(entry, version, run.evals())
        sides.append(Side(f"version {version}", slug, version, read_eval(run, version)))
    return _changed(site, query, entry, f"change/{sides[0].version}/{sides[1].version}/", sides)


def _against(site: Site, query: QueryParams, entry: Entry) -> str:
    """Show two runs of `hone eval` side by side: that of `against`, and this one."""
    other = site.catalog.entry(query["against"])
    if not other.is_evaluation:
        raise NotFound(f"{other.name} is no evaluation: choose a run of `hone eval`")
    sides = [Side(one.name, one.slug, None, read_eval(Run(one.path), None)) for one in (other, entry)]
    return _changed(site, query, entry, "eval/", sides)


def _changed(site: Site, query: QueryParams, entry: Entry, path: str, sides: list[Side]) -> str:
    kind = query.get("change", "")
    if kind not in ("", *CHANGES):
        raise UserError(f"change cannot be {kind[:50]!r}: it is one of {', '.join(CHANGES)}")
    pairs, lone = paired(sides[0].rows, sides[1].rows)
    counts = Counter(pair.change for pair in pairs)
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
        odds=_odds(pairs, counts),
        lone=lone,
        total=len(pairs),
        parts=_parts if query.get("diff") == "1" else None,
        **_page(query, [pair for pair in pairs if kind in ("", pair.change)]),
    )


def paired(before: list[Row], after: list[Row]) -> tuple[list[Pair], int]:
    """Return completions of the same example and number in both, changes first; and how many have no counterpart."""
    known = dict(zip(_keys(before), before, strict=True))
    both = [(known[key], row) for key, row in zip(_keys(after), after, strict=True) if key in known]
    pairs = [Pair(was, became, _change(was, became)) for was, became in both]
    order = list(CHANGES)
    pairs.sort(key=lambda pair: (order.index(pair.change), -abs(pair.gain), pair.after["place"]))
    return pairs, len(before) + len(after) - 2 * len(pairs)


def _keys(rows: list[Row]) -> list[tuple[str, Any, int]]:
    """Return example and number of each completion, and which it is of those that have both: a task may ask twice."""
    seen: Counter[tuple[str, Any]] = Counter()
    keys = []
    for row in rows:
        key = row["example_id"], row["rollout"]
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def _change(before: Row, after: Row) -> str:
    was_right, is_right = before["outcome"] == "correct", after["outcome"] == "correct"
    if was_right != is_right:
        return "right" if is_right else "wrong"
    if before["reward"] is None or after["reward"] is None or before["reward"] == after["reward"]:
        return "same"
    return "better" if after["reward"] > before["reward"] else "worse"


def _odds(pairs: list[Pair], counts: Mapping[str, int]) -> str:
    """Return what McNemar's exact test says; empty if no example turned, or of several completions of each, which are
    not independent of each other.
    """
    turned = counts["right"] + counts["wrong"]
    if not turned or any(pair.after["rollout"] for pair in pairs):
        return ""
    return f"p = {mcnemar(counts['right'], counts['wrong']):.2g}"


def _parts(pair: Pair) -> Any:
    texts = ["\n\n".join(conversation.text_of(m) for m in side["completion"]) for side in (pair.before, pair.after)]
    return word_diff(*texts)


def _check_version(entry: Entry, version: int, versions: list[int]) -> None:
    """Raise NotFound if the run has no samples of the evaluation of a version."""
    if version in versions:
        return
    if entry.is_evaluation:
        why = f"{entry.name} is a run of `hone eval`, which has one evaluation: its samples are compared on their page"
    elif entry.state.kind == "sft":
        why = f"{entry.name} is an SFT run: it is evaluated by its loss, which has no samples"
    elif not versions:
        why = "this run has no samples of evaluations: `orchestrator.eval` makes them"
    else:
        why = f"there is no evaluation of version {version}: there are those of {', '.join(map(str, versions))}"
    raise NotFound(why)
