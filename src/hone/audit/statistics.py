"""Statistics of a reward: what guessing earns, what right answers earn, and how long grading takes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hone.audit.answers import answer_of
from hone.audit.conversations import REASONING, terse_text
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.environments.parsers import message_text
from hone.environments.workers import cores

COMMON_ANSWERS = 4
"""Number of the most common answers that are tried as the answer to everything."""
HIGH_FLOOR = 0.3
"""Guessing that earns a larger share of what right answers earn is worth a note; above a half, which two answers to
choose from explain, a warning."""
FEW = 8
"""With fewer examples, one answer to all of them may be chance."""
_CONSTANT = "always answering"
BATCH = 128
SLOW_SECONDS = 1.0


def check_signal(prober: Prober, probes: Sequence[Probe]) -> Check:
    """Grade guesses, and compare them with the references. `probes` are the texts that were graded so far."""
    subjects = prober.distinct
    known = [probe for probe in probes if probe.name == "reference"]
    known = known or prober.grade([Text(s, "reference", s.reference) for s in subjects if s.reference is not None])
    references = [probe for probe in known if not probe.failed]
    ceiling = float(np.mean([probe.score.reward for probe in references])) if references else None
    guesses: dict[str, list[Probe]] = defaultdict(list)
    for probe in prober.grade(_guesses(subjects)):
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
    findings: list[Finding] = []
    if floor is not None and ceiling is not None and any(probe.correct for probe in references):
        findings += _floor(floor["strategy"], floor["reward"], blind, ceiling, len(subjects))
    findings += [*slow_findings([*probes, *references]), *_repeated_prompts(prober.subjects)]
    seconds = [probe.score.seconds for probe in references]
    latency = float(np.mean(seconds)) * BATCH / cores() if seconds else None
    figures: dict[str, Any] = {"ceiling": ceiling, "floor": floor and floor["reward"], "blind": blind}
    figures |= {"latency": {f"for_{BATCH}": latency, "cores": cores()}}
    summary = [] if ceiling is None else [f"right answers earn {ceiling:.3g}"]
    summary += [f"the best guess {floor['reward']:.3g} ({floor['strategy']})"] if floor else []
    summary += [] if latency is None else [f"{BATCH} completions are graded in {latency:.2g} s"]
    return Check("signal", ", ".join(summary) or "nothing could be graded", tuple(findings), figures)


def _guesses(subjects: Sequence[Subject]) -> list[Text]:
    """Return ways to answer everything without knowing anything. No answer is tried on the example it is from."""
    constant = {"saying nothing": "", "words without an answer": REASONING.strip()}
    texts = [Text(s, words, text) for words, text in constant.items() for s in subjects]
    texts += [Text(s, "repeating the question", message_text(s.example.prompt[-1]) or "?") for s in subjects]
    answers = Counter(_answer(s) for s in subjects if s.text)
    for answer, _ in answers.most_common(COMMON_ANSWERS):
        source = next(s for s in subjects if s.text and _answer(s) == answer)
        words = f"{_CONSTANT} {answer if len(answer) <= 40 else answer[:39] + '…'}"
        guess = terse_text(source) or source.text
        texts += [Text(s, words, guess) for s in subjects if s is not source]
    return texts


def _floor(
    words: str, reward: float, blind: Sequence[dict[str, Any]], ceiling: float, examples: int
) -> Iterator[Finding]:
    """Yield findings on the best guess against right answers."""
    bottom = 0.0 if ceiling > 0.0 else min(guess["reward"] for guess in blind)
    share = (reward - bottom) / (ceiling - bottom) if ceiling > bottom else 1.0
    enough = examples >= FEW or not words.startswith(_CONSTANT)
    if reward >= ceiling and enough:
        title = f"{words} earns {reward:.3g} on average, right answers {ceiling:.3g}: there is nothing to learn"
        remedy = "make right answers earn more than any text that knows nothing"
        yield Finding("no-signal", Verdict.FAIL, title, remedy, (words,))
    elif share > HIGH_FLOOR:
        verdict = Verdict.WARN if enough and share > 0.5 + 1 / examples else Verdict.NOTE
        title = f"{words} scores {reward:.2f} of {ceiling:.2f}: read every curve of this reward from there"
        remedy = "count right answers beside the reward, balance the answers, or pay less for what anyone can say"
        yield Finding("high-floor", verdict, title, remedy, (words,))


def slow_findings(probes: Sequence[Probe]) -> Iterator[Finding]:
    """Yield that texts take long to grade."""
    slow = [probe for probe in probes if not probe.failed and probe.score.seconds > SLOW_SECONDS]
    if slow:
        worst = max(slow, key=lambda probe: probe.score.seconds)
        title = f"grading {worst.name!r} takes {worst.score.seconds:.1f} s; {len(slow)} texts take over a second"
        remedy = "make the grader's work linear in the text: no nested repetition in patterns, no text added up by `+=`"
        yield Finding("slow-grader", Verdict.WARN, title, remedy, (worst.name,), (worst.evidence("under a second"),))


def _repeated_prompts(subjects: Sequence[Subject]) -> Iterator[Finding]:
    """Yield that prompts occur more than once, with the same or with different answers."""
    distinct = {s.example.id: s for s in subjects}.values()
    repeated, different = (
        sum(count for count in Counter(str(s.example.prompt) for s in some).values() if count > 1)
        for some in (subjects, distinct)
    )
    if repeated:
        title = f"{repeated} of {len(subjects)} sampled prompts occur more than once"
        title += f", {different} of them with different answers" if different else ""
        verdict = Verdict.WARN if different else Verdict.NOTE
        yield Finding("repeated-prompts", verdict, title, "leave out what is there twice" if different else "")


def _answer(subject: Subject) -> str:
    """Return the answer as the reference has it, else as the data does."""
    return answer_of(subject) or subject.text
