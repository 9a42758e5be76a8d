"""The pages of evaluations: the samples of one, and two of them example by example: what training changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hone.errors import UserError
from hone.runs.reader import Run
from hone.viewer import conversation
from hone.viewer.blocks import plain
from hone.viewer.card.paired import mcnemar, odds_words
from hone.viewer.catalog import Entry, NotFound
from hone.viewer.damage import evaluation_damage
from hone.viewer.diff import word_diff
from hone.viewer.frame import run_frame, whole
from hone.viewer.query import PAGE
from hone.viewer.site import Site
from hone.viewer.store import Row, Store

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
    """The rows of an evaluation, each with all keys that the pages use. UserError if there is none or it is damaged."""
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


def evaluation(site: Site, query: Mapping[str, str], slug: str, version: str | None = None) -> str:
    """The samples of an evaluation: of a version of a run, or of a run of `hone eval`."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    number = None if version is None else whole("version", version)
    frame = run_frame(site, entry, store)
    if number is not None and number not in frame["evals"]:
        raise NotFound(_no_eval(entry, number, frame["evals"]))
    if number is None and not entry.is_evaluation:
        raise NotFound(f"{entry.name} is no evaluation: choose one of its versions' {frame['evals'] or ''}".rstrip())
    if number is None and query.get("against"):
        return _against(site, query, frame, entry)
    rows = read_eval(store.run, number)
    outcome, one = query.get("outcome", ""), query.get("one", "")
    shown = [row for row in rows if outcome in ("", row["outcome"]) and one in ("", str(row["place"]))]
    page = max(1, whole("page", query.get("page") or "1"))
    title = f"Evaluation of version {number} of {entry.name}" if number is not None else f"Evaluation {entry.name}"
    return site.page(
        "eval.html",
        f"run/{slug}/eval/" + ("" if number is None else f"{number}/"),
        title,
        **frame,
        version=number,
        damage="" if number is None else evaluation_damage(store.run, number),
        rows=shown[(page - 1) * PAGE : page * PAGE],
        page=page,
        pages=math.ceil(len(shown) / PAGE),
        total=len(rows),
        shown=len(shown),
        outcome=outcome,
        one=one,
        counts=Counter(row["outcome"] for row in rows),
        mean=_mean(rows),
        turns=conversation.turns,
        asks=conversation.asks,
        plain=plain,
        others=[one for one in site.catalog.entries() if one.is_evaluation and one.slug != slug]
        if number is None
        else [],
        previous=_neighbour(frame["evals"], number, -1),
        next=_neighbour(frame["evals"], number, 1),
    )


def _neighbour(versions: list[int], version: int | None, by: int) -> int | None:
    if version not in versions:
        return None
    at = versions.index(version) + by
    return versions[at] if 0 <= at < len(versions) else None


def _mean(rows: list[Row]) -> float | None:
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    return sum(rewards) / len(rewards) if rewards else None


def change(site: Site, query: Mapping[str, str], slug: str, before: str, after: str) -> str:
    """Two evaluations of a run side by side, the examples that turned right or wrong first."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    frame = run_frame(site, entry, store)
    sides = []
    for version in (whole("version", before), whole("version", after)):
        if version not in frame["evals"]:
            raise NotFound(_no_eval(entry, version, frame["evals"]))
        sides.append(Side(f"version {version}", slug, version, read_eval(store.run, version)))
    here = f"run/{slug}/change/{sides[0].version}/{sides[1].version}/"
    return _changed(site, query, frame, here, sides)


def _against(site: Site, query: Mapping[str, str], frame: dict[str, Any], entry: Entry) -> str:
    """Two runs of `hone eval` side by side: that of `against`, and this one."""
    other = site.catalog.entry(query["against"])
    if not other.is_evaluation:
        raise NotFound(f"{other.name} is no evaluation: choose a run of `hone eval`")
    sides = [Side(one.name, one.slug, None, read_eval(Run(one.path), None)) for one in (other, entry)]
    return _changed(site, query, frame, f"run/{entry.slug}/eval/", sides)


def _changed(site: Site, query: Mapping[str, str], frame: dict[str, Any], here: str, sides: list[Side]) -> str:
    kind = query.get("change", "")
    if kind not in ("", *CHANGES):
        raise UserError(f"change cannot be {kind[:50]!r}: it is one of {', '.join(CHANGES)}")
    pairs, lone = paired(sides[0].rows, sides[1].rows)
    shown = [pair for pair in pairs if kind in ("", pair.change)]
    page = max(1, whole("page", query.get("page") or "1"))
    diff = query.get("diff") == "1"
    counts = Counter(pair.change for pair in pairs)
    common = [[pair.before for pair in pairs], [pair.after for pair in pairs]]
    links = site.links(here)

    def address(**asked: Any) -> str:
        if sides[1].version is None:
            return links.evaluation(sides[1].slug, None, against=sides[0].slug, **asked)
        return links.change(sides[1].slug, sides[0].version or 0, sides[1].version, **asked)

    return site.page(
        "change.html",
        here,
        f"{frame['entry'].name}: {sides[0].label} and {sides[1].label}",
        **frame,
        sides=sides,
        address=address,
        pairs=[(pair, _parts(pair) if diff else None) for pair in shown[(page - 1) * PAGE : page * PAGE]],
        diff=diff,
        kind=kind,
        kinds=CHANGES,
        counts=counts,
        right=[sum(row["outcome"] == "correct" for row in side) for side in common],
        means=[_mean(side) for side in common],
        odds=_odds(pairs, counts),
        lone=lone,
        total=len(pairs),
        shown=len(shown),
        page=page,
        pages=math.ceil(len(shown) / PAGE),
        turns=conversation.turns,
        asks=conversation.asks,
    )


def paired(before: list[Row], after: list[Row]) -> tuple[list[Pair], int]:
    """Completions of the same example and number in both, changes first; and how many have no counterpart."""
    known = dict(zip(_keys(before), before, strict=True))
    both = [(known[key], row) for key, row in zip(_keys(after), after, strict=True) if key in known]
    pairs = [Pair(was, is_, _change(was, is_)) for was, is_ in both]
    order = list(CHANGES)
    pairs.sort(key=lambda pair: (order.index(pair.change), -abs(pair.gain), pair.after["place"]))
    return pairs, len(before) + len(after) - 2 * len(pairs)


def _keys(rows: list[Row]) -> list[tuple[str, Any, int]]:
    """Example and number of each completion, and which it is of those that have both: a task may ask the same twice."""
    seen: Counter[tuple[str, Any]] = Counter()
    keys = []
    for row in rows:
        key = row["example_id"], row["rollout"]
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def _change(before: Row, after: Row) -> str:
    was, is_ = before["outcome"] == "correct", after["outcome"] == "correct"
    if was != is_:
        return "right" if is_ else "wrong"
    if before["reward"] is None or after["reward"] is None or before["reward"] == after["reward"]:
        return "same"
    return "better" if after["reward"] > before["reward"] else "worse"


def _odds(pairs: list[Pair], counts: Mapping[str, int]) -> str:
    """What McNemar's exact test says; empty if no example turned, or of several completions of each, which are not
    independent of each other.
    """
    turned = counts["right"] + counts["wrong"]
    if not turned or any(pair.after["rollout"] for pair in pairs):
        return ""
    return odds_words(mcnemar(counts["right"], counts["wrong"]))


def _parts(pair: Pair) -> Any:
    texts = ["\n\n".join(conversation.text_of(m) for m in side["completion"]) for side in (pair.before, pair.after)]
    return word_diff(*texts)


def _no_eval(entry: Entry, version: int, versions: list[int]) -> str:
    if entry.is_evaluation:
        return f"{entry.name} is a run of `hone eval`, which has one evaluation: its samples are compared on their page"
    if entry.summary is not None and entry.summary.kind == "sft":
        return f"{entry.name} is an SFT run: it is evaluated by its loss, which has no samples"
    if not versions:
        return (
            "this run has no samples of evaluations: those of `orchestrator.eval` are kept, but not by older versions"
        )
    return f"there is no evaluation of version {version}: there are those of {', '.join(map(str, versions))}"


PAGES: dict[str, Any] = {
    "/run/{slug}/eval/": evaluation,
    "/run/{slug}/eval/{version}/": evaluation,
    "/run/{slug}/change/{before}/{after}/": change,
}
"""By the path of their URL."""
