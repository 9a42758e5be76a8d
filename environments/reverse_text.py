"""reverse-text: write a text backwards, character by character.

The reward is the similarity of the answer to the reversed text, `difflib.SequenceMatcher(autojunk=False).ratio()`:
twice the matching characters over the characters of both, where matches are found by Ratcliff and Obershelp's longest
common blocks. That is not LCS (the longest common subsequence), although the field often calls it so. An answer is
correct if it is exact. `reward = "exact"` pays nothing else, `"two_part"` also 0.1 for a wrong answer in its tags.

    hone eval reverse-text -m outputs/weights/step_100 -n 20

By default phrases are generated from a list of common English words; a tenth of the words is held out, and evaluation
phrases are made of those words alone. `dataset` names a JSONL or Parquet file or a data set on the hub instead.
"""

from __future__ import annotations

import difflib
import functools
import math
from typing import Any, Literal

import numpy as np

from hone.environments import Parser, Range, Rubric, SingleTurnEnv, TagParser, answer_rubric, inline
from hone.environments.data import Count, Noise, Row, Rows, generated_rows, hold_out, split_words, train_and_eval
from hone.errors import UserError
from hone.types import Example, Message

PARSER = TagParser("reversed_text")
SYSTEM_PROMPT = "Reverse the text character-by-character. Put your answer in <reversed_text> tags."
LETTERS = "abcdefghijklmnopqrstuvwxyz "


@inline
def similarity(completion: list[Message], answer: str, parser: Parser, info: dict[str, Any] | None = None) -> float:
    """Return the Ratcliff-Obershelp similarity of the given and the right answer, in [0, 1]; 0 without an answer."""
    given, between = parser.parse_answer(completion), (info or {}).get("separator")
    if given is None:
        return 0.0
    both = (given.split(between), answer.split(between)) if between else (given, answer)
    return difflib.SequenceMatcher(None, *both, autojunk=False).ratio()


@inline
def exact(completion: list[Message], answer: str, parser: Parser) -> float:
    """Return 1 if the answer is exactly right, else 0. Its weight is 0: it decides correctness alone."""
    return float(parser.parse_answer(completion) == answer)


RANGES = {
    "similarity": Range(right=(1.0, 1.0), wrong=(0.0, math.nextafter(1.0, 0.0))),
    "exact": Range(right=(1.0, 1.0), wrong=(0.0, 0.0)),
}
RUBRICS = {
    "similarity": Rubric([similarity, exact], [1.0, 0.0], correctness=exact, ranges=RANGES),
    "exact": Rubric([exact], correctness=exact, ranges={"exact": RANGES["exact"]}),
    "two_part": answer_rubric(exact),
}


class ReverseText(SingleTurnEnv):
    """Rows have `text`; or `prompt` or `question`, with `answer` or, without one, holding just the text to reverse."""

    answer_is_exact = True

    def __init__(self, *, reward: str, prompt: str, separator: str, demo_noise: float, **kwargs: Any) -> None:
        super().__init__(id="reverse-text", parser=PARSER, rubric=RUBRICS[reward], **kwargs)
        self.prompt = prompt
        self.separator = separator
        self.demo_noise = demo_noise

    def format_row(self, row: Row) -> Row:
        text = _text_of(row)
        messages = row.get("prompt")
        spelled = self.separator.join(text)
        question = messages if isinstance(messages, list) else self.prompt.replace("{text}", spelled)
        answer = self.separator.join(str(row.get("answer") or text[::-1]).strip())
        info = {"text": text} | ({"separator": self.separator} if self.separator else {})
        return {"prompt": question, "answer": answer, "info": info}

    def reference(self, example: Example) -> str:
        return PARSER.wrap(example.answer)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference as an unreliable teacher would write it.

        At `demo_noise` 1: 30 % of the tags broken (half missing, half unclosed), 30 % of the texts copied and not
        reversed, and each character with 10 % dropped, doubled or replaced. All three scale with `demo_noise`; 0 is
        the reference.
        """
        tags, copied = rng.random(2)
        reversed_text = example.answer[:: 1 + len(self.separator)]
        answer = example.info["text"] if copied < 0.3 * self.demo_noise else reversed_text
        answer = self.separator.join(_sloppy(answer, 0.1 * self.demo_noise, rng))
        if tags < 0.15 * self.demo_noise:
            return answer
        if tags < 0.3 * self.demo_noise:
            return PARSER.opening + answer
        return PARSER.wrap(answer)


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count = 50_000,
    num_eval_examples: Count = 1_000,
    min_chars: Count = 8,
    max_chars: int = 16,
    seed: int = 0,
    prompt: str = "{text}",
    system_prompt: str = SYSTEM_PROMPT,
    separator: str = "",
    reward: Literal["similarity", "exact", "two_part"] = "similarity",
    demo_noise: Noise = 0.0,
) -> SingleTurnEnv:
    """Return reverse-text on generated phrases of `min_chars` to `max_chars` characters, or on the rows of `dataset`.

    `dataset`, `eval_dataset`: a JSONL or Parquet file, a folder of them, or a hub id (the splits are the hub's); of
    `dataset` without `eval_dataset` a tenth of the texts is held out. `prompt` is the user message, with `{text}` in
    it; an empty `system_prompt` leaves the instruction out. `separator` goes between the characters of text and answer:
    a tokenizer of words hides how they are spelled, but shows it of `w o r d s`.
    """
    if "{text}" not in prompt:
        raise UserError(f"reverse-text: prompt is {prompt!r}; it must contain {{text}}, where the text goes")
    if max_chars < min_chars:
        raise UserError(f"reverse-text: max_chars is {max_chars}; it must be at least min_chars, {min_chars}")

    def own(split: str) -> Rows:
        n = num_train_examples if split == "train" else num_eval_examples
        words, others = split_words() if split == "train" else split_words()[::-1]
        make = functools.partial(_phrase, words, frozenset(others), min_chars, max_chars)
        return generated_rows(lambda rng: {"text": make(rng)}, n, seed=seed, env_id="reverse-text", split=split)

    halve = functools.partial(hold_out, key=_text_of)
    return ReverseText(
        reward=reward,
        prompt=prompt,
        separator=separator,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **train_and_eval(dataset, eval_dataset, dataset_split, eval_split, halve, own),
    )


def _text_of(row: Row) -> str:
    """Return the text to reverse, without surrounding whitespace: of messages, what the user says last."""
    given = next((row[name] for name in ("text", "prompt", "question") if row.get(name)), None)
    if isinstance(given, list):
        given = next((m["content"] for m in reversed(given) if m.get("role") == "user"), None)
    if not isinstance(given, str) or not given.strip():
        raise KeyError("text")
    return given.strip()


def _phrase(words: tuple[str, ...], others: frozenset[str], low: int, high: int, rng: np.random.Generator) -> str:
    """Return random words joined by spaces, cut to a random length in [low, high].

    Drawn again if it would end in a space, or if what the cut leaves of the last word is a word of the other split.
    """
    while True:
        length = int(rng.integers(low, high + 1))
        picks = rng.integers(len(words), size=length // 4 + 1)  # words have at least 3 letters
        text = " ".join([words[i] for i in picks])[:length]
        if not text.endswith(" ") and text.rsplit(" ", 1)[-1] not in others:
            return text


def _sloppy(text: str, rate: float, rng: np.random.Generator) -> str:
    """Return `text` with each character, at this rate, dropped, replaced by a random letter or space, or doubled."""
    hits = rng.random(len(text)) < rate
    if not hits.any():
        return text
    kinds = rng.integers(3, size=len(text))
    letters = rng.integers(len(LETTERS), size=len(text))
    changed = (("", LETTERS[letter], char * 2)[kind] for char, kind, letter in zip(text, kinds, letters, strict=True))
    return "".join(new if hit else char for char, new, hit in zip(text, changed, hits, strict=True))
