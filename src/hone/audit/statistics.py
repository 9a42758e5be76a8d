"""What there is to learn from a reward: what guessing earns, what right answers earn, how much groups would vary; and
how long grading takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hone import rng
from hone.audit.answers import answer_of
from hone.audit.conversations import REASONING, terse_text, wrong_text
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.environments.parsers import message_text
from hone.environments.workers import cores
from hone.errors import UserError

DEMONSTRATIONS = 5
"""Demonstrations in a mock group, beside a right, a wrong and an unparsable text."""
COMMON_ANSWERS = 4
"""How many of the most common answers are tried as the answer to everything."""
HIGH_FLOOR = 0.3
"""Guessing that earns a larger share of what right answers earn is worth a note; above a half, which two answers to
choose from explain, a warning."""
FEW = 8
"""Of fewer examples, one answer to all of them may be chance."""
_CONSTANT = "always answering"
BATCH = 128
SLOW_SECONDS = 1.0
SHORT_WORDS, LONG_WORDS = 1_000, 16_000
_SUPERLINEAR = 4.0
"""A grader that takes this many times longer for a long text than its length explains does not grow linearly."""
_MEASURABLE = 0.25
"""Seconds for the long text below which its growth does not matter."""
_REMEDY = "make the grader's work linear in the text: no nested repetition in patterns, no text added up by `+=`"


def check_signal(prober: Prober, probes: Sequence[Probe]) -> Check:
    """Grade guesses, references and mock groups. `probes` are the texts that were graded so far."""
    subjects = prober.distinct
    groups = _mock_groups(prober, subjects, probes)
    references = [probe for group in groups for probe in group if probe.name == "right" and not probe.failed]
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
    own = [probe for group in groups for probe in group]
    findings += [*slow_findings([*probes, *own], _by_length(prober)), *_odd_examples(prober.subjects)]
    rewards = [[probe.score.reward for probe in group if not probe.failed] for group in groups]
    spreads = [float(np.std(row)) for row in rewards if len(row) > 1]
    spread = float(np.mean(spreads)) if spreads else None
    seconds = [probe.score.seconds for probe in own if not probe.failed]
    latency = float(np.mean(seconds)) * BATCH / cores() if seconds else None
    figures: dict[str, Any] = {"ceiling": ceiling, "floor": floor and floor["reward"], "blind": blind}
    figures |= {"group_std": spread, "latency": {f"for_{BATCH}": latency, "cores": cores()}}
    summary = [] if ceiling is None else [f"right answers earn {ceiling:.3g}"]
    summary += [f"the best guess {floor['reward']:.3g} ({floor['strategy']})"] if floor else []
    summary += [] if spread is None else [f"{spread:.2g} of spread in a mixed group"]
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
    """Yield what is found of the best guess against what right answers earn."""
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


def _mock_groups(prober: Prober, subjects: Sequence[Subject], probes: Sequence[Probe]) -> list[list[Probe]]:
    """Grade groups as in training, one by example: a right text, a wrong one, one without an answer, demonstrations.

    What was graded already is not graded again, for tools may take their time.
    """
    texts: list[Text] = []
    for index, subject in enumerate(subjects):
        if subject.reference is None:
            continue
        wrong = wrong_text(subject, subjects)
        texts += [Text(subject, "right", subject.reference), Text(subject, "unparsable", "")]
        texts += [Text(subject, "wrong", wrong)] if wrong else []
        try:
            for i in range(DEMONSTRATIONS):
                stream = rng.stream(prober.seed, "audit", "demonstrate", index, i)
                texts.append(Text(subject, "demonstration", prober.env.demonstrate(subject.example, stream)))
        except UserError:
            continue
    known = {_key(probe.text): probe.score for probe in probes}
    known |= {_key(probe.text): probe.score for probe in prober.grade([t for t in texts if _key(t) not in known])}
    groups: dict[str, list[Probe]] = defaultdict(list)
    for text in texts:
        if _key(text) in known:
            groups[text.subject.example.id].append(Probe(text, known[_key(text)]))
    return list(groups.values())


def _key(text: Text) -> tuple[str, str]:
    return text.subject.example.id, str(text.completion)


def _by_length(prober: Prober) -> list[Probe]:
    """Grade the first right answer with short and with long reasoning before it; each is the quicker of two tries."""
    subject = next((s for s in prober.subjects if s.text), None)
    if subject is None:
        return []
    found: list[Probe] = []
    for words in (SHORT_WORDS, LONG_WORDS):
        text = REASONING * (words // len(REASONING.split())) + "\n" + subject.text
        tried = [probe for _ in range(2) for probe in prober.grade([Text(subject, f"{words} words", text)])]
        if not tried or any(probe.failed for probe in tried):
            return []
        found.append(min(tried, key=lambda probe: probe.score.seconds))
    return found


def slow_findings(probes: Sequence[Probe], by_length: Sequence[Probe]) -> Iterator[Finding]:
    """Yield graders that take long, or longer and longer. `by_length`: a short and a long text, or nothing."""
    slow = [probe for probe in probes if not probe.failed and probe.score.seconds > SLOW_SECONDS]
    if slow:
        worst = max(slow, key=lambda probe: probe.score.seconds)
        title = f"grading {worst.name!r} takes {worst.score.seconds:.1f} s; {len(slow)} texts take over a second"
        yield Finding("slow-grader", Verdict.WARN, title, _REMEDY, (worst.name,), (worst.shown("under a second"),))
    if by_length:
        short, long = (probe.score.seconds for probe in by_length)
        if long > max(_MEASURABLE, _SUPERLINEAR * short * LONG_WORDS / SHORT_WORDS):
            times = f"{short:.2g} s for {SHORT_WORDS:,} words, {long:.2g} s for {LONG_WORDS:,}"
            title = f"grading grows faster than the text: {times}"
            yield Finding("slow-grader", Verdict.WARN, title, _REMEDY, ("length",))


def _odd_examples(subjects: Sequence[Subject]) -> Iterator[Finding]:
    """Yield what is odd about the examples themselves."""
    repeated = _count_repeated(str(s.example.prompt) for s in subjects)
    distinct = {s.example.id: s for s in subjects}.values()
    different = _count_repeated(str(s.example.prompt) for s in distinct)
    if repeated:
        title = f"{repeated} of {len(subjects)} sampled prompts occur more than once"
        title += f", {different} of them with different answers" if different else ""
        verdict = Verdict.WARN if different else Verdict.NOTE
        yield Finding("repeated-prompts", verdict, title, "leave out what is there twice" if different else "")
    prompts = ["\n".join(message_text(m) for m in s.example.prompt if m.get("role") == "user") for s in subjects]
    given = sum(len(_answer(s)) > 2 and _answer(s) in prompt for s, prompt in zip(subjects, prompts, strict=True))
    if given and given >= 0.5 * len(subjects):
        title = f"in {given} of {len(subjects)} sampled examples the answer stands in the prompt, word for word"
        yield Finding("answer-in-prompt", Verdict.NOTE, title, "check that the task is not given away")


def _count_repeated(texts: Iterator[str]) -> int:
    return sum(count for count in Counter(texts).values() if count > 1)


def _answer(subject: Subject) -> str:
    """Return the answer as the reference has it, else as the data does."""
    return answer_of(subject) or subject.text
