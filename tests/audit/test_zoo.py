"""Broken rewards, as people have written them, are each caught with the right verdict; sound ones are left in peace.

Behaviours pinned here; changing one is a decision:
- each task in `zoo/` fails its audit by the finding that names its defect, and by no other than those that follow from
  the same defect: a verdict that misleads is as bad as none;
- no task in `zoo/sound/` fails, whatever form its answers have.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.audit.environment import audit_environment
from hone.audit.report import Report
from hone.environments import load_environment

pytestmark = pytest.mark.audit

ZOO = Path(__file__).parent / "zoo"
EXAMPLES = 4
MORE_EXAMPLES = {"wrong_data": 8, "unparsable_gold": 6, "prime_witness": 6}
"""Tasks of which not every example shows the defect."""

STYLE = "false-negative growth"
"""A reader that is strict in one way is strict in others."""
PAID = "garbage-paid"
"""What is paid beside the answer is paid without one, too."""
BROKEN: dict[str, tuple[str, str]] = {
    "always_one": ("always-right", ""),
    "any_of_many": ("false-positive", ""),
    "believes": ("false-positive", ""),
    "best_so_far": ("global-state", ""),
    "boxed_prompt": ("instructions", ""),
    "case_sensitive": ("false-negative", ""),
    "clock": ("nondeterministic", ""),
    "declared_inversion": ("inversion", PAID),
    "either_in": ("false-positive", f"no-signal {STYLE}"),
    "env_raises": ("raises", ""),
    "eval_tool": ("side-effect", ""),
    "evals_answer": ("side-effect", f"hangs {STYLE}"),
    "execs_code": ("side-effect", "hangs"),
    "exit_code": ("false-positive", f"side-effect {STYLE}"),
    "first_chars": ("growth", ""),
    "first_number": ("growth", f"false-positive {STYLE}"),
    "first_tag": ("false-negative", STYLE),
    "format_garbage": ("garbage-paid", ""),
    "graded_tool_output": ("false-positive", ""),
    "greedy_tag": ("false-negative", STYLE),
    "hangs_exponent": ("hangs", f"raises {STYLE}"),
    "hangs_loop": ("hangs", ""),
    "hangs_regex": ("hangs", f"false-positive {STYLE}"),
    "hash_tiebreak": ("nondeterministic", ""),
    "keywords": ("false-positive", ""),
    "last_chars": ("growth", STYLE),
    "last_line_only": ("false-negative", STYLE),
    "last_number": ("growth", ""),
    "length_bonus": ("inversion", PAID),
    "long_wish": ("length", ""),
    "longest_so_far": ("order-dependent", PAID),
    "nan_reward": ("raises", PAID),
    "nested_box": ("reference", f"instructions {STYLE}"),
    "nothing_after": ("growth", STYLE),
    "novelty": ("global-state", PAID),
    "out_of_range": ("range", PAID),
    "pays_each_turn": ("inversion", ""),
    "prompt_graded": ("always-right", ""),
    "raises_always": ("raises", ""),
    "raises_no_match": ("raises", ""),
    "random_reward": ("nondeterministic", ""),
    "repetition_penalty": ("inversion", ""),
    "shell_answer": ("side-effect", STYLE),
    "short_beats_right": ("inversion", ""),
    "sign_blind": ("false-positive", ""),
    "strict_marker": ("false-negative", STYLE),
    "string_equality": ("false-negative", STYLE),
    "substring": ("false-positive", "no-signal"),
    "swallowed_error": ("reference", ""),
    "swapped_gold": ("reference", "false-positive"),
    "sympify_answer": ("side-effect", f"hangs false-positive {STYLE}"),
    "tag_count": ("inversion", PAID),
    "thousands": ("false-negative", STYLE),
    "tool_bonus": ("inversion", PAID),
    "trimmings": ("inversion", ""),
    "truncates": ("false-positive", ""),
    "unparsable_gold": ("false-positive", ""),
    "wide_tolerance": ("false-positive", ""),
    "wrong_data": ("reference", ""),
    "xmlcount": ("inversion", f"{PAID} {STYLE}"),
}
"""The finding that names the defect, and those that may come with it."""
SOUND = sorted(path.stem for path in (ZOO / "sound").glob("*.py"))


def audited(task: str, folder: Path, monkeypatch: pytest.MonkeyPatch, timeout: float = 1.0) -> Report:
    monkeypatch.chdir(folder)
    examples = MORE_EXAMPLES.get(task, EXAMPLES)
    return audit_environment(load_environment(task), num_examples=examples, timeout=timeout, max_tokens=128)


def told(report: Report) -> str:
    """The failures, to read in a failed test."""
    lines = []
    for finding in report.failures:
        lines.append(f"{finding.name}: {finding.title}")
        lines += [f"    {shown.text[:200]!r} {shown.outcome} {shown.reward}" for shown in finding.shown]
    return "\n".join(lines) or "no failure"


@pytest.mark.parametrize("task", BROKEN)
def test_a_broken_reward_is_caught_by_its_name(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, also = BROKEN[task]
    hangs = "hangs" in (expected, *also.split())
    report = audited(task, ZOO, monkeypatch, timeout=0.5 if hangs else 1.0)
    assert expected in report.names(), told(report)
    assert report.names() <= {expected, *also.split()}, told(report)


@pytest.mark.parametrize("task", SOUND)
def test_a_sound_reward_passes(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = audited(task, ZOO / "sound", monkeypatch)
    assert not report.failures, told(report)


def test_every_task_of_the_zoo_is_tested_and_says_where_it_was_seen() -> None:
    assert {path.stem for path in ZOO.glob("*.py")} == BROKEN.keys()
    for path in ZOO.glob("*.py"):
        assert "\nSeen: " in path.read_text().split('"""')[1], path.name
    assert len(SOUND) >= 20
