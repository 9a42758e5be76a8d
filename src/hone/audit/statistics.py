"""What there is to learn from a reward: what guessing earns, what right answers earn, how much groups would vary; and
how long grading takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hone import rng
from hone.audit.kinds import answer_of
from hone.audit.probes import Probe, Prober, Subject, Text
from hone.audit.report import Check, Finding, Verdict
from hone.audit.trajectories import REASONING, terse_text, wrong_text
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


@dataclass(frozen=True)
class Strategy:
    """A way to answer everything without knowing anything, and the rewards that it earned, one by example."""

    words: str
    rewards: tuple[float, ...]
    correct: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.rewards))


def check_signal(prober: Prober, probes: Sequence[Probe]) -> Check:
    """Grades guesses, references and mock groups. `probes` are the texts that were graded so far."""
    subjects = prober.distinct
    known = {_key(probe.text): probe for probe in probes}
    references = _graded(prober, _references(subjects), known)
    known |= {_key(probe.text): probe for probe in references}
    strategies = _strategies(prober, subjects)
    groups = _mock_groups(prober, subjects, known)
    lengths = _by_length(prober)
    own = [*references, *(probe for group in groups for probe in group)]
    graded = [probe for probe in (*probes, *own) if not probe.failed]
    right = [probe.score.reward for probe in references if not probe.failed]
    ceiling = float(np.mean(right)) if right else None
    knows = any(probe.correct for probe in references)
    floor = max(strategies, key=lambda strategy: strategy.mean, default=None)
    findings = [*_floor(strategies, floor, ceiling if knows else None, len(subjects)), *_slow([*probes, *own], lengths)]
    findings += _sample(prober.subjects)
    figures: dict[str, Any] = {
        "ceiling": ceiling,
        "floor": None if floor is None else floor.mean,
        "blind": [
            {"strategy": one.words, "reward": one.mean, "correct": one.correct, "examples": len(one.rewards)}
            for one in strategies
        ],
        **_group_figures(groups),
        "distinct_rewards": len({round(probe.score.reward, 6) for probe in graded}),
        "latency": _latency(own, [*probes, *own]),
        "by_length": {str(words): probe.score.seconds for words, probe in lengths.items() if not probe.failed},
        "sample": _sample_figures(prober.subjects),
    }
    return Check("signal", _summary(floor, ceiling, figures), tuple(findings), figures)


def _references(subjects: Sequence[Subject]) -> list[Text]:
    return [Text(s, "reference", s.reference) for s in subjects if s.reference is not None]


def _key(text: Text) -> tuple[str, str]:
    return text.subject.example.id, str(text.completion)


def _graded(prober: Prober, texts: Sequence[Text], known: dict[tuple[str, str], Probe]) -> list[Probe]:
    """The probes of the texts; those that were graded already are not graded again, for tools may take their time."""
    made = prober.grade([text for text in texts if _key(text) not in known])
    here = known | {_key(probe.text): probe for probe in made}
    return [Probe(text, here[_key(text)].score) for text in texts if _key(text) in here]


def _strategies(prober: Prober, subjects: Sequence[Subject]) -> list[Strategy]:
    """What guesses earn. An answer is not tried on the example that it was taken from."""
    constant = [("saying nothing", ""), ("words without an answer", REASONING.strip())]
    texts = [Text(s, words, text) for words, text in constant for s in subjects]
    texts += [Text(s, "repeating the question", message_text(s.example.prompt[-1]) or "?") for s in subjects]
    answers = Counter(_answer(s) for s in subjects if s.text)
    for answer, _ in answers.most_common(COMMON_ANSWERS):
        source = next(s for s in subjects if s.text and _answer(s) == answer)
        guess = terse_text(source)
        words = f"{_CONSTANT} {_short(answer)}"
        texts += [Text(s, words, guess or source.text) for s in subjects if s is not source]
    by_words: dict[str, list[Probe]] = {}
    for probe in prober.grade(texts):
        if not probe.failed:
            by_words.setdefault(probe.name, []).append(probe)
    return [
        Strategy(words, tuple(p.score.reward for p in found), float(np.mean([p.correct for p in found])))
        for words, found in by_words.items()
    ]


def _floor(
    strategies: Sequence[Strategy], floor: Strategy | None, ceiling: float | None, examples: int
) -> Iterator[Finding]:
    """What is found of the best guess against what right answers earn."""
    if floor is None or ceiling is None:
        return
    bottom = 0.0 if ceiling > 0.0 else min(strategy.mean for strategy in strategies)
    share = (floor.mean - bottom) / (ceiling - bottom) if ceiling > bottom else 1.0
    enough = examples >= FEW or not floor.words.startswith(_CONSTANT)
    if floor.mean >= ceiling and enough:
        yield Finding(
            "no-signal",
            Verdict.FAIL,
            f"{floor.words} earns {floor.mean:.3g} on average, right answers {ceiling:.3g}: there is nothing to learn",
            "make right answers earn more than any text that knows nothing",
            (floor.words,),
        )
    elif share > HIGH_FLOOR:
        yield Finding(
            "high-floor",
            Verdict.WARN if enough and share > 0.5 + 1 / examples else Verdict.NOTE,
            f"{floor.words} scores {floor.mean:.2f} of {ceiling:.2f}: read every curve of this reward from there",
            "count exact answers beside the reward, balance the answers, or pay less for what anyone can say",
            (floor.words,),
        )


def _mock_groups(prober: Prober, subjects: Sequence[Subject], known: dict[tuple[str, str], Probe]) -> list[list[Probe]]:
    """Groups as in training, one by example: a right text, a wrong one, one without an answer, demonstrations."""
    texts: list[Text] = []
    for index, subject in enumerate(subjects):
        if subject.reference is None:
            continue
        wrong = wrong_text(subject, subjects)
        texts.append(Text(subject, "right", subject.reference))
        texts += [Text(subject, "wrong", wrong)] if wrong else []
        texts.append(Text(subject, "unparsable", ""))
        try:
            for i in range(DEMONSTRATIONS):
                stream = rng.stream(prober.seed, "audit", "demonstrate", index, i)
                texts.append(Text(subject, "demonstration", prober.env.demonstrate(subject.example, stream)))
        except UserError:
            continue
    groups: dict[str, list[Probe]] = {}
    for probe in _graded(prober, texts, known):
        groups.setdefault(probe.text.subject.example.id, []).append(probe)
    return list(groups.values())


def _group_figures(groups: Sequence[Sequence[Probe]]) -> dict[str, Any]:
    """Standard deviations within the mock groups; of demonstrations, if they vary, the groups without any variance."""
    spreads = [float(np.std(rewards)) for group in groups if len(rewards := _rewards(group)) > 1]
    figures: dict[str, Any] = {"group_std": float(np.mean(spreads)) if spreads else None}
    taught = [[probe for probe in group if probe.name == "demonstration"] for group in groups]
    taught = [group for group in taught if len(group) > 1]
    if any(len({str(probe.text.completion) for probe in group}) > 1 for group in taught):
        zero = [max(rewards) - min(rewards) <= 1e-6 for group in taught if (rewards := _rewards(group))]
        figures["demonstrations_zero_std"] = float(np.mean(zero)) if zero else None
        figures["demonstrations_correct"] = float(np.mean([probe.correct for group in taught for probe in group]))
    return figures


def _rewards(probes: Sequence[Probe]) -> list[float]:
    return [probe.score.reward for probe in probes if not probe.failed]


def _by_length(prober: Prober) -> dict[int, Probe]:
    """The first right answer with short and with long reasoning before it, each as the quicker of two tries."""
    subject = next((s for s in prober.subjects if s.text), None)
    if subject is None:
        return {}
    found: dict[int, Probe] = {}
    for words in (SHORT_WORDS, LONG_WORDS):
        text = REASONING * (words // len(REASONING.split())) + "\n" + subject.text
        tried = [probe for _ in range(2) for probe in prober.grade([Text(subject, f"{words} words", text)])]
        if not tried or any(probe.failed for probe in tried):
            break
        found[words] = min(tried, key=lambda probe: probe.score.seconds)
    return found


def _latency(typical: Sequence[Probe], probes: Sequence[Probe]) -> dict[str, Any]:
    """Seconds that grading takes: of texts of common length, and of the slowest text of all."""
    seconds = np.array([probe.score.seconds for probe in typical if not probe.failed])
    slowest = max((p for p in probes if not p.failed), key=lambda probe: probe.score.seconds, default=None)
    if not len(seconds) or slowest is None:
        return {}
    return {
        "mean": float(seconds.mean()),
        "p95": float(np.quantile(seconds, 0.95)),
        "max": slowest.score.seconds,
        "slowest": slowest.name,
        f"for_{BATCH}": float(seconds.mean()) * BATCH / cores(),
        "cores": cores(),
    }


def _slow(probes: Sequence[Probe], lengths: dict[int, Probe]) -> Iterator[Finding]:
    """Graders that take long, or longer and longer."""
    remedy = "make the grader's work linear in the text: no nested repetition in patterns, no text added up by `+=`"
    slow = [probe for probe in probes if not probe.failed and probe.score.seconds > SLOW_SECONDS]
    if slow:
        worst = max(slow, key=lambda probe: probe.score.seconds)
        title = f"grading {worst.name!r} takes {worst.score.seconds:.1f} s; {len(slow)} texts take over a second"
        yield Finding("slow-grader", Verdict.WARN, title, remedy, (worst.name,), (worst.shown("less than a second"),))
    short, long = lengths.get(SHORT_WORDS), lengths.get(LONG_WORDS)
    if short is None or long is None or short.failed or long.failed:
        return
    expected = short.score.seconds * LONG_WORDS / SHORT_WORDS
    if long.score.seconds > max(_MEASURABLE, _SUPERLINEAR * expected):
        title = (
            f"grading grows faster than the text: {short.score.seconds:.2g} s for {SHORT_WORDS:,} words, "
            f"{long.score.seconds:.2g} s for {LONG_WORDS:,}"
        )
        yield Finding("slow-grader", Verdict.WARN, title, remedy, ("length",))


def _sample(subjects: Sequence[Subject]) -> Iterator[Finding]:
    """What is odd about the examples themselves."""
    figures = _sample_figures(subjects)
    if repeated := figures["repeated_prompts"]:
        different = figures["contradicting_prompts"]
        title = f"{repeated} of {len(subjects)} sampled prompts occur more than once"
        if different:
            title += f", {different} of them with different answers"
        verdict = Verdict.WARN if different else Verdict.NOTE
        yield Finding("repeated-prompts", verdict, title, "leave out what is there twice" if different else "")
    told = figures["answer_in_prompt"]
    if told and told >= 0.5 * len(subjects):
        title = f"in {told} of {len(subjects)} sampled examples the answer stands in the prompt, word for word"
        yield Finding("answer-in-prompt", Verdict.NOTE, title, "check that the task is not given away")


def _sample_figures(subjects: Sequence[Subject]) -> dict[str, Any]:
    prompts = Counter(str(s.example.prompt) for s in subjects)
    distinct = {s.example.id: s for s in subjects}.values()
    by_prompt = Counter(str(s.example.prompt) for s in distinct)
    answers = Counter(answer for s in subjects if (answer := _answer(s)))
    common = answers.most_common(1)
    return {
        "examples": len(subjects),
        "repeated_prompts": sum(count for count in prompts.values() if count > 1),
        "contradicting_prompts": sum(count for count in by_prompt.values() if count > 1),
        "distinct_answers": len(answers),
        "most_common_answer": {"answer": common[0][0], "share": common[0][1] / len(subjects)} if common else None,
        "answer_in_prompt": sum(_is_told(subject) for subject in subjects),
    }


def _is_told(subject: Subject) -> bool:
    """Whether an answer of some length stands in what the user said."""
    said = "\n".join(message_text(m) for m in subject.example.prompt if m.get("role") == "user")
    answer = _answer(subject)
    return len(answer) > 2 and answer in said


def _answer(subject: Subject) -> str:
    """The answer as the reference has it, else as the data does."""
    return answer_of(subject) or subject.text


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _summary(floor: Strategy | None, ceiling: float | None, figures: dict[str, Any]) -> str:
    parts = []
    if ceiling is not None:
        parts.append(f"right answers earn {ceiling:.3g}")
    if floor is not None:
        parts.append(f"the best guess {floor.mean:.3g} ({floor.words})")
    if figures["group_std"] is not None:
        parts.append(f"{figures['group_std']:.2g} of spread in a mixed group")
    if latency := figures["latency"]:
        parts.append(f"{BATCH} completions are graded in {latency[f'for_{BATCH}']:.2g} s")
    return ", ".join(parts) or "nothing could be graded"
