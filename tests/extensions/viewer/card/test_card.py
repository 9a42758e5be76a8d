"""What a run card says, from a run's files to its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from samples_made import BARE, LOST, RIGHT, WRONG, evaluation, make_run, row

from hone.config.shared import GradingConfig
from hone.evaluation.result import FailedRollout
from hone.extensions.viewer.card.facts import facts_of
from hone.extensions.viewer.card.files import stored, to_json, whole_page, write_card
from hone.extensions.viewer.card.lenient import read_recorded
from hone.extensions.viewer.card.measures import Leniency
from hone.runs.files import write_json
from hone.runs.summary import certificate_path, pinned
from hone.types import Example


def leniently(run, evaluated):
    return read_recorded(run, evaluated, GradingConfig(), 60.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of 40 examples 4 are right before; 20 lose by their form alone. After it 30 are right, one of them no more."""
    before = evaluation([RIGHT] * 4 + [BARE] * 20 + [WRONG] * 10 + [LOST] * 6)
    after = evaluation([RIGHT] * 3 + [WRONG] + [RIGHT] * 27 + [WRONG] * 9)
    return make_run(tmp_path / "run", {0: before, 4: after})


def test_before_and_after_on_the_same_examples(run):
    card = facts_of(run, leniently)
    assert card.comparison and (card.comparison.right, card.comparison.wrong) == (27, 1) and card.good is True
    assert card.verdict[0].startswith("Better on the same 40 held-out examples: mean reward 0.125 → 0.775")
    assert card.verdict[1].startswith("Correct: 10 % → 75 %, +65.0 points (95 % interval +")
    assert "; 27 examples turned right and 1 wrong (McNemar's exact test: p = 2.2e-07)." in card.verdict[1]
    facts = json.loads(to_json(card))
    assert facts["changes"]["correct"]["difference"]["mean"] == pytest.approx(0.65)
    assert facts["turned"] == {"right": 27, "wrong": 1} and facts["versions"] == [0, 4] and facts["better"] is True
    assert facts["run"]["id"] == "id-a" and facts["steps"] == {"done": 4, "planned": 4}
    page = whole_page(card)
    assert re.search(r"<th>mean reward</th><td class=\"n\">0\.125 \([^)]+\)</td>.*\+0\.650 \(\+0\.4", page)
    assert 'name="viewport"' in page and "figure.drawn .narrow { display: none; }" in page


def test_a_mean_reward_has_the_interval_that_its_evaluation_recorded(run):
    """That knows that no reward is below 0."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"eval/char-count/ci95/low": 0.0, "eval/char-count/ci95/high": 0.2}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reward = facts_of(run).measures["reward"]
    assert (reward.before.low, reward.before.high) == (0.0, 0.2)
    assert (reward.after.low or 0.0) == pytest.approx(0.64, abs=0.02)


def test_skill_is_told_from_format(run):
    """The task is the real one: of what char-count called unparsable, 20 said the right number in their own words."""
    card = facts_of(run, leniently)
    changes = json.loads(to_json(card))["changes"]
    assert (changes["lenient"]["before"]["mean"], changes["lenient"]["after"]["mean"]) == (0.6, 0.75)
    assert [round(changes[name]["difference"]["mean"], 3) for name in ("strict", "lenient", "gap")] == [
        0.65,
        0.15,
        -0.5,
    ]
    assert "Of +0.65 reward, +0.15 (+" in card.verdict[2] and "is skill and +0.50 (" in card.verdict[2]
    page = whole_page(card)
    assert "correct, lenient: skill" in page and "+15.0 points (" in page
    write_card(card, run)
    assert facts_of(run, stored).lenient == card.lenient
    assert Leniency.from_record({"why_not": "no"}) == Leniency("no"), "as hone 0.1 wrote it"
    lines = (run / "evals" / "step_000004.jsonl").read_text().splitlines(keepends=True)
    (run / "evals" / "step_000004.jsonl").write_text("".join(lines[1:]))
    assert "hone report" in facts_of(run, stored).leniency.why_not, "the samples have changed"


def test_a_run_without_a_difference_with_few_that_changed_and_worse(tmp_path):
    def verdict(name, after):
        return facts_of(make_run(tmp_path / name, {0: evaluation([RIGHT, WRONG] * 10), 4: evaluation(after)}))

    same = verdict("same", [RIGHT, WRONG] * 10)
    assert same.verdict[0].startswith("No difference that 20 held-out examples can show") and same.good is None
    few = verdict("few", [RIGHT, WRONG] * 6 + [RIGHT] * 8).verdict[0]
    assert few.startswith("Too few examples changed to tell (4 of 20 held-out examples)")
    worse = verdict("worse", [WRONG] * 20)
    assert worse.verdict[0].startswith("Worse on the same 20 held-out examples") and worse.good is False


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exact": False, "inexact": [{"step": 1, "cause": "a deadline"}]}, "The run is not reproducible"),
        ({"status": "running"}, "The run has not ended"),
        ({"git": {"revision": "0" * 40, "dirty": True}}, "uncommitted changes"),
        ({"status": "budget"}, "ended before its last step"),
        ({"drift": [{"step": 1}]}, "resumed with other settings"),
        ({}, "This is one seed (3)"),
        ({}, "20 % of the evaluated completions were cut off"),
        ({}, "1 of 41 evaluated completions could not be graded"),
        ({}, "1 example could not be compared"),
        ({}, "Of 90 training prompts, 7 are also held out"),
        ({}, "Alarms at the end: zero_std."),
    ],
)
def test_caveats(tmp_path, facts, words):
    rows = [row(i, 0, *RIGHT) | ({"stop_reason": "length"} if i < 8 else {}) for i in range(40)]
    rows.append(FailedRollout(40, 0, Example([{"role": "user", "content": "How many?"}], "3"), "no answer").row())
    run = make_run(tmp_path / "run", {0: rows, 4: rows}, **facts)
    events = [
        {"kind": "overlap", "step": 0, "rows": 7, "checked": 90, "dropped": False},
        {"kind": "alarm", "step": 1, "name": "zero_std", "evidence": "groups agree"},
        {"kind": "alarm", "step": 2, "name": "truncation", "evidence": "cut off"},
        {"kind": "alarm_over", "step": 3, "name": "truncation"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    card = facts_of(run)
    assert any(words in line for line in card.caveats), card.caveats
    assert "truncation from step 2 to 3: cut off" in card.tables["What was checked"]["alarms"]


def test_a_run_without_evaluations_says_how_to_get_them(tmp_path):
    card = facts_of(make_run(tmp_path / "run", {}))
    assert card.verdict[0] == "Training mean reward: 0.000 → 0.300." and card.good is None
    assert "--orchestrator.eval.interval" in card.verdict[1]


HOSTILE = "</pre><script>alert(1)</script> <img src=x onerror=alert(2)>\n\x1b[31m\u2028‮"


def test_what_a_model_wrote_is_only_shown(tmp_path):
    rows = [row(i, 0, HOSTILE, "wrong", 0.1) for i in range(3)]
    for one in rows:
        one["prompt"][0]["content"] = one["answer"] = one["detail"] = HOSTILE
        one["prompt"][0]["role"] = one["example_id"] = "<script>"
        one["components"] = {HOSTILE: 0.1}
        one["completion"][0]["tool_calls"] = [{"function": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}}]
    command = ["/bin/hone", "rl", "<script>alert(3)</script>"]
    target = {"metric": HOSTILE, "value": 1.0, "target": HOSTILE, "step": 1}
    page = whole_page(facts_of(make_run(tmp_path / "<b>run\x1b", {0: rows, 4: rows}, command=command, target=target)))
    assert not {"script", "img", "b"} & set(re.findall(r"<(\w+)", page))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "&lt;b&gt;run" in page
    assert "\x1b" not in page and "\u2028" not in page and "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:,")', page)


def hostile(value):
    """The value with HTML at the end of every text, but where a text is one of a few, or a time."""
    if isinstance(value, dict):
        fixed = ("format", "kind", "status", "time", "started", "ended")
        return {key: one if key in fixed else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{value}\"'>{HOSTILE}" if isinstance(value, str) else value


def test_html_in_what_a_run_says_of_itself_is_only_shown(tmp_path):
    git = {"revision": "0" * 40, "dirty": True}
    facts = {
        "stopped_by": "kl", "failure": "it failed", "exact": False, "inexact": [{"step": 1, "cause": "a deadline"}],
        "git": git, "drift": [{"step": 1, "settings": {"a": "b"}, "sources": {"c": "d"}}],
        "target": {"metric": "reward/mean", "value": 0.5, "target": "above 0.4", "step": 3},
        "parent": {"id": "id-b", "dir": "outputs/b", "step": 1}, "versions": {"hone-rl": "0.1.0"},
        "resumes": [{"step": 1, "time": "2026-01-01T00:00:00+00:00", "command": ["hone"], "git": git}],
    }  # fmt: skip
    run = make_run(tmp_path / "run", {0: evaluation([WRONG] * 4), 4: evaluation([RIGHT] * 4)}, **hostile(facts))
    events = [
        {"kind": "alarm", "step": 1, "name": "zero_std", "evidence": "groups agree"},
        {"kind": "restart", "step": 1, "role": "trainer", "cause": "it was killed"},
        {"kind": "inexact", "step": 1, "cause": "a deadline"},
        {"kind": "failed", "step": None, "cause": "it failed"},
    ]
    (run / "events.jsonl").write_text("".join(json.dumps(hostile(event)) + "\n" for event in events))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"some/model"', json.dumps(hostile("some/model"))))
    page = whole_page(facts_of(run))
    assert not {"script", "img"} & set(re.findall(r"<(\w+)", page)) and "onerror=alert(2)&gt;" in page
    assert "it failed&#34;&#39;&gt;" in page or "a deadline&#34;&#39;&gt;" in page


def test_a_certificate_is_shown_while_it_fits(run):
    def checks():
        return facts_of(run).tables["What was checked"]

    assert checks()["certificate"] == f"none: hone verify {run} --steps 3 executes random steps again"
    assert checks()["reproducible"][0].endswith("; not executed again yet")
    facts = {"verdict": "verified", "steps": [{"step": 2}], "date": "2026-01-02T03:04:05+00:00"}
    write_json(certificate_path(run), facts | {"sha256": pinned(run)})
    write_card(facts_of(run), run)
    assert checks()["certificate"].startswith("verified, step 2 done again")
    assert "changed" not in checks()["certificate"] and checks()["reproducible"][0].endswith("on this machine")
    (run / "metrics.jsonl").write_text("")
    assert "the run has changed since" in checks()["certificate"]


def test_an_evaluation_has_a_card(tmp_path):
    folder = tmp_path / "eval"
    folder.mkdir()
    info = {"format": "hone-run-1", "id": "id-e", "kind": "eval", "status": "done", "seed": 0, "threads": 1}
    info |= {"command": ["hone", "eval"], "versions": {}, "hardware": {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0}}
    write_json(folder / "run.json", info)
    (folder / "config.toml").write_text('env = "char-count"\nmodel = "m"\n')
    write_json(folder / "metadata.json", {"metrics": {}, "seconds": {"sample": 2.0}})
    rows = evaluation([RIGHT] * 10 + [BARE] * 10 + [WRONG] * 20)
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    card = facts_of(folder, leniently)
    assert card.verdict[0].startswith("Mean reward 0.300 (0.1") and ", 25.0 % (" in card.verdict[0]
    assert card.verdict[1].startswith("Read leniently, 50.0 % (") and "25 % fail only by their form" in card.verdict[1]
    assert card.tables["What it took"]["time"] == "0:02"
    assert [one.name for one in card.samples[:2]] == ["right by its statement"] * 2
    assert "Strict against lenient" in whole_page(card)
