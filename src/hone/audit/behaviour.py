"""Whether a text gets the same reward each time: in another process, twice in a row, and after other texts.

A reward that does not makes a run that nobody can repeat, and advantages that compare luck. Rewards are computed in
fresh worker processes, functions marked `inline` too: one has the texts in order, then each twice, from the last to the
first; the other has them in order again, with another hash seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Shown, Verdict
from hone.audit.trajectories import REASONING, wrong_text
from hone.environments import Environment
from hone.types import Outcome

SUBJECTS = 3
MOST_HUNG = 2
SEEDS = 8
"""Seeds over which the spread of a reward is taken that asks for a generator (`rng`)."""
_HASH_SEEDS = (0, 1)

Grade = Callable[[Text], Probe]


def check_behaviour(
    env: Environment, subjects: Sequence[Subject], texts: Sequence[Text] | None = None, seed: int = 0
) -> Check:
    """Grades the texts, by default a few right, wrong and empty ones, in several processes and orders."""
    texts = behaviour_texts(subjects[:SUBJECTS]) if texts is None else list(texts)
    trial = _Trial(env, subjects, seed)
    with env.fresh_process(_HASH_SEEDS[0]) as isolated:
        grade = trial.grader()
        texts, first = _graded(grade, texts)
        again = [(grade(text), grade(text)) for text in reversed(texts)][::-1]
    findings: list[Finding] = []
    if isolated:
        findings = trial.between_processes(texts, first)
    if not findings:
        findings = trial.within_a_process(texts, first, again, isolated)
    figures: dict[str, Any] = {"texts": len(texts), "isolated": isolated}
    if env.rubric.needs("rng"):
        figures["noise"] = trial.noise(texts)
    return Check("behaviour", _summary(len(texts), isolated, figures.get("noise")), tuple(findings), figures)


def behaviour_texts(subjects: Sequence[Subject]) -> list[Text]:
    """Right, wrong, long, empty and ambiguous texts of the subjects."""
    texts: list[Text] = []
    everything = "\n".join(subject.text for subject in subjects if subject.text)
    for subject in subjects:
        wrong = wrong_text(subject, subjects)
        kinds = [("empty", ""), ("reasoning without an answer", REASONING)]
        if subject.text:
            kinds += [("a right answer", subject.text), ("a right answer and a line break", f"{subject.text}\n")]
            kinds += [("several answers", f"{everything}\n{REASONING}\n{subject.text}")]
        if wrong is not None:
            kinds += [("a wrong answer", wrong), ("a long wrong answer", f"{REASONING * 5}\n{wrong}")]
        # Tools of the reference are called once, for they may take their time.
        called = [(name, subject.saying(text)) for name, text in kinds if name == "a right answer" and not texts]
        texts += [Text(subject, name, script) for name, script in called]
        texts += [Text(subject, name, text) for name, text in kinds]
    return texts


class _Trial:
    """Grading one task in several ways."""

    def __init__(self, env: Environment, subjects: Sequence[Subject], seed: int) -> None:
        self.env, self.subjects, self.seed = env, subjects, seed

    def grader(self, seed: int | None = None) -> Grade:
        """Grades one text at a time, so that each comes after the one before it; always, whatever hung before."""
        seed = self.seed if seed is None else seed
        return lambda text: Prober(self.env, self.subjects, seed).grade([text])[0]

    def fresh(self, texts: Sequence[Text], hash_seed: int = _HASH_SEEDS[0]) -> list[Probe]:
        """The texts graded in order by a new process."""
        with self.env.fresh_process(hash_seed):
            grade = self.grader()
            return [grade(text) for text in texts]

    def between_processes(self, texts: Sequence[Text], first: Sequence[Probe]) -> list[Finding]:
        """`nondeterministic` if another process makes other rewards of the same texts in the same order."""
        other = self.fresh(texts, _HASH_SEEDS[1])
        pair = _first_difference(first, other)
        if pair is None:
            return []
        same = self.fresh(texts)
        if (real := _first_difference(first, same)) is not None:
            title = "the same text gets another reward in another process: {}"
            remedy = "take what is drawn from the argument `rng` of the reward function, and nothing from the clock"
            return [_finding("nondeterministic", title, remedy, real, "the same in each process")]
        title = "the reward depends on the hash seed of the process, so on the order of a set: {}"
        remedy = "sort what is in the set, or take a dict or a list, which keep their order; use no hash() of a text"
        return [_finding("nondeterministic", title, remedy, pair, "the same whatever PYTHONHASHSEED is")]

    def within_a_process(
        self, texts: Sequence[Text], first: Sequence[Probe], again: Sequence[tuple[Probe, Probe]], isolated: bool
    ) -> list[Finding]:
        """`global-state` if a text graded again gets another reward, `order-dependent` if other texts change it."""
        state = "the same text gets another reward when it is graded again: {}"
        forget = "keep nothing between two gradings: no module variables, caches that pay, generators without a seed"
        for one, two in again:
            if _differ(one, two):
                return [_finding("global-state", state, forget, (one, two), "the same each time")]
        changed = [i for i, (one, _) in enumerate(again) if _differ(first[i], one)]
        if not changed:
            return []
        text = texts[changed[0]]
        pair = first[changed[0]], again[changed[0]][0]
        if not isolated:
            return [_finding("global-state", state, forget, pair, "the same each time")]
        alone = self.fresh([text] * 3)
        for one in alone[1:]:
            if _differ(alone[0], one):
                return [_finding("global-state", state, forget, (alone[0], one), "the same each time")]
        return [self._order(texts, changed[0], pair, forget)]

    def _order(self, texts: Sequence[Text], index: int, pair: tuple[Probe, Probe], remedy: str) -> Finding:
        """Which text, graded before it, changes the reward of text `index`: looked for by grading that after each.

        `pair` is what text `index` got in two orders.
        """
        text, expected = texts[index], "the same whatever came before"
        others = [one for i, one in enumerate(texts) if i != index]
        probes = self.fresh([text, *(one for other in others for one in (other, text))])
        alone, after = probes[0], probes[2::2]
        cause = next((i for i, probe in enumerate(after) if _differ(alone, probe)), None)
        title = "the reward of a text depends on what was graded before it: {}"
        if cause is None:
            return _finding("order-dependent", title, remedy, pair, expected)
        changed, before = after[cause], others[cause]
        title = f"the reward of a text depends on what was graded before it: after {before.name!r}, {{}}"
        found = _finding("order-dependent", title, remedy, (alone, changed), expected)
        completion = before.completion
        completion = completion if isinstance(completion, str) else [dict(message) for message in completion]
        words = "to change no other reward"
        return replace(
            found, shown=(*found.shown, Shown(before.subject.example.id, completion, "graded before", None, words))
        )

    def noise(self, texts: Sequence[Text]) -> dict[str, float]:
        """The spread of one text's reward over seeds: standard deviation, its mean over the texts and the largest."""
        graders = [self.grader(seed) for seed in range(SEEDS)]
        rewards = [[probe.score.reward for grade in graders if not (probe := grade(text)).failed] for text in texts]
        spreads = [float(np.std(row)) for row in rewards if len(row) > 1]
        return {"mean": float(np.mean(spreads)), "max": max(spreads)} if spreads else {"mean": 0.0, "max": 0.0}


def _graded(grade: Grade, texts: Sequence[Text]) -> tuple[list[Text], list[Probe]]:
    """The texts at which the grader was not ended, and their probes; after MOST_HUNG that were, no more are tried."""
    probes: list[Probe] = []
    hung = 0
    for text in texts:
        probe = grade(text)
        if probe.score.outcome is not Outcome.GRADER_TIMEOUT:
            probes.append(probe)
        elif (hung := hung + 1) == MOST_HUNG:
            break
    return [probe.text for probe in probes], probes


def _first_difference(ones: Sequence[Probe], others: Sequence[Probe]) -> tuple[Probe, Probe] | None:
    return next((pair for pair in zip(ones, others, strict=True) if _differ(*pair)), None)


def _differ(one: Probe, other: Probe) -> bool:
    return _result(one) != _result(other)


def _result(probe: Probe) -> tuple[Any, ...]:
    score = probe.score
    reward = None if math.isnan(score.reward) else score.reward
    return score.outcome, reward, tuple(sorted(score.components.items()))


def _finding(name: str, title: str, remedy: str, pair: tuple[Probe, Probe], expected: str) -> Finding:
    one, two = pair
    words = f"{one.name!r} gets {_got(two, one)} in place of {_got(one, two)}"
    return Finding(
        name, Verdict.FAIL, title.format(words), remedy, (one.name,), (one.shown(expected), two.shown(expected))
    )


def _got(probe: Probe, other: Probe) -> str:
    """What a text got, in as few words as tell it from what else it got."""
    if probe.failed:
        return str(probe.score.outcome)
    if probe.score.reward != other.score.reward:
        return f"{probe.score.reward:.6g}"
    if probe.score.outcome != other.score.outcome:
        return str(probe.score.outcome)
    return ", ".join(f"{name} {value:.6g}" for name, value in probe.score.components.items())


def _summary(texts: int, isolated: bool, noise: dict[str, float] | None) -> str:
    where = "in two processes and two orders" if isolated else "in one process, for no new one can load the task"
    drawn = f"; over {SEEDS} seeds of `rng` a reward spreads by {noise['mean']:.3g}" if noise else ""
    return f"{texts} texts were graded three times each or more, {where}{drawn}"
