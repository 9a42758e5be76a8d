"""What all tasks of hone's own promise: fixed rows and demonstrations, a reference that deserves full marks, arguments
that are checked."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest
from scramble import letters_of
from scramble import split_words as words_of_splits

from hone import rng
from hone.environments import load_environment
from hone.environments.data import common_words, load_rows
from hone.errors import UserError
from hone.types import Outcome, content_hash

DIGESTS = [
    ("calculator", {"demo_noise": 1.0}, "461b0003ebeb5872"),
    ("char-count", {}, "47d7a7512d8328bb"),
    ("char-count", {"words": 2, "demo_noise": 1.0, "seed": 3}, "4d5a375cc9802229"),
    ("countdown", {"demo_noise": 1.0}, "2516048d8d04eac6"),
    ("countdown", {"min_numbers": 4, "max_numbers": 5, "use_all": False, "seed": 2}, "02686639c51e517e"),
    ("gsm8k", {"demo_noise": 1.0}, "85145ddf17d42d93"),
    ("gsm8k", {"easy": True, "seed": 1}, "ace13f22d0d4dea0"),
    ("math-problems", {}, "78630f31005f8180"),
    ("one-shot", {"task": "countdown", "k": 3}, "f8afd5e2f7ef390e"),
    ("reverse-text", {}, "e942311b574d4b77"),
    ("reverse-text", {"demo_noise": 1.0, "min_chars": 10, "max_chars": 12}, "18a3ba960507d1fb"),
    ("reverse-text", {"demo_noise": 1.0, "separator": " "}, "2d8517ce03991c93"),
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


OUTCOMES = {0.0: Outcome.UNPARSABLE, 0.1: Outcome.WRONG, 1.0: Outcome.CORRECT, 1.1: Outcome.CORRECT}
NUTS = {
    "question": "Mia has 3 bags of 14 nuts. How many nuts has she?",
    "answer": "There are 3*14 = <<3*14=42>>42 nuts.\n#### 42",
}
REWARDS = [
    ("char-count", {}, {"word": "strawberry", "letter": "r"}, {
        1.0: ["<think>s0t0r1</think>\n<answer>3</answer>\n", "<answer>\n3\n</answer>", "There are \\boxed{3}.",
            "ANSWER: 3", "<answer>2</answer> no, <answer>3</answer>", "<answer>3 times</answer>"],
        0.1: ["<answer>2</answer>", "<answer>3</answer> no, <answer>2</answer>"],
        0.0: ["<answer>2 or 3</answer>", "<answer>three</answer>", "<answer>r</answer>", "3",
            "<think><answer>3</answer>", "<answer>3"],
    }),
    ("scramble", {}, {"word": "stop", "scrambled": "opts"}, {  # any anagram in the word list is right
        1.0: ["<answer>stop</answer>", "<answer>\n Stop. \n</answer>\n", '<answer>"**STOP**"</answer>',
            "\\boxed{stop}", "<answer>post</answer>", "<answer>psto</answer> Let me correct it. <answer>stop</answer>"],
        0.1: ["<answer>opst</answer>", "<answer>stops</answer>", "<answer>top</answer>", "<answer>table</answer>"],
        0.0: ["<answer>stop or post</answer>", "<answer>st op</answer>", "<answer>st0p</answer>", "stop",
            "<think><answer>stop</answer></think>"],
    }),
    ("countdown", {}, {"answer": "98", "info": {"nums": [44, 19, 35], "target": 98}}, {  # TinyZero's defects
        1.0: ["<answer>44+19+35</answer>\n", "<answer>\n44 + 19 + 35\n</answer>", "<answer>44+19+35 = 98</answer>",
            "<answer>(44 + 19) + 35</answer><|im_end|>", "thoughts</think>\n\n<answer>35+44+19</answer>",
            "\\boxed{44+19+35}"],
        0.1: ["<answer>44+19+35 = 97</answer>", "<answer>44+54</answer>", "<answer>44+19</answer>",
            "<answer>44+19+35+0</answer>", "<answer>44+19+35+19-19</answer>", "<answer>98</answer>",
            "<answer>44/0+19+35</answer>", "<answer>44+19+35</answer></think><answer>44-19</answer>"],
        0.0: ["<answer>any garbage</answer>", "<answer></answer>", "44+19+35", "<think><answer>44+19+35</answer>"],
    }),
    ("gsm8k", {}, NUTS, {
        1.1: ["14 a bag.\nANSWER: 42", "answer: $42.00 (three bags)", "ANSWER: **42** nuts.", "ANSWER: <42>",
            "Final Answer: The final answer is $\\boxed{42}$. I hope it is correct.", "ANSWER: 41\nNo:\nANSWER: 42",
            "ANSWER: 42\nI am sure of my answer: every step was checked."],
        0.1: ["ANSWER: 41", "ANSWER: 42\nANSWER: 41"],
        0.0: ["ANSWER: 41 or 42", "ANSWER: many", "It is 42.", "<think>ANSWER: 42</think> I am not sure.", ""],
    }),
    ("gsm8k", {"mode": "sparse"}, NUTS, {  # the last number
        1.0: ["3 bags of 14 make 42."],
        (0.0, Outcome.WRONG): ["So 42, for 3 bags", "It is 40."],
        0.0: ["I do not know."],
    }),
    *(("reverse-text", {"reward": reward}, {"text": "abc"}, {  # paid only if it is exact
        1.0: ["<reversed_text>cba</reversed_text>"],
        (paid, Outcome.WRONG): ["<reversed_text>cbb</reversed_text>"],
        0.0: ["cba"],
    }) for reward, paid in (("exact", 0.0), ("two_part", 0.1))),
]  # fmt: skip


@pytest.mark.parametrize(("task", "args", "row", "rewards"), REWARDS)
def test_rewards(task: str, args: dict, row: dict, rewards: dict):
    env = load_environment(task, **args)
    pairs = [(env.example(**row), text) for texts in rewards.values() for text in texts]
    expected = [
        key if isinstance(key, tuple) else (key, OUTCOMES[key]) for key, texts in rewards.items() for _ in texts
    ]
    scores = env.grade_many(pairs)
    assert [(round(score.reward, 9), score.outcome) for score in scores] == expected, [s.detail for s in scores]


def test_what_separates_characters_is_not_paid_for():
    env = load_environment("reverse-text", separator=" ")
    example = env.example(text="one")
    assert (example.prompt[-1]["content"], example.answer) == ("o n e", "e n o")
    answers = {"e n o": 1.0, "e n x": 2 / 3, "o n e": 1 / 3, "eno": 0.0, "e  n  o": 0.75}
    scores = env.grade_many([(example, f"<reversed_text>{text}</reversed_text>") for text in answers])
    assert [score.reward for score in scores] == pytest.approx([*answers.values()])
    assert [score.outcome for score in scores] == [Outcome.CORRECT] + [Outcome.WRONG] * 4


def test_the_set_on_the_hub_is_asked_for_by_its_config(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def read(source, split):
        asked.append((source, split))
        return load_rows(Path(__file__), split)

    monkeypatch.setattr("hone.environments.data.load_rows", read)
    env = load_environment("gsm8k", dataset="openai/gsm8k")
    for split in ("train", "eval"):
        with pytest.raises(UserError):
            env.split(split)
    assert asked == [("openai/gsm8k:main", "train"), ("openai/gsm8k:main", "test")]


@pytest.mark.parametrize(
    ("task", "rows", "asked"),
    [
        ("char-count", [{"word": "ab" * (i + 1), "letter": "b"} for i in range(20)],
         ({"question": "How many r are in strawberry?", "answer": "3"}, "<answer>3</answer>")),
        ("countdown", [{"target": 10 + i, "nums": [1 + i, 4, 5]} for i in range(20)],
         ({"nums": [2, 3], "target": 6}, "<answer>2*3</answer>")),
        ("scramble", [{"word": word} for word in common_words()[:20]],
         ({"question": "What do o, p, s and t make?", "answer": "Stop"}, "<answer>post</answer>")),
        ("reverse-text", [{"prompt": f"text {i}"} for i in range(20)],
         ({"question": "abc", "answer": "cba"}, "<reversed_text>cba</reversed_text>")),
    ],
)  # fmt: skip
def test_of_rows_of_ones_own_a_tenth_is_held_out(tmp_path: Path, task: str, rows: list, asked: tuple):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = load_environment(task, dataset=str(path))
    train, held_out = env.split("train"), env.split("eval")
    assert (len(train), len(held_out)) == (18, 2) and len({e.id for e in [*train, *held_out]}) == 20
    assert env.grade(train[0], env.reference(train[0])).reward == 1.0
    row, text = asked
    assert env.grade(env.example(**row), text).reward == 1.0


def test_words_of_the_same_letters_are_on_the_same_side():
    train, held_out = words_of_splits(3, 8)
    assert set(train) | set(held_out) == set(common_words())
    assert not set(map(letters_of, train)) & set(map(letters_of, held_out))
    assert len(held_out) == pytest.approx(len(common_words()) / 10, rel=0.05)
    assert set(words_of_splits(3, 4)[1]) == {word for word in held_out if len(word) <= 4}


def test_the_reward_of_a_reversed_text_is_the_ratcliff_obershelp_ratio_and_correct_means_exact():
    env = load_environment("reverse-text")
    cases = [("hello world", a) for a in ("dlrow olleh", "dlrow oleh", "hello world", "xyz", "dlrow  olleh")]
    for text, answer in [*cases, ("ab" * 150, "ab" * 150)]:  # of a long text without the junk heuristic
        example = env.example(text=text)
        score = env.grade(example, f"Sure. <reversed_text>\n{answer}\n</reversed_text>")
        right = answer == example.answer == text[::-1]
        assert score.reward == difflib.SequenceMatcher(None, answer, text[::-1], autojunk=False).ratio()
        assert score.outcome is (Outcome.CORRECT if right else Outcome.WRONG)
        assert score.components["exact"] == right and (score.reward == 1.0) == right
