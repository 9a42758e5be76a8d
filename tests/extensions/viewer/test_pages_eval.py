"""Held-out examples before and after: what turned right or wrong comes first, and nothing is told twice or left out."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest
import samples_made
from made_runs import INFO, client, links_of, row, text_of, write_run

from hone.extensions.viewer.evals import paired, read_eval
from hone.runs.files import write_json
from hone.runs.rollouts import write_evaluation


def sample(index: int, text: str, outcome: str, reward: float | None, rollout: int = 0, **changes) -> dict:
    made = samples_made.row(index, rollout, text, outcome, reward) | {"example_id": f"e{index}", "answer": "4"}
    made["prompt"] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"question {index}?"}]
    counts = {"prompt_tokens": 5, "completion_tokens": 7}
    return made | {"components": {"format": 1.0}, "detail": f"said {text}"} | counts | changes


BEFORE = [
    sample(0, "four <i>", "wrong", 0.1),
    sample(1, "right all along", "correct", 1.0),
    sample(2, "lost later", "correct", 1.0),
    sample(3, "a bit", "wrong", 0.1),
    sample(4, "same", "wrong", 0.1),
    sample(5, "only before", "wrong", 0.1),
    sample(6, "broke", "grader_error", None),
]
AFTER = [
    sample(0, "found <script>alert(1)</script>", "correct", 1.0),
    sample(1, "right still", "correct", 1.0),
    sample(2, "lost", "unparsable", 0.0),
    sample(3, "a bit more", "wrong", 0.4),
    sample(4, "same", "wrong", 0.1),
    sample(6, "graded", "wrong", 0.1),
    sample(7, "only after", "wrong", 0.1),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run = write_run(tmp_path / "runs" / "a", {0: [row("x")]})
    write_evaluation(run, 0, BEFORE)
    write_evaluation(run, 25, AFTER)
    for name, rows in (("base", BEFORE), ("tuned", AFTER)):
        folder = tmp_path / "runs" / name
        folder.mkdir()
        write_json(folder / "run.json", INFO | {"kind": "eval", "id": name})
        write_json(
            folder / "metadata.json", {"env": "sums", "model": "m", "metrics": {}, "num_examples": 7, "date": "x"}
        )
        (folder / "config.toml").write_text('env = "sums"\n')
        (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    return tmp_path / "runs"


def test_what_turned_comes_first(root: Path) -> None:
    from hone.runs import Run

    run = Run(root / "a")
    pairs, lone = paired(read_eval(run, 0), read_eval(run, 25))
    assert [(pair.after["example"], pair.change) for pair in pairs] == [
        (0, "right"), (2, "wrong"), (3, "better"), (6, "same"), (1, "same"), (4, "same"),
    ] and lone == 2  # fmt: skip


def test_the_page_of_two_versions(root: Path) -> None:
    page = client(root).get("/run/a/change/0/25/")
    shown = text_of(page.text)
    assert page.status_code == 200
    assert (
        "Right: 2 → 2 of 6" in shown
        and "1 turned right, 1 turned wrong" in shown
        and "McNemar's exact test: p = 1" in shown
    )
    assert "2 completions are in only one of the two" in shown and "reward 0.100 → 1.000" in shown
    assert shown.index("question 0?") < shown.index("question 2?") < shown.index("question 3?")
    assert "<script>alert(1)</script>" in shown and "<script>alert" not in page.text
    assert "/run/a/eval/0/?one=0" in links_of("/run/a/change/0/25/", page.text)
    one = text_of(client(root).get("/run/a/change/0/25/?change=better").text)
    assert "question 3?" in one and "question 0?" not in one
    assert client(root).get("/run/a/change/0/25/?change=x").status_code == 400
    gone = client(root).get("/run/a/change/0/7/")
    assert gone.status_code == 404 and "evaluated versions are 0, 25" in gone.text


def test_the_page_of_an_evaluation(root: Path) -> None:
    ask = client(root)
    page = ask.get("/run/a/eval/25/")
    shown = text_of(page.text)
    assert "7 completions, mean reward 0.386" in shown and "correct 2" in shown and "question 7?" in shown
    assert links_of("/run/a/eval/25/", page.text, "prev") == ["/run/a/eval/0/"]
    assert shown.count("expected 4; said found") == 1
    only = text_of(ask.get("/run/a/eval/25/?outcome=unparsable").text)
    assert "question 2?" in only and "question 0?" not in only
    one = text_of(ask.get("/run/a/eval/25/?one=0").text)
    assert "Be brief." in one and "Why: said found <script>" in one and "question 2?" not in one
    missing = ask.get("/run/a/eval/3/")
    assert missing.status_code == 404 and "evaluated versions are 0, 25" in missing.text
    assert "is not an evaluation" in html.unescape(ask.get("/run/a/eval/").text)


def test_runs_of_hone_eval_have_the_same_pages(root: Path) -> None:
    ask = client(root)
    assert "/run/tuned/eval/" in links_of("/run/tuned/", ask.get("/run/tuned/").text)
    page = ask.get("/run/tuned/eval/").text
    assert "7 completions" in text_of(page) and '<option value="base">base</option>' in page
    shown = text_of(ask.get("/run/tuned/eval/?against=base").text)
    assert "What changed from base to tuned" in shown and "Right: 2 → 2 of 6" in shown
    assert ask.get("/run/tuned/eval/?against=a").status_code == 404
    assert ask.get("/run/tuned/eval/?against=none").status_code == 404


def test_rows_that_hold_anything(root: Path) -> None:
    odd = [
        sample(0, "\ud800 half \x00", "correct", 1.0),
        {"example": "x", "prompt": 5, "completion": "text", "reward": "high", "components": [1], "outcome": None},
        sample(2, "", "rollout_failed", None, completion=[], detail="the server said no"),
    ]
    (root / "a" / "evals" / "step_000025.jsonl").write_text("".join(json.dumps(one) + "\n" for one in odd))
    for path in ("eval/25/", "eval/25/?one=1", "change/0/25/", "change/25/0/"):
        assert client(root).get(f"/run/a/{path}").status_code == 200, path
    shown = text_of(client(root).get("/run/a/eval/25/").text)
    assert r"\ud800 half \x00" in shown and "the server said no" in shown
    (root / "a" / "evals" / "step_000025.jsonl").write_text("{torn\n{}\n")
    broken = client(root).get("/run/a/eval/25/")
    assert broken.status_code == 400 and "is damaged" in broken.text


def test_a_reward_is_the_sum_of_its_components_only_if_their_weights_are_known(root) -> None:
    parts = {"format": 1.0, "correctness": 0.5}
    rows = [sample(0, "four", "wrong", 0.55, components=parts), sample(1, "x", "grader_error", None, components=parts)]
    write_evaluation(root / "a", 30, rows)
    page = text_of(client(root).get("/run/a/eval/30/").text)
    assert "0.550 format 1 , correctness 0.5" in page and "= format" not in page
    write_json(root / "a" / "run.json", INFO | {"reward_weights": {"format": 0.1, "correctness": 0.9}})
    page = text_of(client(root).get("/run/a/eval/30/").text)
    assert "0.550 = format 1 × 0.1 + correctness 0.5 × 0.9" in page
    assert "– format 1 × 0.1 , correctness 0.5 × 0.9" in page, "what has no reward is the sum of nothing"


def test_an_example_that_is_asked_twice_is_paired_twice() -> None:
    twice = {"example_id": "e0"}
    before = [
        sample(0, "a", "wrong", 0.1, **twice),
        sample(1, "b", "correct", 1.0, **twice),
        sample(2, "c", "wrong", 0.1),
    ]
    after = [sample(0, "d", "correct", 1.0, **twice), sample(1, "e", "correct", 1.0, **twice)]
    pairs, lone = paired(*([{"place": i, **one} for i, one in enumerate(side)] for side in (before, after)))
    assert [(pair.before["example"], pair.after["example"], pair.change) for pair in pairs] == [
        (0, 0, "right"), (1, 1, "same"),
    ]  # fmt: skip
    assert lone == 1
