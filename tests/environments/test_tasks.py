"""What all tasks of hone's own promise: fixed rows and demonstrations, a reference that deserves full marks, arguments
that are checked."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hone import rng
from hone.environments import load_environment
from hone.errors import UserError
from hone.types import Outcome, content_hash

DIGESTS = [
    ("calculator", {"demo_noise": 1.0}, "461b0003ebeb5872"),
    ("char-count", {}, "47d7a7512d8328bb"),
    ("char-count", {"words": 2, "demo_noise": 1.0, "seed": 3}, "4d5a375cc9802229"),
    ("countdown", {"demo_noise": 1.0}, "2516048d8d04eac6"),
    ("countdown", {"min_numbers": 4, "max_numbers": 5, "use_all": False, "seed": 2}, "02686639c51e517e"),
    ("gsm8k", {"demo_noise": 1.0}, "85145ddf17d42d93"),
    ("math-problems", {}, "78630f31005f8180"),
    ("one-shot", {"task": "countdown", "k": 3}, "f8afd5e2f7ef390e"),
    ("reverse-text", {}, "e942311b574d4b77"),
    ("reverse-text", {"demo_noise": 1.0, "min_chars": 10, "max_chars": 12}, "18a3ba960507d1fb"),
    ("scramble", {"demo_noise": 1.0, "seed": 5}, "549399efa71bbde7"),
]
"""Of prompts, answers and demonstrations of the first rows: a recorded run is resumed and replayed on the same ones."""


@pytest.mark.parametrize(("task", "kwargs", "digest"), DIGESTS)
def test_rows_and_demonstrations_are_fixed_for_ever(task: str, kwargs: dict, digest: str):
    env = load_environment(task, **kwargs)
    made = []
    for split in ("train", "eval"):
        examples = env.split(split)[:50]
        made += [[e.id, env.demonstrate(e, rng.stream(0, "demo", i))] for i, e in enumerate(examples)]
        for example in examples[:10]:
            score = env.grade(example, env.reference(example))
            assert (score.reward, score.outcome) == (pytest.approx(sum(env.rubric.weights.values())), Outcome.CORRECT)
    assert not {e.id for e in env.split("train")[:500]} & {e.id for e in env.split("eval")[:500]}
    assert content_hash(made) == digest


@pytest.mark.parametrize(
    ("task", "kwargs", "why"),
    [
        ("calculator", {"demo_noise": 4.0}, "demo_noise is 4.0"),
        ("char-count", {"prompt": "How many {letter}?"}, "must contain {word}"),
        ("char-count", {"words": 0}, "words is 0: input should be greater than or equal to 1"),
        ("countdown", {"min_numbers": 1}, "min_numbers is 1"),
        ("countdown", {"max_numbers": 7}, "max_numbers is 7"),
        ("countdown", {"min_target": 200}, "max_target is 100; it must be at least min_target, 200"),
        ("countdown", {"operations": "+%"}, "operations is '+%'"),
        ("countdown", {"prompt": "{nums}"}, "must contain {nums} and {target}"),
        ("gsm8k", {"mode": "dense"}, "mode is 'dense'"),
        ("gsm8k", {"num_eval_examples": 0}, "num_eval_examples is 0"),
        ("one-shot", {"examples": 3}, "examples is 3"),
        ("one-shot", {"task": "one-shot"}, "task is one-shot itself"),
        ("one-shot", {"k": 200}, "k is 200 and rows is 128"),
        ("reverse-text", {"num_train_examples": 0}, "num_train_examples is 0"),
        ("reverse-text", {"demo_noise": 4}, "demo_noise is 4"),
        ("reverse-text", {"min_chars": "8"}, "min_chars is '8': input should be a valid integer"),
        ("reverse-text", {"min_chars": 20}, "max_chars is 16; it must be at least min_chars, 20"),
        ("scramble", {"min_chars": 9, "max_chars": 9}, "min_chars is 9"),
        ("scramble", {"seeds": 1}, "did you mean 'seed'?"),
    ],
)
def test_wrong_arguments_are_named(task: str, kwargs: dict, why: str):
    with pytest.raises(UserError) as caught:
        load_environment(task, **kwargs)
    assert why in str(caught.value)


@pytest.mark.parametrize("task", ["reverse-text", "char-count", "scramble", "gsm8k", "countdown"])
def test_a_noisier_teacher_is_wrong_more_often(task: str):
    shares = []
    for noise in (0.0, 1.0, 3.0):
        env = load_environment(task, demo_noise=noise)
        pairs = [(e, env.demonstrate(e, rng.stream(0, "demo", e.id))) for e in env.split("train")[:200]]
        shares.append(sum(score.outcome is Outcome.CORRECT for score in env.grade_many(pairs)) / 200)
    assert shares[0] == 1.0 and all(after < before for before, after in pairwise(shares))
