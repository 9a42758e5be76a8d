"""The page of a step's completions, and the page of one completion."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.datastructures import QueryParams

from hone.errors import UserError
from hone.extensions.viewer import conversation, tokens, vocabulary
from hone.extensions.viewer.catalog import Entry, NotFound
from hone.extensions.viewer.query import FILTERS, Query, kinds_of
from hone.extensions.viewer.site import Site, whole
from hone.extensions.viewer.store import Row, Store
from hone.runs.files import parse_json
from hone.types import Message

ON_A_PAGE = 512
"""Most completions of a step on a page; groups are not split."""
_MATES = ("group", "sample_id", "reward", "outcome", "advantage", "stop_reason", "state", "sampled_mask")


@dataclass(frozen=True)
class Group:
    """The completions of one draw: `count` in all, and the `rows` to show."""

    index: int
    rows: list[Row]
    count: int
    solved: int
    mean: float | None
    std: float | None


def _open(site: Site, slug: str, step: str) -> tuple[Entry, Store, int, list[int]]:
    """Return the run, its store, the step's number, and all steps. Raises NotFound if run or step is missing."""
    entry = site.catalog.entry(slug)
    store = Store(entry.path)
    steps = list(store.stamps())
    try:
        number = whole("step", step)
    except NotFound as error:
        raise NotFound(f"{error}: the run has steps {steps[0]} to {steps[-1]}" if steps else str(error)) from None
    if not steps:
        raise NotFound("this run has no completions: only RL runs have them, after their first step")
    if number not in steps:
        raise NotFound(f"there are no completions of step {number}: the run has steps {steps[0]} to {steps[-1]}")
    return entry, store, number, steps


def _filter(query: QueryParams) -> Query:
    return Query.from_address({name: query[name] for name in (*FILTERS, "page") if name in query})


def step(site: Site, query: QueryParams, slug: str, step: str) -> str:
    entry, store, number, steps = _open(site, slug, step)
    asked = _filter(query)
    rows = store.rows(number)
    shown = [row for row in rows if asked.passes(row)]
    groups, pages = _groups(rows, shown, asked.page)
    at = steps.index(number)
    near = {"first": 0, "previous": at - 1, "next": at + 1, "last": len(steps) - 1}
    return site.run_page(
        "step.html",
        entry,
        f"step/{number}/",
        f"Step {number} of {entry.name}",
        number,
        query=query,
        around={name: steps[i] if 0 <= i < len(steps) and i != at else None for name, i in near.items()},
        groups=groups,
        pages=pages,
        page=asked.page,
        filters={name: query.get(name, "") for name in FILTERS},
        counts={name: Counter(kinds_of(row)[name] for row in rows) for name in FILTERS},
        shown=len(shown),
        total=len(rows),
        rewards=_moments(rows),
        tokens=sum(row["tokens"] for row in rows),
        excerpt=lambda prompt: conversation.asks(conversation.messages_of(prompt)),
    )


def _groups(rows: list[Row], shown: list[Row], page: int) -> tuple[list[Group], int]:
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
    there = [row["reward"] for row in rows if row["reward"] is not None]
    return (float(np.mean(there)), float(np.std(there))) if there else (None, None)


def sample(site: Site, query: QueryParams, slug: str, step: str, row: str) -> str:
    entry, store, number, _ = _open(site, slug, step)
    index = whole("row", row)
    one = store.sample(number, index)
    branches, trajectory = _further_trajectories(one), whole("trajectory", query.get("trajectory") or "0")
    if trajectory:
        if trajectory > len(branches):
            raise UserError(f"completion {index} has no trajectory {trajectory}: the last is {len(branches)}")
        one = _row_of_trajectory(one, branches[trajectory - 1], trajectory)
    color = query.get("color") or "logprob"
    if color not in (*tokens.QUANTITIES, "none"):
        raise UserError(f"color cannot be {color[:50]!r}: give one of {', '.join(tokens.QUANTITIES)} or none")
    known, why = vocabulary.find(store.run)
    read = None
    try:
        read = tokens.read_tokens(store.run, one, known) if known else None
    except UserError as error:
        why = str(error)
    everything = query.get("all") == "1"
    blocks, aside = tokens.blocks(one, read, 10**9 if everything else tokens.FOLD, color)
    rows, asked = store.rows(number, _MATES), _filter(query)
    shown = [mate["row"] for mate in rows if asked.passes(mate)]
    return site.run_page(
        "sample.html",
        entry,
        f"sample/{number}/{index}/",
        f"Completion {one['sample_id']} of {entry.name}",
        number,
        query=query,
        one=one,
        before=max((place for place in shown if place < index), default=None),
        after=min((place for place in shown if place > index), default=None),
        place=sum(place <= index for place in shown),
        shown=len(shown),
        filters={name: query[name] for name in FILTERS if query.get(name)},
        link_query={name: query[name] for name in (*FILTERS, "color") if query.get(name)},
        trajectory=trajectory,
        trajectories=1 + len(branches),
        call_rewards=[x for x in one.get("call_rewards") or [] if isinstance(x, int | float)],
        blocks=blocks,
        prompt=conversation.turns(conversation.messages_of(one["prompt"]), sampled=False),
        read=read,
        color=color,
        everything=everything,
        folded=any(text.hidden for _, text in blocks),
        quantities=tokens.QUANTITIES,
        FOLD=tokens.FOLD,
        why=why or aside,
        mates=[mate for mate in rows if mate["group"] == one["group"]],
        info=_pretty(one.get("info")),
        versions=_versions(one),
    )


def _further_trajectories(one: Row) -> list[dict[str, Any]]:
    try:
        found = parse_json(one.get("branches") or "[]")
    except ValueError:
        found = []
    return [branch for branch in found if isinstance(branch, dict)] if isinstance(found, list) else []


def _row_of_trajectory(one: Row, branch: dict[str, Any], number: int) -> Row:
    given, mask = branch.get("messages"), branch.get("sampled_mask") or []
    messages: list[Message] = given if given is not None and conversation.is_messages(given) else []
    turns = sum(bool(is_sampled) and not before for before, is_sampled in itertools.pairwise([False, *mask]))
    spoken = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    first = spoken[-turns] if 0 < turns <= len(spoken) else len(messages)
    told = {name: branch.get(name) for name in ("token_ids", "sampled_mask", "logprobs", "versions", "stop_reason")}
    for name in ("call_rewards", "call_advantages"):
        values = branch.get(name)
        told[name] = values if isinstance(values, list) and all(isinstance(x, int | float) for x in values) else None
    told |= {"prompt": json.dumps(messages[:first]), "completion": json.dumps(messages[first:])}
    return one | told | {"tokens": sum(map(bool, mask)), "branch": number, "teacher_logprobs": None}


def _versions(one: Row) -> list[tuple[int, int]]:
    sampled = zip(one.get("versions") or (), one.get("sampled_mask") or (), strict=False)
    return sorted(Counter(version for version, is_sampled in sampled if is_sampled).items())


def _pretty(text: str | None) -> str:
    try:
        value = parse_json(text or "null")
    except ValueError:
        return text or ""
    return json.dumps(value, ensure_ascii=False, indent=2) if value else ""
