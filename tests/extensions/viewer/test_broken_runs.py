"""A run that is damaged, or that somebody made to do harm, costs its own row: all other pages and commands go on."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

import pytest
import tomli_w
from made_runs import client, row, write_run

from hone.cli import main
from hone.extensions.viewer.card.facts import facts_of
from hone.runs.files import sha256
from hone.runs.rollouts import write_evaluation
from hone.runs.view import rollouts_file

DEEP = "[" * 5000 + "]" * 5000
CONFIG = {
    "max_steps": 2, "output_dir": "o", "model": {"name": "m"}, "budget": {"hours": 1.0},
    "orchestrator": {
        "batch_size": 4, "env": {"id": "reverse-text", "args": {"a": 1}}, "sampling": {"max_tokens": 10},
        "curriculum": {"order": "difficulty"}, "eval": {"interval": 2},
    },
}  # fmt: skip
LINE = {
    "lr": 0.1,
    "reward/mean": 0.5,
    "outcome/correct": 0.5,
    "pool/active": 3,
    "eval/t/reward/mean": 0.3,
    "eval/t/ci95/low": 0.1,
}
EVENT = {"kind": "alarm", "step": 1, "time": "2026-01-01T00:00:00+00:00", "name": "kl", "evidence": "e", "value": 1.0}
PAGES = (
    "/", "/curves/?runs=bad&runs=good", "/run/bad/", "/run/bad/card/",
    "/run/bad/search/?q=4", "/run/bad/eval/2/", "/run/bad/change/0/2/", "/run/bad/step/1/",
    "/run/bad/sample/1/0/", "/run/bad/search/?example=e0",
)  # fmt: skip


def full_run(folder: Path) -> Path:
    write_run(folder, {step: [row("4"), row("5")] for step in range(2)}, with_tokenizer=False)
    (folder / "config.toml").write_text(tomli_w.dumps(CONFIG))
    held_out = {name: value for name, value in LINE.items() if name.startswith("eval/")}
    lines = [{"step": step} | (LINE if step < 2 else held_out) for step in range(3)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "timings.jsonl").write_text('{"step": 0, "time/step": 1.0, "time/total": 1.0}\n')
    (folder / "events.jsonl").write_text(json.dumps(EVENT) + "\n")
    message = [{"role": "user", "content": "q"}]
    sample = {
        "example": 0, "rollout": 0, "example_id": "e0", "prompt": message, "completion": message, "answer": "",
        "info": {}, "reward": 0.5, "components": {"format": 1.0}, "outcome": "wrong", "detail": "",
        "stop_reason": "stop",
    }  # fmt: skip
    evals = {version: write_evaluation(folder, version, [sample]) for version in (0, 2)}
    with open(folder / "hashes.jsonl", "w") as hashes:
        for step, line in enumerate((folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)):
            of_rollouts = sha256(folder / rollouts_file(step)) if step < 2 else None
            facts = {"step": step, "weights": "w", "metrics": hashlib.sha256(line).hexdigest(), "rollouts": of_rollouts}
            hashes.write(json.dumps(facts | ({"evals": evals[step]} if step in evals else {})) + "\n")
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    full_run(tmp_path / "runs" / "good")
    return tmp_path / "runs"


def check_all(root: Path, label: str, pages: tuple[str, ...]) -> None:
    """Each of the pages answers, and the list shows the good run."""
    asked = client(root)
    for url in pages:
        answer = asked.get(url)
        assert answer.status_code < 500, (label, url)
        assert url != "/" or "run/good/" in answer.text, label


KINDS = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: (path.touch(), os.truncate(path, 2**42)),
    "deep": lambda path: path.write_text(f"a = {DEEP}" if path.suffix == ".toml" else f'{{"step": {DEEP}}}\n'),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\x00\x80" * 9 + b"\n"),
}
FILES = ("run.json", "config.toml", "metrics.jsonl", "timings.jsonl", "events.jsonl", "hashes.jsonl", ".hone.lock")
LOOKED_AT = FILES[:5]
FILES += ("rollouts/step_000001.parquet", "evals/step_000002.jsonl", "audit.json", "report.json")


ZOO = [(file, [*KINDS][number % len(KINDS)]) for number, file in enumerate(FILES)]
ZOO += [("run.json", "a link to nothing"), ("run.json", "deep"), ("metrics.jsonl", "a pipe")]
ZOO += [("rollouts/step_000001.parquet", "a pipe")]


def test_a_zoo_of_broken_files_costs_their_own_runs(root: Path, capfd) -> None:
    for number, (name, damage) in enumerate(ZOO):
        run = full_run(root / f"bad{number}")
        (run / name).unlink(missing_ok=True)
        KINDS[damage](run / name)
    check_all(root, "all", PAGES[:2])
    for number, (name, damage) in enumerate(ZOO):
        check_all(root, f"{name}: {damage}", tuple(url.replace("bad", f"bad{number}") for url in PAGES[2:]))
    damaged = set(re.findall("<strong>(.*?)</strong> unreadable", client(root).get("/").text))
    seen = {f"bad{n}" for n, (name, damage) in enumerate(ZOO) if name in LOOKED_AT and damage != "a folder"}
    assert seen <= damaged and "good" not in damaged, seen - damaged
    assert main(["runs", "list", str(root)]) == 0
    listed = capfd.readouterr()
    assert "/good" in listed.out and f"damaged: {root / 'bad0' / 'run.json'} cannot be read" in listed.out
    for number in range(len(ZOO)):
        assert main(["runs", "show", str(root / f"bad{number}")]) in (0, 2)
        assert main(["report", str(root / f"bad{number}"), "--output", str(root.parent / f"card-{number}")]) in (0, 2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_setting_of_another_type_is_left_out_and_named(root: Path, capfd) -> None:
    (root / "good" / "config.toml").write_text(tomli_w.dumps(CONFIG | {"orchestrator": {"env": {"id": 5}}}))
    assert main(["runs", "show", str(root / "good")]) == 0 and "orchestrator.env.id" in capfd.readouterr().out
    assert main(["runs", "list", str(root)]) == 0 and "orchestrator.env.id" in capfd.readouterr().out
    assert any("orchestrator.env.id" in sentence for sentence in facts_of(root / "good").caveats)
