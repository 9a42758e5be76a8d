"""Tasks of reasoning-gym (https://github.com/open-thought/reasoning-gym), by the id `reasoning-gym:NAME`.

    hone eval reasoning-gym:leg_counting -m hone/tiny -n 20 -a '{"min_animals": 2}'

An answer in `<answer>` tags (or in `\\boxed{}`, or after `ANSWER:`) earns 0.1, plus 0.9 times the score that
reasoning-gym's `score_answer` gives it, with partial credit. An answer is correct if this score is 1. Row i is row i of
reasoning-gym's data set for the seed. A hash of the question, whatever the seed, decides if a question is in the tenth
that is held out for evaluation. A separate process with limited processor time makes and scores rows.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib.util
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from hone.digests import of_source
from hone.environments.data import DataSource, Row, Rows, indexed_rows
from hone.environments.environment import SingleTurnEnv
from hone.environments.parsers import AnswerParser
from hone.environments.rubric import Range, Rubric, format, inline
from hone.errors import UserError
from hone.grading import GraderFailure
from hone.grading.pool import NoVerdict, Worker
from hone.types import Example, Message, content_hash

FORMAT_HINT = "\nGive the final answer, and nothing else, in <answer> tags."
HELD_OUT = 10
"""One in HELD_OUT questions, chosen by hash, belongs to evaluation."""
STRIDE = 1_000_000
"""Distance to the next candidate row if a row is unsuitable, and the largest number of rows of a split."""
ATTEMPTS = 300
Size = Annotated[int, Field(ge=1, le=STRIDE)]
SCORE_SECONDS, MAKE_SECONDS, CLOCK_SECONDS = 5, 60, 120.0
"""Limits: processor seconds to score an answer, processor seconds to make a row, and clock seconds for either."""

EVALUATES = (
    "its score evaluates the answer as Python code (eval, or sympy's parse_expr), and hone evaluates nothing that a "
    "model wrote"
)
UNKNOWN = "it gives no answer that its own score accepts, so nothing shows that the score is right"
OWN = "; use hone's task `countdown`, which parses expressions"

_BY_REASON = {
    EVALUATES: "binary_matrix intermediate_integration n_queens polynomial_multiplication simple_integration "
    "spiral_matrix string_insertion",
    EVALUATES + OWN: "countdown puzzle24",
    UNKNOWN: "boxnet graph_color propositional_logic rubiks_cube rush_hour",
    "its score accepts nan": "complex_arithmetic",
    "it mixes other tasks; take them one by one": "composite",
    "its score accepts any text": "game_of_life_halting",
    "it draws from Python's global random state, so that no seed makes the same rows again": "list_functions",
    "its score fails on any answer that is not a product of numbers, instead of giving it 0": "prime_factorization",
}
REFUSED = {task: reason for reason, tasks in _BY_REASON.items() for task in tasks.split()}

_SCORED = """
ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
bitwise_arithmetic caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio coin_flip
color_cube_rotation count_bits count_primes course_schedule cryptarithm decimal_arithmetic decimal_chain_sum
dice emoji_mystery family_relationships figlet_font fraction_simplification futoshiki game_of_life gcd
group_anagrams gsm_symbolic isomorphic_strings jugs kakurasu knight_swap knights_knaves largest_island lcm
leg_counting letter_counting letter_jumble mahjong_puzzle manipulate_matrix maze mini_sudoku
modulo_grid needle_haystack number_filtering number_format number_sequence number_sorting
palindrome_generation palindrome_partitioning path_star polynomial_equations pool_matrix power_function
products quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges self_reference
sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward
string_manipulation string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi
tsumego word_ladder word_sequence_reversal word_sorting zebra_puzzles
"""
SCORED = frozenset(_SCORED.split())
"""Tasks with faithful scores: measured by `benchmarks/reasoning_gym_tasks.py` with reasoning-gym 0.1.25."""


class ReasoningGym(SingleTurnEnv):
    """Rows have the column `index`, a row number in reasoning-gym's data set: `env.example(index=3)`."""

    audit_allows = MappingProxyType(
        {
            "false-negative": "reasoning-gym's own scores compare the answer letter by letter",
            "garbage-paid": "reasoning-gym does not say what a well-formed answer is, so any text in the tags is one",
        }
    )

    has_own_process = True

    def __init__(self, task: str, config: dict[str, Any], format_hint: bool, **kwargs: Any) -> None:
        self.task, self.config, self.hint = task, config, FORMAT_HINT * format_hint
        self.parser_of_answers = AnswerParser()
        ranges = {
            "format": Range(right=(1.0, 1.0), wrong=(1.0, 1.0)),
            "correctness": Range(right=(1.0, 1.0), wrong=(0.0, math.nextafter(1.0, 0.0))),
        }
        rubric = Rubric([format, self.correctness], [0.1, 0.9], correctness="correctness", ranges=ranges)
        super().__init__(parser=self.parser_of_answers, rubric=rubric, **kwargs)
        script = Path(__file__).with_name("reasoning_gym_worker.py")
        self._worker = Worker(script, [task, config], f"{task} of reasoning-gym")
        self._entry = functools.lru_cache(maxsize=4096)(self._made)
        self._is_right = functools.lru_cache(maxsize=4096)(self._takes_own_answer)
        self._checked = False

    @inline
    def correctness(self, completion: list[Message], info: dict[str, Any]) -> float | GraderFailure:
        """Return reasoning-gym's score of the answer, from 0 to 1."""
        answer = self.parser_of_answers.parse_answer(completion)
        return 0.0 if answer is None else self._score(info["index"], answer, SCORE_SECONDS)

    def format_row(self, row: Row) -> Row:
        index = row["index"]
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise UserError(f"{self.id}: index is {index!r}; it must be a whole number from 0")
        question, answer = self._entry(index)
        return {"question": question + self.hint, "answer": answer, "info": {"index": index}}

    def reference(self, example: Example) -> str:
        """Return reasoning-gym's answer. In rows of a split, this answer has score 1."""
        return self.parser_of_answers.wrap(example.answer)

    def rows(self, split: str, count: int) -> Rows:
        """Return `count` rows of a split. Row i is reasoning-gym's row i, or a later row if row i is unsuitable.

        A row is unsuitable if it is in the other split, or if its answer is empty, too long, or has a score below 1.
        """

        def make(i: int) -> Row:
            for index in range(i, i + ATTEMPTS * STRIDE, STRIDE):
                question, answer = self._entry(index)
                if is_held_out(question) == (split == "eval") and self._is_right(index, answer):
                    return {"index": index}
            raise UserError(
                f"{self.id} has too few different questions: none of {ATTEMPTS} is in the {split} split and has an "
                "answer; choose arguments with more variety, or another task"
            )

        return indexed_rows(make, count, f"{self.id} ({split})")

    def digests(self, splits: Sequence[str]) -> dict[str, str]:
        """Return the environment's digests. "data" is a digest of arguments, not of rows."""
        counts = [len(self.split(name)) for name in splits]
        data = content_hash([self.task, self.config, self.hint, self.system_prompt, counts])
        assert self.module is not None
        return {"environment": of_source(self.module), "data": data, "reasoning-gym": version("reasoning-gym")}

    def _made(self, index: int) -> tuple[str, str]:
        if not self._checked:
            if problem := self._ask(["check"]):
                raise UserError(f"{self.id} {problem}")
            self._checked = True
        question, answer = self._ask(["entry", index])
        return question, answer

    def _ask(self, question: list[Any]) -> Any:
        try:
            return self._worker.ask(question, MAKE_SECONDS, CLOCK_SECONDS)
        except NoVerdict as nothing:
            reason = nothing.failure.detail.splitlines()[-1]
            raise UserError(f"{self.id} can't make a row ({reason}): choose other arguments or another seed") from None

    def _takes_own_answer(self, index: int, answer: str) -> bool:
        """Return True if reasoning-gym's answer, once parsed from a completion, has score 1."""
        read = self.parser_of_answers.parse(self.parser_of_answers.wrap(answer))
        score = 0.0 if read is None else self._score(index, read, MAKE_SECONDS)
        return not isinstance(score, GraderFailure) and score >= 1.0

    def _score(self, index: int, answer: str, cpu_seconds: int) -> float | GraderFailure:
        try:
            # Make the row first, as this may take longer than scoring. The process caches it.
            self._worker.ask(["entry", index], MAKE_SECONDS, CLOCK_SECONDS)
            return self._worker.ask(["score", index, answer], cpu_seconds, CLOCK_SECONDS)
        except NoVerdict as nothing:
            return nothing.failure


def is_held_out(question: str) -> bool:
    return hashlib.blake2b(question.encode(), digest_size=8).digest()[0] % HELD_OUT == 0


def load(
    name: str,
    /,
    *,
    num_train_examples: Size = 50_000,
    num_eval_examples: Size = 1_000,
    seed: int = 0,
    format_hint: bool = True,
    system_prompt: str = "",
    **config: Any,
) -> ReasoningGym:
    """Load the task `name` with the arguments `config` of reasoning-gym.

    Raises UserError if reasoning-gym is not installed, or if hone can't score the task faithfully.
    """
    task = name.replace("-", "_")
    if task in REFUSED:
        raise UserError(f"reasoning-gym:{name} is refused: {REFUSED[task]}")
    if task not in SCORED:
        near = difflib.get_close_matches(task, SCORED, n=3)
        remedy = f"did you mean {' or '.join(near)}?" if near else f"the tasks are {', '.join(sorted(SCORED))}"
        raise UserError(f"reasoning-gym:{name} is not a task that hone can score faithfully; {remedy}")
    if importlib.util.find_spec("reasoning_gym") is None:
        raise UserError(
            f"reasoning-gym:{name} needs reasoning-gym, which is not installed: "
            "pip install 'reasoning-gym>=0.1.25,<0.2'"
        )
    if "size" in config:
        raise UserError(f"reasoning-gym:{name}: give num_train_examples and num_eval_examples instead of size")
    env = ReasoningGym(
        task,
        {"seed": seed} | config,
        format_hint,
        dataset=DataSource(lambda _: env.rows("train", num_train_examples), reads=False),
        eval_dataset=DataSource(lambda _: env.rows("eval", num_eval_examples), reads=False),
        system_prompt=system_prompt or None,
        id=f"reasoning-gym:{task}",
    )
    return env
