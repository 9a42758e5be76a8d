"""char-count: how often does a letter occur in a word?

    hone eval char-count -m outputs/weights/step_100 -n 20

An answer is a number in `<answer>` tags (or in `\\boxed{}`, or after `ANSWER:`). It is worth 0.1 if it is well-formed,
and 1 if it is right. Demonstrations count along on a scratchpad, `<think>b0a1n1a2n2a3</think><answer>3</answer>`.

By default questions are generated from a list of common English words, of which a tenth is held out for evaluation; the
letter is drawn so that all counts that the word has to offer, 0 too, are as likely. `dataset` names a file or a hub set
with the columns `word` and `letter`, or `question` and `answer`, instead.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from hone.environments import NumberParser, SingleTurnEnv, answer_rubric, inline, read_number
from hone.environments.data import Count, Row, Rows, generated_rows, hold_out, split_words, train_and_eval
from hone.errors import UserError
from hone.types import Example, Message

PARSER = NumberParser()
PROMPT = "How many times does the letter {letter} occur in the word {word}?"
FORMAT_HINT = " Think in <think> tags, then give the number in <answer> tags, such as <answer>2</answer>."
LETTERS = "abcdefghijklmnopqrstuvwxyz"


@inline
def correctness(completion: list[Message], answer: str) -> float:
    """Return 1 if the number is right, else 0."""
    return float(PARSER.value(completion) == read_number(answer))


class CharCount(SingleTurnEnv):
    """Rows have `word` and `letter`, which are counted in any case; or `prompt` or `question`, and `answer`."""

    def __init__(self, *, prompt: str, demo_noise: float, **kwargs: Any) -> None:
        super().__init__(id="char-count", parser=PARSER, rubric=answer_rubric(correctness), **kwargs)
        self.prompt, self.demo_noise = prompt, demo_noise

    def format_row(self, row: Row) -> Row:
        row = {**(row["info"] if isinstance(row.get("info"), dict) else {}), **row}
        if "word" not in row and row.get("answer") and (row.get("prompt") or row.get("question")):
            return row
        word, letter = (_text_of(row, name) for name in ("word", "letter"))
        if len(letter) != 1:
            raise UserError(f"char-count: letter is {letter!r}; it must be one character")
        question = self.prompt.replace("{word}", word).replace("{letter}", letter)
        count = sum(char.lower() == letter.lower() for char in word)
        return {"question": question, "answer": str(count), "info": {"word": word, "letter": letter}}

    def reference(self, example: Example) -> str:
        return self._count(example, lambda: False)

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        """Return the reference as a careless teacher would write it.

        At `demo_noise` 1 each step of the count is wrong with 10 %: a letter that is there is passed over, or one that
        is not is counted. The answer is what the scratchpad ends with.
        """
        return self._count(example, lambda: rng.random() < 0.1 * self.demo_noise)

    def _count(self, example: Example, slips: Callable[[], bool]) -> str:
        """Return the scratchpad and its answer. `slips` decides of each step if it is a mistake."""
        if "word" not in example.info:
            return PARSER.wrap(example.answer)
        count, steps = 0, []
        for char in example.info["word"]:
            count += (char.lower() == example.info["letter"].lower()) != slips()
            steps.append(f"{char}{count}")
        return f"<think>{''.join(steps)}</think>{PARSER.wrap(str(count))}"


def load_environment(
    dataset: str | None = None,
    eval_dataset: str | None = None,
    dataset_split: str = "train",
    eval_split: str = "test",
    num_train_examples: Count = 50_000,
    num_eval_examples: Count = 1_000,
    words: Count = 1,
    seed: int = 0,
    prompt: str = PROMPT,
    format_hint: bool = True,
    system_prompt: str = "",
    demo_noise: Annotated[float, Field(ge=0, le=10)] = 0.0,
) -> SingleTurnEnv:
    """Return char-count on generated questions, or on the rows of `dataset`: a file, a folder or a hub id.

    A generated word is `words` English words run together (`straw` and `berry`). Of `dataset` without `eval_dataset` a
    tenth of the words is held out. `prompt` is the user message, with {word} and {letter} in it; `format_hint` adds how
    to answer.
    """
    if "{word}" not in prompt or "{letter}" not in prompt:
        raise UserError(f"char-count: prompt is {prompt!r}; it must contain {{word}} and {{letter}}")

    def own(split: str) -> Rows:
        n = num_train_examples if split == "train" else num_eval_examples
        make = functools.partial(_question, split_words()[split == "eval"], words)
        return generated_rows(make, n, seed=seed, env_id="char-count", split=split)

    halve = functools.partial(hold_out, key=lambda row: _text_of(row, "word").lower())
    return CharCount(
        prompt=prompt + FORMAT_HINT * format_hint,
        demo_noise=demo_noise,
        system_prompt=system_prompt,
        **train_and_eval(dataset, eval_dataset, dataset_split, eval_split, halve, own),
    )


def _question(known: tuple[str, ...], words: int, rng: np.random.Generator) -> Row:
    word = "".join(known[i] for i in rng.integers(len(known), size=words))
    by_count: dict[int, list[str]] = {}
    for letter in LETTERS:
        by_count.setdefault(word.count(letter), []).append(letter)
    letters = by_count[sorted(by_count)[int(rng.integers(len(by_count)))]]
    return {"word": word, "letter": letters[int(rng.integers(len(letters)))]}


def _text_of(row: Row, name: str) -> str:
    if not isinstance(row.get(name), str) or not row[name].strip():
        raise KeyError(name)
    return row[name].strip()
