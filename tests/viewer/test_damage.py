"""A file that is not as it was written is told on the card, and on the page that shows it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from made_runs import INFO, client, row, text_of, write_run

from hone.runs.evaluations import evals_file, write_evaluation
from hone.runs.files import sha256, write_json
from hone.runs.rollouts import rollouts_file
from hone.viewer.card.facts import facts_of

STEPS = 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of three steps with an evaluation before them and one after, and the hashes of all that."""
    folder = write_run(tmp_path / "run", {step: [row("4"), row("5")] for step in range(STEPS)}, with_tokenizer=False)
    write_json(folder / "run.json", INFO | {"sources": {}, "hardware": {"cpu": "A", "cores": 2, "memory_gib": 8}})
    samples = [
        {"example": i, "rollout": 0, "example_id": f"e{i}", "prompt": [], "completion": [], "answer": "", "info": {},
         "reward": 0.1 * i, "components": {}, "outcome": "wrong", "detail": "", "stop_reason": "stop"}
        for i in range(8)
    ]  # fmt: skip
    evals = {version: write_evaluation(folder, version, samples) for version in (0, STEPS)}
    lines, hashes = [], []
    for step in range(STEPS + 1):
        trained = {"lr": 0.1, "reward/mean": 0.5} if step < STEPS else {}
        held = {"eval/t/reward/mean": 0.35} if step in evals else {}
        lines.append(json.dumps({"step": step} | trained | held) + "\n")
        found = {"step": step, "weights": "w", "metrics": hashlib.sha256(lines[-1].encode()).hexdigest()}
        found |= {"rollouts": sha256(folder / rollouts_file(step)) if step < STEPS else None}
        hashes.append(json.dumps(found | ({"evals": evals[step]} if step in evals else {})) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "hashes.jsonl").write_text("".join(hashes))
    return folder


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


def test_a_run_as_it_was_written_has_no_damage(run: Path) -> None:
    card = facts_of(run)
    assert card.damage == [] and card.standing == "done, 3 of 3 steps"
    assert "Damaged" not in client(run).get("/run/run/eval/3/").text


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("metrics.jsonl", None, "metrics.jsonl: is missing"),
        ("metrics.jsonl", -2, "metrics.jsonl: the line of step 3 is missing"),
        ("config.toml", None, "config.toml: is missing"),
        ("rollouts/step_000001.parquet", None, "rollouts/step_000001.parquet: is missing"),
        ("rollouts/step_000001.parquet", -9, "rollouts/step_000001.parquet: is torn"),
        ("evals/step_000003.jsonl", 250, "evals/step_000003.jsonl: has changed since it was written"),
    ],
)
def test_damage_is_told_on_the_card(run: Path, name: str, size: int | None, words: str) -> None:
    if size is None:
        (run / name).unlink()
    else:
        cut(run / name, size)
    card = facts_of(run)
    assert any(problem.startswith(words) for problem in card.damage), card.damage
    assert card.standing.endswith("; files are damaged, see below")
    assert any(line.startswith(f"Damaged: {words}") for line in card.caveats)


def test_damage_is_told_on_the_overview_once(run: Path) -> None:
    cut(run / "metrics.jsonl", -2)
    text = text_of(client(run).get("/run/run/").text)
    assert text.count("metrics.jsonl: the line of step 3 is missing") == 1
    assert "metrics.jsonl: its last line is torn" in text


@pytest.mark.parametrize(
    ("name", "size", "words"),
    [
        ("metrics.jsonl", None, "metrics.jsonl: is missing"),
        ("rollouts/step_000001.parquet", -9, "rollouts/step_000001.parquet: is torn"),
        ("evals/step_000003.jsonl", 250, "evals/step_000003.jsonl: has changed since it was written"),
    ],
)
def test_damage_is_marked_in_the_list_at_once(run: Path, name: str, size: int | None, words: str) -> None:
    pages = client(run)
    before = pages.get("/").text
    assert "status-done" in before and "damaged" not in before
    if size is None:
        (run / name).unlink()
    else:
        cut(run / name, size)
    after = pages.get("/").text
    assert "status-damaged" in after and "status-done" not in after and f'title="{words}' in after
    assert pages.get("/data/runs.json").json()[0]["damage"].startswith(words)


def test_a_broken_event_hides_no_other_damage(run: Path) -> None:
    """Two sentences: the event's own, and the one of the rollouts."""
    (run / "events.jsonl").write_text("{torn\n")
    (run / rollouts_file(1)).unlink()
    text = text_of(client(run).get("/run/run/").text)
    assert "events.jsonl, line 1, is damaged" in text and f"{rollouts_file(1)}: is missing" in text


def test_a_broken_line_of_metrics_hides_nothing_else(run: Path) -> None:
    """Neither pages that need no metrics, nor the numbers of the other lines; the line is named."""
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([lines[0], "{torn\n", *lines[2:]]))
    pages = client(run)
    shown = {part: pages.get(f"/run/run/{part}") for part in ("", "step/1/", "search/?q=4", "eval/3/", "card/")}
    assert {page.status_code for page in shown.values()} == {200}
    text = text_of(shown[""].text)
    assert "metrics.jsonl, line 2, is damaged" in text and "done: 3 of 3 steps" in text
    card = facts_of(run)
    assert card.standing == "done, 3 of 3 steps; files are damaged, see below" and len(card.lines) == STEPS
    assert sum("metrics.jsonl, line 2, is damaged" in line for line in card.caveats) == 1


def test_damage_of_many_lines_is_told_in_few(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 0}\n')
    assert [line.split(" (")[0] for line in facts_of(run).damage] == [
        "metrics.jsonl: the line of step 0 has changed",
        "metrics.jsonl: the line of step 1 is missing",
        "metrics.jsonl: 2 more of this kind; hone verify lists all",
    ]


def test_the_card_s_page_sees_what_is_damaged_after_it_was_shown(run: Path) -> None:
    pages = client(run)
    assert "Damaged" not in pages.get("/run/run/card/").text
    cut(run / rollouts_file(1), -9)
    assert "Damaged: rollouts/step_000001.parquet" in text_of(pages.get("/run/run/card/").text)


def test_the_samples_of_an_evaluation_that_were_cut_are_said_to_be(run: Path) -> None:
    file = run / evals_file(3)
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    text = text_of(client(run).get("/run/run/eval/3/").text)
    assert "Damaged: evals/step_000003.jsonl has changed since it was written" in text
