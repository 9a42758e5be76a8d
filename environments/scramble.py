"""scramble: which English word do these letters make?

    hone eval scramble -m outputs/weights/step_100 -n 20

An answer is a word in `<answer>` tags (or in `\\boxed{}`, or after `ANSWER:`). It is worth 0.1 if it is one word of
letters, and 1 if it is right: the word that was scrambled, or any other of the word list that is made of the same
letters ("stop" for "pots"), in any case.

By default words are drawn from a list of common English words and scrambled into what is no word. A tenth of them is
held out for evaluation; words of the same letters are on the same side. `dataset` names a file or a hub set with the
column `word` instead, and `scrambled` if it brings its own, or with `question` and `answer`.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hone import rng as streams
from hone.environments import AnswerParser, SingleTurnEnv, answer_rubric, inline
from hone.environments.data import Count, Noise, Row, Rows, common_words, generated_rows, hold_out, train_and_eval
from hone.errors import UserError
from hone.types import Example, Message

PROMPT = "The letters of an English word were scrambled into {letters}. Which word is it?"
FORMAT_HINT = " Think in <think> tags, then give the word in <answer> tags, such as <answer>word</answer>."
_WORD = re.compile(r"[\s*_`'\"“”‘’]*([^\W\d_]+)[\s*_`'\"“”‘’.!]*")


def read_word(text: str) -> str | None:
    """Return the one word of letters that `text` is, in lower case, without quotes, emphasis and full stop."""
    match = _WORD.fullmatch(text)
    return match[1].lower() if match else None


PARSER = AnswerParser(read_word, expects="a word in <answer> tags")


@inline
def correctness(completion: list[Message], answer: str) -> float:
    """Return 1 if the word is the one that was scrambled, or another of the list made of the same letters, else 0."""
    given = PARSER.value(completion)
    return float(given is not None and (given == answer or given in anagrams().get(letters_of(answer), ())))


class Scramble(SingleTurnEnv):
    """Rows have `word`, and `scrambled` or not: seed and word decide the order of the letters then. Or they have
    `prompt` or `question`, and `answer`.
    """

    def __init__(self, *, prompt: str, seed: int, demo_noise: float, **kwargs: Any) -> None:
        super().__init__(id="scramble", parser=PARSER, rubric=answer_rubric(correctness), **kwargs)
        self.prompt, self.seed, self.demo_noise = prompt, seed, demo_noise

    def format_row(self, row: Row) -> Row:
        row = {**(row["info"] if isinstance(row.get("info"), dict) else {}), **row}
        if "word" not in row and row.get("answer") and (row.get("prompt") or row.get("question")):
            return {**row, "answer": str(row["answer"]).strip().lower()}
        word = _word_of(row)
        scrambled = row.get("scrambled") or scramble(word, streams.stream(self.seed, "scramble", word))
        if letters_of(str(scrambled).lower()) != letters_of(word):
            raise UserError(f"scramble: {scrambled!r} is not made of the letters of {word!r}")
        question = self.prompt.replace("{letters}", str(scrambled))
        return {"question": question, "answer": word, "info": {"scrambled": str(scrambled)}}

    def reference(self, example: Example) -> str:
        return PARSER.wrap(example.answer)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference; with probability 0.3 x `demo_noise`, the letters in another random order."""
        if rng.random() < 0.3 * self.demo_noise:
            return PARSER.wrap("".join(rng.permutation(list(example.answer))))
        return self.reference(example)


def letters_of(word: str) -> str:
    """Return the letters in alphabetical order: the same for all words made of them."""
    return "".join(sorted(word))


@functools.cache
def anagrams() -> dict[str, tuple[str, ...]]:
    """Return the words of the list by their letters."""
    found: dict[str, tuple[str, ...]] = {}
    for word in common_words():
        found[letters_of(word)] = (*found.get(letters_of(word), ()), word)
    return found


def scramble(word: str, rng: np.random.Generator) -> str:
    """Return the letters in a random order that makes no word of the list; the word if its letters are all the same."""
    if len(set(word)) < 2:
        return word
    while True:
        scrambled = "".join(rng.permutation(list(word)))
        if scrambled != word and scrambled not in anagrams().get(letters_of(word), ()):
            return scrambled


@functools.cache
def split_words(min_chars: int, max_chars: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (train, eval) words of these lengths. Held out is the tenth of letter sets with the smallest hashes."""
    ranked = sorted(anagrams(), key=lambda letters: hashlib.blake2b(letters.encode(), digest_size=8).digest())
    held_out = frozenset(ranked[: len(ranked) // 10])
    words = [word for word in common_words() if min_chars <= len(word) <= max_chars]
    train = tuple(word for word in words if letters_of(word) not in held_out)
    return train, tuple(word for word in words if letters_of(word) in held_out)


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count = 50_000,
    num_eval_examples: Count = 1_000,
    min_chars: Annotated[int, Field(ge=3, le=8)] = 3,
    max_chars: int = 8,
    seed: int = 0,
    prompt: str = PROMPT,
    format_hint: bool = True,
    system_prompt: str = "",
    demo_noise: Noise = 0.0,
) -> SingleTurnEnv:
    """Return scramble on words of these lengths, or on the rows of `dataset`: a file, a folder or a hub id.

    Of `dataset` without `eval_dataset` a tenth of the words is held out. `prompt` is the user message, with {letters}
    in it; `format_hint` adds how to answer.
    """
    if "{letters}" not in prompt:
        raise UserError(f"scramble: prompt is {prompt!r}; it must contain {{letters}}")
    if max_chars < min_chars:
        raise UserError(f"scramble: max_chars is {max_chars}; it must be at least min_chars, {min_chars}")

    def own(split: str) -> Rows:
        count = num_train_examples if split == "train" else num_eval_examples
        known = split_words(min_chars, max_chars)[split == "eval"]
        return generated_rows(functools.partial(_puzzle, known), count, seed=seed, env_id="scramble", split=split)

    halve = functools.partial(hold_out, key=lambda row: letters_of(_word_of(row)))
    return Scramble(
        prompt=prompt + FORMAT_HINT * format_hint,
        seed=seed,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **train_and_eval(dataset, eval_dataset, dataset_split, eval_split, halve, own),
    )


def _puzzle(known: tuple[str, ...], rng: np.random.Generator) -> Row:
    word = known[int(rng.integers(len(known)))]
    return {"word": word, "scrambled": scramble(word, rng)}


def _word_of(row: Row) -> str:
    for name in ("word", "answer"):
        if isinstance(row.get(name), str) and row[name].strip().isalpha():
            return row[name].strip().lower()
    raise KeyError("word")
