"""The pages of completions: those of a step, and one of them. Each function is `(site, query, parts) -> HTML`."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np

from hone.errors import UserError
from hone.runs.checked import parse_json
from hone.viewer import conversation, pieces
from hone.viewer.blocks import FOLD, blocks_of, tokens_of
from hone.viewer.catalog import NotFound
from hone.viewer.frame import no_step, step_frame, step_in, whole
from hone.viewer.query import Query
from hone.viewer.site import Site
from hone.viewer.store import Row, Store

ON_A_PAGE = 512
"""Completions of a step on a page; its groups stay whole."""


@dataclass(frozen=True)
class Group:
    """The completions of one draw: those that are shown, of `count`."""

    index: int
    rows: list[Row]
    count: int
    solved: int
    mean: float | None
    std: float | None

    @property
    def first(self) -> Row:
        return self.rows[0]


def step(site: Site, query: Mapping[str, str], slug: str, step: str) -> str:
    """The completions of a step, group by group."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    number = step_in(step, store.steps())
    frame = step_frame(site, entry, store, number)
    asked = Query.of({name: query[name] for name in ("outcome", "advantage", "stop", "state", "page") if name in query})
    rows = store.rows(number)
    shown = [row for row in rows if fits(row, asked)]
    groups, pages = _groups(rows, shown, asked.page)
    opened = {int(part) for part in query.get("open", "").split(",") if part.isdecimal() and len(part) < 9}
    counts = {
        name: Counter(str(row[key]) for row in rows)
        for name, key in (("outcome", "outcome"), ("stop", "stop_reason"), ("state", "state"))
    }
    counts["advantage"] = Counter(_sign(row["advantage"]) for row in rows)
    return site.page(
        "step.html",
        f"run/{slug}/step/{number}/",
        f"Step {number} of {entry.name}",
        **frame,
        step=number,
        around=around(frame["steps"], number),
        groups=groups,
        pages=pages,
        asked=asked,
        counts=counts,
        shown=len(shown),
        total=len(rows),
        opened=opened,
        rewards=_moments([row["reward"] for row in rows]),
        tokens=sum(row["tokens"] for row in rows),
        turns=conversation.of_row,
        excerpt=lambda prompt: conversation.asks(conversation.messages_of(prompt)),
        unfold=lambda row: _unfold(query, opened, row),
    )


def _unfold(query: Mapping[str, str], opened: set[int], row: int) -> str:
    """The query of the same page with one completion more unfolded, or one less."""
    kept = {name: query[name] for name in query if name != "open"}
    return urlencode(kept | {"open": ",".join(map(str, sorted(opened ^ {row})))}, errors="replace")


def fits(row: Row, asked: Query) -> bool:
    """Whether a row passes the filters of a step's page."""
    wanted = ((asked.outcome, row["outcome"]), (asked.stop, row["stop_reason"]), (asked.state, row["state"]))
    return all(not want or want == has for want, has in wanted) and asked.advantage in ("", _sign(row["advantage"]))


def _sign(advantage: float | None) -> str:
    return "zero" if not advantage else "positive" if advantage > 0 else "negative"


def _groups(rows: list[Row], shown: list[Row], page: int) -> tuple[list[Group], int]:
    """The groups with rows that are shown, of one page, and how many pages there are."""
    whole_groups = {key: list(group) for key, group in itertools.groupby(rows, lambda row: row["group"])}
    pages: list[list[Group]] = [[]]
    count = 0
    for key, group in itertools.groupby(shown, lambda row: row["group"]):
        members = list(group)
        if count and count + len(members) > ON_A_PAGE:
            pages.append([])
            count = 0
        count += len(members)
        of = whole_groups[key]
        mean, std = _moments([row["reward"] for row in of])
        solved = sum(row["outcome"] == "correct" for row in of)
        pages[-1].append(Group(key, members, len(of), solved, mean, std))
    return (pages[page - 1] if page <= len(pages) else []), len(pages)


def _moments(values: list[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of those that are there."""
    there = [value for value in values if value is not None]
    return (float(np.mean(there)), float(np.std(there))) if there else (None, None)


def around(steps: list[int], step: int) -> dict[str, int | None]:
    """The steps to go to from one: those before and after that are there, and the ends."""
    i = steps.index(step)
    return {
        "first": steps[0] if i > 1 else None,
        "back": steps[i - 10] if i > 10 else None,
        "previous": steps[i - 1] if i else None,
        "next": steps[i + 1] if i + 1 < len(steps) else None,
        "ahead": steps[i + 10] if i + 10 < len(steps) - 1 else None,
        "last": steps[-1] if i + 2 < len(steps) else None,
    }


def sample(site: Site, query: Mapping[str, str], slug: str, step: str, row: str) -> str:
    """One completion, its tokens coloured, and all that is known of it."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    number, index = step_in(step, store.steps()), whole("row", row)
    frame = step_frame(site, entry, store, number)
    one = store.sample(number, index)
    color = query.get("color") or query.get("colour") or "logprob"
    if color not in (*pieces.QUANTITIES, "none"):
        raise UserError(f"color cannot be {color[:50]!r}: it is one of {', '.join(pieces.QUANTITIES)} or none")
    white, everything = query.get("ws") == "1", query.get("all") == "1"
    tokens, why = tokens_of(store, one)
    limit = 10**9 if everything else FOLD
    blocks, chosen, aside = blocks_of(one, tokens, color, white, limit)
    mates = [mate for mate in store.rows(number, _MATES) if mate["group"] == one["group"]]
    return site.page(
        "sample.html",
        f"run/{slug}/sample/{number}/{index}/",
        f"Completion {one['sample_id']} of {entry.name}",
        **frame,
        one=one,
        blocks=blocks,
        prompt=conversation.turns(conversation.messages_of(one["prompt"]), sampled=False),
        read=tokens.prompt if tokens else "",
        read_tokens=tokens.first if tokens else 0,
        color=color,
        white=white,
        everything=everything,
        folded=any(block.text.hidden for block in blocks),
        quantities=pieces.QUANTITIES,
        absent=tokens.missing if tokens else {},
        FOLD=FOLD,
        probability=_probability,
        why=why or aside,
        script=pieces.for_script(tokens, chosen, white) if tokens else None,
        mates=mates,
        info=_pretty(one.get("info")),
        versions=_versions(one),
        hashes=_hashes(store, number),
        table=pieces.table(tokens, whole("tokens", query["tokens"])) if tokens and "tokens" in query else None,
    )


_MATES = ("group", "sample_id", "reward", "outcome", "advantage", "sampled_mask")


def _versions(one: Row) -> list[tuple[int, int]]:
    """The policy versions that sampled its tokens, with how many each."""
    versions = np.asarray(one.get("versions") or (), dtype=int)
    mask = np.asarray(one.get("sampled_mask") or (), dtype=bool)
    if len(mask) != len(versions):
        return []
    found, counts = np.unique(versions[mask], return_counts=True)
    return [(int(version), int(count)) for version, count in zip(found, counts, strict=True)]


def _hashes(store: Store, step: int) -> dict[str, Any]:
    """What hashes.jsonl says of a step."""
    try:
        return next((line for line in store.run.hashes() if line.get("step") == step), {})
    except (UserError, OSError):
        return {}


def _pretty(text: str | None) -> str:
    """JSON with indents; what isn't JSON as it is."""
    try:
        value = parse_json(text or "null")
    except ValueError:
        return text or ""
    return "" if value in (None, {}, []) else json.dumps(value, ensure_ascii=False, indent=2)


def _probability(logprob: float | None) -> str:
    return "–" if logprob is None else f"{math.exp(logprob):.3g}"


def sample_data(site: Site, query: Mapping[str, str], slug: str, step: str, row: str) -> dict[str, Any]:
    """One completion as JSON: all columns of its row."""
    store = Store(site.catalog.entry(slug).path)
    number, index = whole("step", step), whole("row", row)
    if number not in store.stamps(number, number):
        raise NotFound(no_step(number, store.steps()))
    one = store.sample(number, index)
    for name in ("prompt", "completion"):
        one[name] = conversation.messages_of(one[name]) if one.get(name) else None
    return one


def text_data(site: Site, query: Mapping[str, str], slug: str, step: str, row: str) -> dict[str, Any]:
    """What a page of a step unfolds: the completion's turns."""
    store = Store(site.catalog.entry(slug).path)
    rows = store.rows(whole("step", step), ("text", "completion", "sampled_mask"))
    index = whole("row", row)
    if index >= len(rows):
        raise NotFound(f"step {step} has no completion {index}")
    turns = conversation.of_row(rows[index])
    return {"turns": [{"role": turn.role, "name": turn.name, "text": pieces.shown(turn.text, False)} for turn in turns]}


PAGES: dict[str, Any] = {"/run/{slug}/step/{step}/": step, "/run/{slug}/sample/{step}/{row}/": sample}
"""By the path of their URL."""
DATA: dict[str, Any] = {
    "/data/{slug}/sample/{step}/{row}.json": sample_data,
    "/data/{slug}/text/{step}/{row}.json": text_data,
}
"""JSON for scripts and for downloads."""
