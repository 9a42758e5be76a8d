"""What a run card says, from its facts to its files."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from samples_made import BARE, LOST, RIGHT, WRONG, evaluation, make_run, row

from hone.errors import UserError
from hone.evaluation.result import FailedRollout
from hone.runs.files import write_json
from hone.types import Example
from hone.viewer.card.facts import chosen, facts_of
from hone.viewer.card.files import record, stored, to_json, write_card
from hone.viewer.card.leniency import Answer, Leniency
from hone.viewer.card.lenient import read_recorded
from hone.viewer.card.page import fenced, markdown, plain, whole_page
from hone.viewer.card.paired import Level
from hone.viewer.card.sentences import difference_words


def leniently(run, evaluated):
    from hone.config.shared import GradingConfig

    return read_recorded(run, evaluated, GradingConfig(), 60.0)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Of 40 examples 4 are right before; 20 lose by their form alone. After it 30 are right, one of them no more."""
    before = evaluation([RIGHT] * 4 + [BARE] * 20 + [WRONG] * 10 + [LOST] * 6)
    after = evaluation([RIGHT] * 3 + [WRONG] + [RIGHT] * 27 + [WRONG] * 9)
    return make_run(tmp_path / "run", {0: before, 4: after})


def test_before_and_after_on_the_same_examples(run):
    card = facts_of(run)
    exact, reward = card.changes["exact"], card.changes["reward"]
    assert (exact.before.mean, exact.after.mean, exact.count) == (0.1, 0.75, 40)
    assert reward.before.mean == pytest.approx(0.125) and reward.after.mean == pytest.approx(0.775)
    found = card.comparison and card.comparison.turned
    assert found and (found.right, found.wrong, found.stayed_right, found.stayed_wrong) == (27, 1, 3, 9)
    assert card.verdict[0].startswith("Better by 0.65 on the same 40 held-out examples: mean reward 0.125 → 0.775")
    assert "27 examples turned right and 1 wrong" in card.verdict[1] and card.good is True


def test_skill_is_told_from_format(run):
    """The task is the real one: of what char-count called unparsable, 20 said the right number in their own words."""
    card = facts_of(run, leniently)
    assert card.leniency.why_not == ""
    lenient, gap, strict = (card.gains[name] for name in ("lenient", "gap", "strict"))
    assert (lenient.before.mean, lenient.after.mean) == (0.6, 0.75)
    assert strict.difference.mean == pytest.approx(0.65)
    assert lenient.difference.mean == pytest.approx(0.15) and gap.difference.mean == pytest.approx(-0.5)
    assert "Of +65 points correct, +15 points (+" in card.verdict[3] and "is skill and +50 points (" in card.verdict[3]
    assert [one.completion for one in card.generous] == ["The answer is 3."] * 2
    assert card.readings["lenient reward"].mean == pytest.approx(0.775)


def test_no_difference_is_said_to_be_none(tmp_path):
    before, after = [RIGHT, WRONG] * 30, [RIGHT, WRONG] * 29 + [WRONG, RIGHT]
    card = facts_of(make_run(tmp_path / "run", {0: evaluation(before), 4: evaluation(after)}))
    assert card.verdict[0].startswith("No difference that 60 held-out examples can show") and card.good is None
    same = facts_of(make_run(tmp_path / "same", {0: evaluation(before), 4: evaluation(before)}))
    assert "the same for every example" in same.verdict[0] and "p = 1.00" in same.verdict[1]


def test_a_difference_of_all_examples_alike_is_one(tmp_path):
    before, after = evaluation([WRONG] * 20), evaluation([RIGHT] * 20)
    card = facts_of(make_run(tmp_path / "run", {0: before, 4: after}))
    assert card.verdict[0].startswith("Better by 0.90 on the same 20 held-out examples") and card.good is True
    few = facts_of(make_run(tmp_path / "few", {0: evaluation([WRONG] * 20), 4: evaluation([WRONG] * 16 + [RIGHT] * 4)}))
    assert few.verdict[0].startswith("No difference") and "only 4 of them changed" in few.verdict[0]


def test_skill_and_format_that_cancel_are_told(tmp_path):
    """None is right before for its form alone; after it none for what it says: the strict score did not move."""
    before, after = evaluation([BARE] * 20 + [WRONG] * 20), evaluation([LOST] * 20 + [WRONG] * 20)
    card = facts_of(make_run(tmp_path / "run", {0: before, 4: after}), leniently)
    assert "Of +0 points correct, -50 points (" in card.verdict[3] and "is skill and +50 points (" in card.verdict[3]


def test_pass_at_k_before_and_after(tmp_path):
    """Four completions of an example: one right of four is pass@1 1/4, pass@2 1/2, pass@4 1."""
    before = evaluation([RIGHT, WRONG, WRONG, WRONG] * 5, rollouts=4)
    after = evaluation([RIGHT, RIGHT, WRONG, WRONG] * 5, rollouts=4)
    card = facts_of(make_run(tmp_path / "run", {0: before, 4: after}))
    levels = {name: (one.before.mean, one.after.mean) for name, one in card.changes.items()}
    assert levels["exact"] == (0.25, 0.5) and levels["pass@4"] == (1.0, 1.0)
    assert levels["pass@2"] == (0.5, pytest.approx(5 / 6))
    assert ", by the first completion of each (McNemar" in card.verdict[1]
    assert card.comparison and card.comparison.turned.stayed_right == 5


def test_other_examples_and_ungraded_ones_are_left_out_and_counted(tmp_path):
    before, after = evaluation([WRONG] * 6), evaluation([RIGHT] * 6)
    after[0]["example_id"] = "another"
    after[1] |= {"outcome": "grader_error", "reward": None}
    card = facts_of(make_run(tmp_path / "run", {0: before, 4: after}))
    assert card.changes["reward"].count == 4 and card.comparison and card.comparison.apart == 2
    assert any("1 of 6 evaluated completions could not be graded" in line for line in card.caveats)
    assert any("2 examples could not be compared" in line for line in card.caveats)


def test_evaluations_without_a_common_example_are_not_compared(tmp_path):
    failed = ("", "grader_error", None)
    rows = {0: evaluation([failed] * 5 + [WRONG]), 4: evaluation([RIGHT] * 5)}
    card = facts_of(make_run(tmp_path / "run", rows), leniently)
    assert card.measures["reward"].mean == 1.0 and card.readings["lenient"].mean == 1.0 and card.comparison is None
    assert card.verdict[0].startswith("Mean reward 1.000") and "on 5 held-out examples of version 4" in card.verdict[0]
    assert "The evaluation of version 0 has no graded example in common with it" in card.verdict[2]
    assert "version 0" not in markdown(card).split("## To be careful")[1]


def test_a_rollout_that_a_server_did_not_deliver_is_left_out_and_counted(tmp_path):
    example = Example([{"role": "user", "content": "How many?"}], "3")
    rows = [*evaluation([RIGHT] * 3), FailedRollout(3, 0, example, "no answer").row()]
    card = facts_of(make_run(tmp_path / "run", {4: rows}))
    assert card.measures["exact"].mean == 1.0 and card.damage == []
    assert any("1 of 4 evaluated completions could not be graded" in line for line in card.caveats)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exact": False, "inexact": [{"step": 1, "cause": "a deadline"}]}, "The run is not exact"),
        ({"status": "running"}, "The run is not at its end"),
        ({"git": {"revision": "0" * 40, "dirty": True}}, "changes that are in no revision"),
        ({"status": "budget"}, "ended before its last step"),
        ({}, "This is one seed (3)"),
        ({}, "only 40 examples"),
    ],
)
def test_caveats(tmp_path, facts, words):
    rows = evaluation([RIGHT, WRONG] * 20)
    card = facts_of(make_run(tmp_path / "run", {0: rows, 4: rows}, **facts))
    assert any(words in line for line in card.caveats), card.caveats


def test_truncation_alarms_and_training_prompts_are_caveats(run):
    rows = evaluation([RIGHT] * 30 + [WRONG] * 10)
    for one in rows[:8]:
        one["stop_reason"] = "length"
    make_run(run.parent / "b", {0: rows, 4: rows})
    events = [
        {"kind": "overlap", "step": 0, "rows": 7, "checked": 90, "dropped": False},
        {"kind": "alarm", "step": 1, "name": "zero_std", "evidence": "groups agree"},
        {"kind": "alarm", "step": 2, "name": "truncation", "evidence": "cut off"},
        {"kind": "alarm_over", "step": 3, "name": "truncation"},
    ]
    (run.parent / "b" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    card = facts_of(run.parent / "b")
    said = "\n".join(card.caveats)
    assert "20 % of the evaluated completions were cut off" in said
    assert "7 are held-out ones too" in said and "Alarms that stand at the end: zero_std." in said
    assert ("alarm, over", "truncation from step 2 to 3: cut off") in card.checks


GREEDY = """
[orchestrator.sampling]
max_tokens = 19

[orchestrator.eval.sampling]
temperature = {}
top_p = {}
"""


@pytest.mark.parametrize(
    ("temperature", "top_p", "words"),
    [
        (1.0, 1.0, "sampled at T = 1, 1 completion each."),
        (0.6, 0.9, "sampled at T = 0.6, top-p 0.9, 1 completion each."),
        (0.0, 1.0, "decoded greedily, 1 completion each."),
    ],
)
def test_the_headline_says_how_it_was_sampled_and_how_to_decode_greedily(run, temperature, top_p, words):
    """A gain of samples alone has the command that measures the same weights greedily."""
    with open(run / "config.toml", "a") as config:
        config.write(GREEDY.format(temperature, top_p))
    card = facts_of(run)
    assert card.verdict[0].endswith(f"); {words}")
    command = "where it began): hone eval char-count -m WEIGHTS -n 40 -r 1 -T 0 -t 19"
    said = [line for line in card.caveats if line.endswith(command)]
    assert len(said) == (1 if temperature else 0)
    assert all(line.startswith(f"The gain is of samples at T = {temperature:g}: decoded greedily") for line in said)


def test_no_gain_has_no_word_of_greedy_decoding(tmp_path):
    one = make_run(tmp_path / "run", {0: evaluation([RIGHT, WRONG] * 20), 4: evaluation([RIGHT, WRONG] * 20)})
    with open(one / "config.toml", "a") as config:
        config.write(GREEDY.format(1.0, 1.0))
    assert not any("greedily" in line for line in facts_of(one).caveats)


def test_a_run_without_evaluations_says_how_to_get_them(tmp_path):
    card = facts_of(make_run(tmp_path / "run", {}))
    assert any("--orchestrator.eval.interval" in line for line in card.verdict) and card.good is None
    assert "whether it got better on others was not measured" in card.verdict[0]


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "events.jsonl", "evals/step_000004.jsonl"])
def test_a_damaged_file_is_said_and_the_rest_shown(run, name, tmp_path):
    (run / name).write_text("{torn\n" + "{}\n")
    card = facts_of(run)
    assert any(line.startswith("Damaged: ") and Path(name).name in line for line in card.caveats) or (
        "evals" in name and any("line" in line for line in card.caveats)
    )
    written = write_card(card, tmp_path / "card")
    assert all(file.stat().st_size > 500 for file in written)


@pytest.mark.parametrize(("name", "edit"), [
    ("evals/step_000004.jsonl", lambda text: text.replace("{", "torn", 1)),
    ("evals/step_000000.jsonl", lambda text: text.replace('"example": 0', '"example": "0"')),
    ("", None),
])  # fmt: skip
def test_samples_that_can_not_be_read_are_not_said_to_be_missing(run, name, edit):
    if edit:
        (run / name).write_text(edit((run / name).read_text()))
    else:
        shutil.rmtree(run / "evals")
    card = facts_of(run)
    lost = f"in {name} can't be read (see below)" if edit else "are not there"
    assert card.verdict[-1] == (f"The samples of its evaluations {lost}, so they are not compared example by example.")
    assert bool(card.damage) is bool(edit) and card.evaluated == []


def test_without_a_readable_run_json_there_is_no_card(run):
    (run / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run\.json is damaged"):
        facts_of(run)


def test_what_was_read_leniently_is_kept_until_the_samples_change(run):
    write_card(facts_of(run, leniently), run)
    kept = facts_of(run, stored)
    assert kept.gains == facts_of(run, leniently).gains
    lines = (run / "evals" / "step_000004.jsonl").read_text().splitlines(keepends=True)
    (run / "evals" / "step_000004.jsonl").write_text("".join(lines[1:]))
    assert "hone report" in facts_of(run, stored).leniency.why_not


def test_what_was_read_leniently_survives_json():
    reading = Leniency("", frozenset({1, 4}), {"0": {(1, 0): Answer("tag", 0.75, False)}, "4": {}}, 5)
    assert Leniency.from_record(json.loads(json.dumps(reading.record()))) == reading
    assert Leniency.from_record(Leniency("no").record()) == Leniency("no")


HOSTILE = (
    "</pre><script>alert(1)</script> <img src=x onerror=alert(2)> ````` \n````\n# Heading\n| a | b |\n\x1b[31m\u2028‮"
)


class Elements(HTMLParser):
    """Names of the elements of a page, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def hostile(tmp_path) -> Path:
    rows = [row(i, 0, HOSTILE, "wrong", 0.1) for i in range(3)]
    for one in rows:
        one["prompt"][0]["content"] = one["answer"] = one["detail"] = HOSTILE
        one["components"] = {HOSTILE: 0.1}
    evaluations = {0: rows, 4: rows}
    command = ["/bin/hone", "rl", "<script>alert(3)</script>", "```"]
    return make_run(tmp_path / "<b>run", evaluations, command=command)


def test_what_a_model_wrote_is_only_shown_on_the_page(hostile):
    page = whole_page(facts_of(hostile))
    found = Elements()
    found.feed(page)
    assert not found.names & {"script", "img", "b"} and "<script>alert(1)</script>" in found.text
    assert "\x1b" not in page and "\u2028" not in page and "default-src 'none'" in page
    assert not re.search(r'(?:src|href)="(?!data:,")', page)


def test_what_a_model_wrote_is_only_shown_in_markdown(hostile):
    text = markdown(facts_of(hostile))
    inside, fence = [], ""
    for line in text.split("\n"):
        if not fence and (match := re.match(r"(`{3,})", line)):
            fence = match[1]
        elif fence and line == fence:
            fence = ""
        elif fence:
            inside.append(line)
        else:
            assert not re.search(r"(?<!\\)<", line), line
            assert not line.startswith("# Heading")
    assert fence == "" and inside.count("# Heading") >= 1 and "````" in inside
    assert "\x1b" not in text and "\u2028" not in text


def test_a_fence_is_longer_than_what_it_holds():
    assert next(iter(fenced("a ``` b ````` c"))) == "``````"
    assert plain("a|b *c* <d>\n_e_") == r"a\|b \*c\* \<d\> \_e\_"


def test_the_record_has_the_numbers(run):
    card = facts_of(run, leniently)
    facts = json.loads(json.dumps(record(card), default=str))
    assert facts["changes"]["exact"]["difference"]["mean"] == pytest.approx(0.65)
    assert facts["turned"]["right"] == 27 and facts["versions"] == [0, 4] and facts["better"] is True
    assert facts["run"]["id"] == "id-a" and facts["steps"] == {"done": 4, "planned": 4}
    assert facts["changes"]["lenient"]["before"]["mean"] == 0.6


def test_a_certificate_is_shown_while_it_fits(run):
    from hone.runs.summary import certificate_path, pinned

    facts = {"verdict": "verified", "steps": [{"step": 2}], "date": "2026-01-02T03:04:05+00:00"}
    write_json(certificate_path(run), facts | {"sha256": pinned(run)})
    told = dict(facts_of(run).checks)["certificate"]
    assert told.startswith("verified, step 2 done again") and "changed" not in told
    write_card(facts_of(run), run)
    assert "changed" not in dict(facts_of(run).checks)["certificate"]
    (run / "hashes.jsonl").write_text("")
    assert "the run has changed since" in dict(facts_of(run).checks)["certificate"]


def test_exact_by_its_settings_is_not_said_to_be_checked(run):
    from hone.runs.summary import certificate_path, pinned

    checks = dict(facts_of(run).checks)
    assert checks["exact"].startswith("yes, by its settings: ") and checks["exact"].endswith("; not executed again yet")
    assert checks["certificate"] == f"none: hone verify {run} --steps 3 executes random steps again"
    facts = {"verdict": "verified", "steps": [{"step": 2}], "date": "2026-01-02T03:04:05+00:00"}
    write_json(certificate_path(run), facts | {"sha256": pinned(run)})
    assert dict(facts_of(run).checks)["exact"].endswith("on this machine")


def test_the_label_of_the_intervals_names_wilsons(tmp_path):
    """All examples are wrong before: resamples say nothing of such a share."""
    card = facts_of(make_run(tmp_path / "run", {0: evaluation([WRONG] * 20), 4: evaluation([RIGHT, WRONG] * 10)}))
    interval = card.changes["exact"].before.interval
    assert interval and (round(interval.low, 3), round(interval.high, 3)) == (0.0, 0.161)
    label = "by the bootstrap; of a share that is the same for all examples, such as 0 %, Wilson's. The same examples"
    assert label in markdown(card) and label.replace("'", "&#39;") in whole_page(card)


def test_the_curve_is_drawn_for_a_page_and_for_a_telephone(run):
    text = whole_page(facts_of(run))
    assert re.findall(r'<div class="(\w+)"><svg class="lines" viewBox="0 0 (\d+) ', text) == [
        ("wide", "720"),
        ("narrow", "360"),
    ]
    assert "figure.drawn .narrow { display: none; }" in text and "min-width: 32rem" not in text


def test_a_card_needs_no_heavy_library(run):
    code = f"""
import sys
from pathlib import Path
from hone.viewer.card.facts import facts_of
from hone.viewer.card.files import stored
from hone.viewer.card.page import whole_page
whole_page(facts_of(Path({str(run)!r}), stored))
print({{"torch", "scipy", "transformers", "datasets", "matplotlib"}} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_evaluation_has_a_card(tmp_path):
    folder = tmp_path / "eval"
    folder.mkdir()
    info = {
        "format": "hone-run-1",
        "id": "id-e",
        "kind": "eval",
        "status": "done",
        "seed": 0,
        "command": ["hone", "eval"],
    }
    info |= {"versions": {}, "hardware": {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0}, "threads": 1}
    write_json(folder / "run.json", info)
    (folder / "config.toml").write_text('env = "char-count"\nmodel = "m"\n')
    write_json(
        folder / "metadata.json",
        {"metrics": {}, "seconds": {"sample": 2.0}, "prompt_tokens": 5, "completion_tokens": 7},
    )
    rows = evaluation([RIGHT] * 10 + [BARE] * 10 + [WRONG] * 20)
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    card = facts_of(folder, leniently)
    assert card.verdict[0].startswith("Mean reward 0.300 (95 % interval ")
    assert card.verdict[1].startswith("Read leniently 50 % (") and card.readings["gap"].mean == 0.25
    assert ("tokens", "5 of prompts, 7 sampled") in card.costs
    assert "Strict against lenient" in markdown(card) and "<table" in whole_page(card)


def test_samples_are_the_first_of_equals():
    rows = [row(i, 0, "", "wrong", reward) for i, reward in enumerate([0.5, 1.0, 0.0, 0.4, 0.0, 1.0, 0.5, 0.6])]
    picks = {name: one.row["example"] for one in chosen(rows, {}, 0) for name in one.name.split(", ")}
    assert (picks["best"], picks["worst"], picks["median"]) == (1, 2, 6)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("evals/step_000004.jsonl", '"example": 0', '"example": "0"'),
        ("evals/step_000004.jsonl", '"detail": ""', '"detail": null'),
        ("evals/step_000004.jsonl", '"reward": 1.0', '"reward": NaN'),
        ("evals/step_000004.jsonl", '"role": "assistant"', '"roles": "assistant"'),
        ("metrics.jsonl", '"completion/length/mean": 5.0', '"completion/length/mean": Infinity'),
        ("timings.jsonl", '"time/total": 1.5', '"time/total": "x"'),
        ("events.jsonl", '"start"', '"overlap"'),
    ],
)
def test_values_that_no_run_writes_are_damage(run, name, old, new):
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))
    card = facts_of(run, leniently)
    assert len(card.damage) == 1 and any(line == f"Damaged: {card.damage[0]}" for line in card.caveats)
    assert "Damaged: " in whole_page(card) and "Damaged: " in markdown(card) and json.loads(to_json(card))


def test_changes_of_shares_are_in_percentage_points(run):
    text = markdown(facts_of(run))
    assert "Correct: 10 % → 75 %, +65.0 points (95 % interval +4" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| correct (pass@1)")]
    assert "| +65.0 points (+4" in row and "fractions" not in text
    (row,) = [line for line in text.splitlines() if line.startswith("| mean reward")]
    assert "| +0.650 (+0.4" in row


def test_one_is_no_plural(tmp_path):
    before, after = evaluation([WRONG] * 5), evaluation([WRONG] * 4 + [RIGHT])
    after[0]["example_id"] = "another"
    card = facts_of(make_run(tmp_path / "run", {0: before, 4: after}))
    assert any(line.startswith("1 example could not be compared (") for line in card.caveats)
    assert "; 1 example turned right and 0 wrong" in card.verdict[1]
    one = facts_of(make_run(tmp_path / "one", {4: evaluation([RIGHT])}))
    assert "on 1 held-out example of version 4." in one.verdict[0] and "only 1 example:" in "".join(one.caveats)
    assert difference_words(Level(0.012, None), share=True, digits=2) == "+1 point"


def test_a_card_names_weights_and_what_its_tokens_are_of(run):
    card = facts_of(run)
    best = next(one for one in card.samples if "best" in one.name)
    assert best.facts.endswith("; format 1 (weight 0.1), correctness 1 (weight 0.9)")
    assert ("tokens of the last evaluation", "600, prompts included; 2 evaluations") in card.costs


def test_samples_in_markdown_have_prompt_and_expected_answer(run):
    text = markdown(facts_of(run))
    assert re.search(
        r"Prompt:\n\n```\nuser: How many\? \(\d+\)\n```\n\nExpected answer:\n\n```\n3\n```\n\nCompletion:\n", text
    )
