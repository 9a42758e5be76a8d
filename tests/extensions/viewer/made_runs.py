"""Runs of a few completions with given texts, in the layout of a real one."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from starlette.testclient import TestClient

import hone.runs.rollouts
from hone.extensions.viewer.app import create_app
from hone.extensions.viewer.catalog import Catalog
from hone.extensions.viewer.site import Site
from hone.model.tokenizer import IM_END_ID, build_tiny_tokenizer
from hone.runs.files import write_json
from hone.runs.rollouts import write_rollouts
from hone.runs.view import rollouts_file

INFO = {
    "format": "hone-run-1", "id": "id-a", "kind": "rl", "status": "done", "seed": 0, "command": ["rl"], "exact": True,
    "inexact": [], "started": "2026-01-01T00:00:00+00:00", "resumes": [], "versions": {}, "hardware": {}, "threads": 1,
}  # fmt: skip
PROMPT = [{"role": "user", "content": "What is 2 + 2?"}]


@cache
def tokenizer():
    return build_tiny_tokenizer()


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


def row(text: str, **changes: Any) -> dict[str, Any]:
    """A completion: its tokens are those of `text` and the end of the turn, each a little less probable."""
    prompt, shown = encode("user\n"), [*encode(text), IM_END_ID]
    made = {
        "step": 0,
        "draw": 0,
        "group": 0,
        "sample_id": "0-0-0",
        "example_id": "e0",
        "token_ids": [*prompt, *shown],
        "sampled_mask": [False] * len(prompt) + [True] * len(shown),
        "logprobs": [0.0] * len(prompt) + [-0.05 * i for i in range(len(shown))],
        "versions": [-1] * len(prompt) + [0] * len(shown),
        "reward": 0.1,
        "components": [("format", 1.0), ("correctness", 0.0)],
        "weights": [("format", 0.1), ("correctness", 0.9)],
        "outcome": "wrong",
        "detail": "expected '4'",
        "advantage": -0.5,
        "state": "trained",
        "stop_reason": "stop",
        "prompt": json.dumps(PROMPT),
        "text": text,
        "answer": "4",
        "info": "{}",
        "completion": None,
    }
    return made | changes


def write_run(folder: Path, steps: Mapping[int, Sequence[dict[str, Any]]], with_tokenizer: bool = True) -> Path:
    """A run whose steps have these completions; sample ids and steps are filled in."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rollouts").mkdir(exist_ok=True)
    write_json(folder / "run.json", INFO)
    (folder / "config.toml").write_text(f'max_steps = {len(steps)}\n[model]\nname = "model"\n')
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "reward/mean": 0.5}}\n' for step in steps))
    for step, rows in steps.items():
        named = [one | {"step": step, "sample_id": f"{step}-{one['draw']}-{i}"} for i, one in enumerate(rows)]
        write_rollouts(folder / rollouts_file(step), named)
    if with_tokenizer:
        (folder / "checkpoints" / "step_1").mkdir(parents=True, exist_ok=True)
        tokenizer().save(str(folder / "checkpoints" / "step_1" / "tokenizer.json"))
    return folder


def write_tokens(folder: Path, step: int, rows: Sequence[tuple[str, Any, Any]]) -> None:
    """What the train step noted: of each completion of the step sample id, entropies, trainer logprobs."""
    names = ("sample_id", "entropies", "trainer_logprobs")
    hone.runs.rollouts.write_tokens(folder, step, [dict(zip(names, row, strict=True)) for row in rows])


def client(root: Path) -> TestClient:
    return TestClient(create_app(Site(Catalog(root))), base_url="http://127.0.0.1:8600", raise_server_exceptions=True)


def links_of(path: str, page: str, rel: str = "") -> list[str]:
    """Where the links of a page lead, as paths from the root; of a kind, if one is asked for."""
    found = re.findall(r'<a\b[^>]*? href="([^"]*)"([^>]*)>', page)
    return [urljoin(path, html.unescape(href)) for href, rest in found if f'rel="{rel}"' in rest or not rel]


def text_of(page: str) -> str:
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    inline = re.sub(r"</?(?:span|b|code|mark|i)\b[^>]*>", "", body)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", inline)))
