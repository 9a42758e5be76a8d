"""The pages of completions: those of a step, and one of them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from hone.errors import UserError
from hone.runs.files import parse_json
from hone.viewer import conversation, tokens, vocabulary
from hone.viewer.catalog import Entry, NotFound
from hone.viewer.query import Query
from hone.viewer.site import Site, no_step, whole
from hone.viewer.store import Row, Store

ON_A_PAGE = 512
"""Completions of a step on a page; its groups stay whole."""
_MATES = ("group", "sample_id", "reward", "outcome", "advantage", "sampled_mask")


@dataclass(frozen=True)
class Group:
    """The completions of one draw: those that are shown, of `count`."""

    index: int
    rows: list[Row]
    count: int
    solved: int
    mean: float | None
    std: float | None


def _open(site: Site, slug: str, step: str) -> tuple[Entry, Store, int, list[int]]:
    """Return the run, its completions, the step in the address, and all steps. NotFound if that is not there."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    steps = list(store.stamps())
    try:
        number = whole("step", step)
    except NotFound as error:
        raise NotFound(f"{error}: the run has steps {steps[0]} to {steps[-1]}" if steps else str(error)) from None
    if number not in steps:
        raise NotFound(no_step(number, steps))
    return entry, store, number, steps


def step(site: Site, query: Mapping[str, str], slug: str, step: str) -> str:
    """Show the completions of a step, group by group."""
    entry, store, number, steps = _open(site, slug, step)
    names = ("outcome", "advantage", "stop", "state", "page")
    asked = Query.from_address({name: query[name] for name in names if name in query})
    rows = store.rows(number)
    shown = [row for row in rows if all(getattr(asked, name) in ("", value) for name, value in _kinds(row).items())]
    groups, pages = _groups(rows, shown, asked.page)
    opened = {int(part) for part in query.get("open", "").split(",") if part.isdecimal() and len(part) < 9}

    def unfold(row: int) -> str:
        """Return the query of the same page with one completion more unfolded, or one less."""
        kept = {name: query[name] for name in query if name != "open"}
        return urlencode(kept | {"open": ",".join(map(str, sorted(opened ^ {row})))}, errors="replace")

    at = steps.index(number)
    near = {"first": 0, "back": at - 10, "previous": at - 1, "next": at + 1, "ahead": at + 10, "last": len(steps) - 1}
    return site.run_page(
        "step.html",
        entry,
        f"step/{number}/",
        f"Step {number} of {entry.name}",
        number,
        around={name: steps[i] if 0 <= i < len(steps) and i != at else None for name, i in near.items()},
        groups=groups,
        pages=pages,
        asked=asked,
        counts={name: Counter(_kinds(row)[name] for row in rows) for name in names[:-1]},
        shown=len(shown),
        total=len(rows),
        opened=opened,
        rewards=_moments(rows),
        tokens=sum(row["tokens"] for row in rows),
        turns=conversation.turns_of_row,
        excerpt=lambda prompt: conversation.asks(conversation.messages_of(prompt)),
        unfold=unfold,
    )


def _kinds(row: Row) -> dict[str, str]:
    """Return what a step's page can be narrowed to, of a row."""
    advantage = row["advantage"] or 0
    sign = "zero" if not advantage else "positive" if advantage > 0 else "negative"
    return {"outcome": row["outcome"], "advantage": sign, "stop": row["stop_reason"], "state": row["state"]}


def _groups(rows: list[Row], shown: list[Row], page: int) -> tuple[list[Group], int]:
    """Return the groups with rows that are shown, of one page, and how many pages there are."""
    all_rows = {key: list(group) for key, group in itertools.groupby(rows, lambda row: row["group"])}
    pages: list[list[Group]] = [[]]
    count = 0
    for key, group in itertools.groupby(shown, lambda row: row["group"]):
        members = list(group)
        if count and count + len(members) > ON_A_PAGE:
            pages.append([])
            count = 0
        count += len(members)
        solved = sum(row["outcome"] == "correct" for row in all_rows[key])
        pages[-1].append(Group(key, members, len(all_rows[key]), solved, *_moments(all_rows[key])))
    return (pages[page - 1] if page <= len(pages) else []), len(pages)


def _moments(rows: list[Row]) -> tuple[float | None, float | None]:
    """Return mean and standard deviation of the rewards that are there."""
    there = [row["reward"] for row in rows if row["reward"] is not None]
    return (float(np.mean(there)), float(np.std(there))) if there else (None, None)


def sample(site: Site, query: Mapping[str, str], slug: str, step: str, row: str) -> str:
    """Show one completion, its tokens coloured, and all that is known of it."""
    entry, store, number, _ = _open(site, slug, step)
    index = whole("row", row)
    one = store.sample(number, index)
    color = query.get("color") or "logprob"
    if color not in (*tokens.QUANTITIES, "none"):
        raise UserError(f"color cannot be {color[:50]!r}: it is one of {', '.join(tokens.QUANTITIES)} or none")
    everything = query.get("all") == "1"
    known, why = vocabulary.find(store.run)
    read = None
    try:
        read = tokens.read_tokens(store.run, one, known) if known else None
    except UserError as error:
        why = str(error)
    blocks, chosen, aside = tokens.blocks(one, read, 10**9 if everything else tokens.FOLD)
    mates = [mate for mate in store.rows(number, _MATES) if mate["group"] == one["group"]]
    place = [mate["row"] for mate in mates].index(index)
    return site.run_page(
        "sample.html",
        entry,
        f"sample/{number}/{index}/",
        f"Completion {one['sample_id']} of {entry.name}",
        number,
        one=one,
        blocks=blocks,
        prompt=conversation.turns(conversation.messages_of(one["prompt"]), sampled=False),
        read=read,
        color=color,
        everything=everything,
        folded=any(text.hidden for _, text in blocks),
        quantities=tokens.QUANTITIES,
        FOLD=tokens.FOLD,
        why=why or aside,
        script=tokens.for_script(read, chosen) if read else None,
        mates=mates,
        place=place,
        info=_pretty(one.get("info")),
        versions=_versions(one),
        hashes=_hashes(store, number),
    )


def _versions(one: Row) -> list[tuple[int, int]]:
    """Return the policy versions that sampled its tokens, with how many each."""
    versions = np.asarray(one.get("versions") or (), dtype=int)
    mask = np.asarray(one.get("sampled_mask") or (), dtype=bool)
    if len(mask) != len(versions):
        return []
    found, counts = np.unique(versions[mask], return_counts=True)
    return [(int(version), int(count)) for version, count in zip(found, counts, strict=True)]


def _hashes(store: Store, step: int) -> dict[str, Any]:
    """Return what hashes.jsonl says of a step."""
    try:
        return next((line for line in store.run.hashes() if line.get("step") == step), {})
    except (UserError, OSError):
        return {}


def _pretty(text: str | None) -> str:
    """Return JSON with indents; what isn't JSON as it is."""
    try:
        value = parse_json(text or "null")
    except ValueError:
        return text or ""
    return json.dumps(value, ensure_ascii=False, indent=2) if value else ""


def sample_data(site: Site, query: Mapping[str, str], slug: str, step: str, row: str) -> dict[str, Any]:
    """Return one completion as JSON: all columns of its row."""
    _, store, number, _ = _open(site, slug, step)
    one = store.sample(number, whole("row", row))
    for name in ("prompt", "completion"):
        one[name] = conversation.messages_of(one[name]) if one.get(name) else None
    return one
