"""Statistics of a reward: what guessing earns, and what right answers earn."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hone.environments.parsers import message_text
from hone.extensions.audit.answers import answer_of
from hone.extensions.audit.conversations import REASONING, terse_text
from hone.extensions.audit.probes import Probe, Prober, Subject, Text
from hone.extensions.audit.report import Check, Finding, Verdict

COMMON_ANSWERS = 4
"""Number of most common answers to try on all examples."""
HIGH_FLOOR = 0.3
"""A guess that earns more than this share of a right answer's reward is a note; above 1/2 (two choices), a warning."""
FEW = 8
"""With fewer examples, a constant answer may be right by chance."""
_CONSTANT = "always answering"


def check_signal(prober: Prober) -> Check:
    references = [probe for probe in prober.references if not probe.failed]
    ceiling = float(np.mean([probe.score.reward for probe in references])) if references else None
    guesses: dict[str, list[Probe]] = defaultdict(list)
    for probe in prober.grade(_guesses(prober.distinct)):
        if not probe.failed:
            guesses[probe.name].append(probe)
    blind = [
        {
            "strategy": words,
            "reward": float(np.mean([probe.score.reward for probe in some])),
            "correct": float(np.mean([probe.correct for probe in some])),
            "examples": len(some),
        }
        for words, some in guesses.items()
    ]
    floor = max(blind, key=lambda guess: guess["reward"], default=None)
    findings = []
    if floor is not None and ceiling is not None and any(probe.correct for probe in references):
        findings = _floor(floor, min(guess["reward"] for guess in blind), ceiling, len(prober.distinct))
    summary = [] if ceiling is None else [f"right answers earn {ceiling:.3g}"]
    summary += [f"the best guess {floor['reward']:.3g} ({floor['strategy']})"] if floor else []
    figures = {"ceiling": ceiling, "floor": floor and floor["reward"], "blind": blind}
    return Check("signal", ", ".join(summary) or "nothing could be graded", tuple(findings), figures)


def _guesses(subjects: Sequence[Subject]) -> list[Text]:
    """Return guesses for all examples. An answer is not tried on its own example."""
    constant = {"saying nothing": "", "words without an answer": REASONING.strip()}
    texts = [Text(s, words, text) for words, text in constant.items() for s in subjects]
    texts += [Text(s, "repeating the question", message_text(s.example.prompt[-1]) or "?") for s in subjects]
    answers = {id(s): answer_of(s) or s.text for s in subjects if s.text}
    for answer, _ in Counter(answers.values()).most_common(COMMON_ANSWERS):
        source = next(s for s in subjects if answers.get(id(s)) == answer)
        words = f"{_CONSTANT} {answer if len(answer) <= 40 else answer[:39] + '…'}"
        guess = terse_text(source) or source.text
        texts += [Text(s, words, guess) for s in subjects if s is not source]
    return texts


def _floor(best: dict[str, Any], lowest: float, ceiling: float, examples: int) -> list[Finding]:
    words, reward = best["strategy"], best["reward"]
    bottom = 0.0 if ceiling > 0.0 else lowest
    share = (reward - bottom) / (ceiling - bottom) if ceiling > bottom else 1.0
    enough = examples >= FEW or not words.startswith(_CONSTANT)
    if reward >= ceiling and enough:
        title = f"{words} earns {reward:.3g} on average, right answers {ceiling:.3g}: there is nothing to learn"
        remedy = "make right answers earn more than any guess"
        return [Finding("no-signal", Verdict.FAIL, title, remedy, (words,))]
    if share <= HIGH_FLOOR:
        return []
    verdict = Verdict.WARN if enough and share > 0.5 + 1 / examples else Verdict.NOTE
    title = f"{words} scores {reward:.2f} of {ceiling:.2f}: compare all rewards with this baseline"
    remedy = "watch the correct rate besides the reward, balance the answers, or pay less for guesses"
    return [Finding("high-floor", verdict, title, remedy, (words,))]
