"""The same text, the same reward: in another process, again, and in another order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made import prober, right, sums, task_file

from hone.config.shared import GradingConfig
from hone.environments import Rubric, load_environment
from hone.extensions.audit.behaviour import check_behaviour
from hone.extensions.audit.probes import subjects_of
from hone.extensions.audit.report import Verdict

pytestmark = pytest.mark.audit

SOURCES = {
    "random": ("import random", "random.random()"),
    "hashed": ("", 'len(next(iter(set(text.split())), "")) / 100'),
    "cached": ("seen = set()", "float(text not in seen and not seen.add(text))"),
    "longest": (
        "best = [0]",
        "best.append(max(best[-1], len(text))) or float(len(text) == best[-1])",
    ),
    "sound": ("import functools\n    known = functools.cache(len)", "known(text) / 1000"),
    "hangs": ("", "[0 for _ in iter(int, 1)]"),
}
"""What stands before a reward, and its value for a `text`."""


def check(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    before, value = SOURCES[name]
    source = f"""
    {before}
    {"@inline" if name == "hashed" else ""}
    def part(completion):
        text = completion[-1]["content"]
        return {value}
    RUBRIC = Rubric([right, part], [1.0, 0.1])
    """
    env = task_file(folder, monkeypatch, source)
    env.use_workers(GradingConfig(workers=1, timeout=0.5))
    try:
        return check_behaviour(env, subjects_of(env, 3, seed=0))
    finally:
        env.close_workers()


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (
            "random",
            "nondeterministic",
            "another reward in another process: 'a right answer' gets 1.0",
        ),
        ("hashed", "nondeterministic", "another reward in another process"),
        ("cached", "global-state", "'a right answer' gets 1 instead of 1.1"),
        ("longest", "global-state", "the reward of a text depends on what was graded before it: '"),
    ],
)
def test_each_way_not_to_be_a_function_is_told_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str, words: str
) -> None:
    findings = check(tmp_path, monkeypatch, source).findings
    assert [(finding.name, finding.verdict) for finding in findings] == [(name, Verdict.FAIL)]
    assert words in findings[0].title
    one, two = findings[0].shown[:2]
    assert one.completion == two.completion and one.reward != two.reward


@pytest.mark.parametrize(("source", "texts"), [("sound", range(11, 10_000)), ("hangs", [0])])
def test_a_cache_is_sound_and_a_grader_that_hangs_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, texts
) -> None:
    done = check(tmp_path, monkeypatch, source)
    assert done.findings == () and done.figures["isolated"] and done.figures["texts"] in texts


def test_a_task_that_no_process_can_load_is_tried_here() -> None:
    seen = []

    def novelty(completion):
        seen.append(1)
        return 1 / len(seen)

    env = sums(Rubric([right, novelty], [1.0, 0.1]))
    done = check_behaviour(env, prober(env, 3).subjects)
    assert [finding.name for finding in done.findings] == ["global-state"]
    assert not done.figures["isolated"] and "in one process" in done.summary


def test_a_fresh_process_leaves_the_task_as_it_was() -> None:
    env = load_environment("math-problems")
    env.use_workers(GradingConfig(workers=2, timeout=7.0))
    example = env.split("train")[0]
    env.grade(example, "")
    before, limits = env._workers, env.limits
    with env.fresh_process(hash_seed=3) as isolated:
        assert isolated and env.isolated and env._workers is not before
        assert env.limits.workers == 1 and env.limits.timeout == 7.0
        env.grade(example, "")
        (pid,) = env._workers.pool.pids  # type: ignore[union-attr]
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if Path("/proc").is_dir() else []
        assert not variables or b"PYTHONHASHSEED=3" in variables
    assert env._workers is before and env.limits == limits and not env.isolated
    assert before is not None and all(Path(f"/proc/{one}").exists() or os.name != "posix" for one in before.pool.pids)
    env.close_workers()
