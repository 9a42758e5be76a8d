"""What an audit makes of the findings of its checks: each told once, allowed by name, and shown as it is."""

from __future__ import annotations

import io

import pytest
from made import TAGS, Sums, prober, right, sums, task_file
from rich.console import Console

from hone.environments import Rubric
from hone.environments.environment import Limits
from hone.errors import UserError
from hone.extensions.audit.environment import audit_before_training, audit_environment
from hone.extensions.audit.probes import AT_ONCE, Text
from hone.extensions.audit.report import Check, Finding, Report, Verdict, show_report
from hone.types import Outcome

NOISY = """
    import random
    def noisy(completion, answer, parser):
        return float(parser.parse_answer(completion) == answer)
    def bonus(completion):
        return 2 * random.random() + len(completion[-1]["content"]) / 100
    RUBRIC = Rubric([noisy, bonus], [1.0, 1.0], parser=TAGS)
"""


@pytest.mark.parametrize("name", ["false-negative", "false_negative", "false_negative:full_stop", "grwoth"])
def test_a_finding_or_a_text_of_it_is_allowed_by_name_and_a_slip_is_told(name: str) -> None:
    report = audit_environment(sums(Rubric([right])), num_examples=2, allows={name: "tags hold the bare number"})
    (finding,) = [finding for finding in report.findings if finding.name == "false-negative"]
    assert ("full-stop" in finding.what) == (name == "grwoth" or ":" not in name)
    assert finding.allowed == (None if ":" in name or name == "grwoth" else "tags hold the bare number")
    assert report.names() == (set() if finding.allowed else {"false-negative"})
    assert ("unused-allow" in report.names(Verdict.NOTE)) == (name == "grwoth")


def test_what_nothing_else_can_grade_is_refused() -> None:
    env = sums(Rubric([right]))
    env.why_not_graded = "a program rewards its own rollouts"
    with pytest.raises(UserError, match="can't be audited: a program rewards"):
        audit_environment(env, num_examples=2)


def test_the_references_of_the_other_split_are_graded_too() -> None:
    """Its answers are marked as in GSM8K's file, which the reference leaves out and the grader does not."""

    class Marked(Sums):
        def reference(self, example):
            return f"<answer>{example.answer.removeprefix('#### ')}</answer>"

    held_out = [{"question": "What is 2 + 2?", "answer": "#### 4"}]
    rows = [{"question": "What is 1 + 2?", "answer": "3"}]
    env = Marked(id="sums", rubric=Rubric([right]), parser=TAGS, dataset=rows, eval_dataset=held_out)
    report = audit_environment(env, num_examples=2)
    (found,) = [finding for finding in report.findings if finding.name == "reference"]
    assert found.title == "1 of 1 references are not correct"
    assert [check.name for check in report.checks if found in check.findings] == ["eval split"]


def test_a_grader_that_hangs_everywhere_is_left_after_the_first_texts(tmp_path, monkeypatch) -> None:
    """Not after a deadline for each of a hundred."""
    source = """
    def stuck(completion):
        while True:
            pass
    RUBRIC = Rubric([stuck])
    """
    env = task_file(tmp_path, monkeypatch, source)
    env.limits = Limits(timeout=0.1)
    made = prober(env, 1)
    probes = made.grade([Text(made.subjects[0], f"text {i}", str(i)) for i in range(100)])
    env.close_workers()
    assert [probe.name for probe in probes] == [f"text {i}" for i in range(AT_ONCE)]
    assert all(probe.score.outcome is Outcome.GRADER_TIMEOUT for probe in probes)


def test_a_finding_that_is_allowed_hides_none(tmp_path, monkeypatch) -> None:
    """Rewards that differ from process to process leave nothing to be said about the rest, unless they are meant so."""
    env = task_file(tmp_path, monkeypatch, NOISY)
    assert audit_environment(env, num_examples=2).names() == {"nondeterministic"}
    assert "inversion" in audit_environment(env, num_examples=2, allows={"nondeterministic": "a judge"}).names()


def test_what_is_hostile_stays_out_of_this_process() -> None:
    """Of a task that no other process can load: a grader that hangs, or runs code, would do it here."""
    seen: list[str] = []

    def sees(completion, answer, parser):
        seen.append(completion[-1]["content"])
        return right(completion, answer, parser)

    assert "not-isolated" in audit_environment(sums(Rubric([sees])), num_examples=2).names(Verdict.NOTE)
    assert len(seen) > 100 and not any("__import__" in text or "9**9**9" in text for text in seen)


def test_a_reward_without_weight_for_being_right_is_refused() -> None:
    report = audit_before_training(sums(Rubric([right], [0.0], parser=TAGS)))
    (found,) = [finding for finding in report.failures if finding.name == "inversion"]
    assert found.remedy == "give right, which decides what is right, a weight above 0"


def test_data_is_shown_as_it_is() -> None:
    """Rich reads markup and emoji in plain strings: an answer such as [/b] would end the audit."""
    rows = [{"strategy": "always answering [/b] :smile:", "reward": 1.0}]
    finding = Finding("high-floor", Verdict.WARN, "always answering [/b]", "pay [red]less")
    check = Check("signal", "the best guess [/b] \x1b[31m", (finding,), {"blind": rows})
    out = io.StringIO()
    show_report(Console(file=out, width=100, highlight=False), Report("made", (check,)))
    shown = out.getvalue()
    assert "the best guess [/b] \\x1b[31m" in shown and "always answering [/b] :smile:" in shown and "\x1b" not in shown
