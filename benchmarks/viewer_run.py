"""A large run of RL that nobody trained, written by hone's own writers: what the browser tests look at.

    .venv/bin/python benchmarks/viewer_run.py outputs/viewer-run --steps 1000 --completions 512

The task is `countdown`, its problems real. Completions are put together from a pool of sentences: common words, sums,
now and then other alphabets; they grow from about 200 characters to 800 (100 to 1,500 each), are right more and more
often, and come to check themselves. A word that is rare stands in one of `RARITY`. Token ids are those of the tiny
tokenizer; logprobs and entropies are drawn from a distribution. Times are made up, too: a step "took" 20 s.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hone import rng
from hone.algorithms.advantages import advantages as step_advantages
from hone.config.parse import parse
from hone.config.rl import RLConfig
from hone.environments import load_environment
from hone.environments.data import common_words
from hone.evaluation.result import EvalResult, EvalSample
from hone.extensions.alarms.watch import AlarmWatch
from hone.loops.groups import group_state, step_metrics
from hone.model.hf import load_model, save_model
from hone.model.tokenizer import IM_END_ID, build_tiny_tokenizer, save_tokenizer
from hone.runs.rollouts import group_rows
from hone.runs.writer import RunWriter
from hone.types import Example, Group, Outcome, Rollout, Score, Segment

RECIPE = Path(__file__).resolve().parents[1] / "examples/countdown/tiny.toml"
GROUP, EVAL_EXAMPLES, EVAL_EVERY = 16, 256, 25
EXAMPLES, SEEN = 2000, 8
"""Prompts that take turns, so that each is seen at several steps: at most so many, and at least so often."""
RARE, COMMON, PHRASE, ABSENT = "xylophone", "remainder", "let me check", "zyzzyva"
RARITY = 20_000
"""Completions to one that has the rare word."""
SHORTEST, LONGEST = 100, 1500
SECONDS = {"publish": 0.4, "sample": 11.2, "grade": 1.1, "train": 7.0, "record": 0.3}
END = np.array([IM_END_ID])
WEIGHTS = {"correctness": 0.9, "format": 0.1}
CHECKS = ("Wait, that is not it. ", "Hmm, let me check this again. ", "Actually, I made a mistake. ")
FOREIGN = ("Das ist größer als 7 → zu groß. ", "余数是 3。", "это слишком много… ", "x × y ÷ z ≈ 5 🙂 ")


class Sentences:
    """Sentences with their token ids. The tiny tokenizer knows no merges, so ids of a text are those of its parts."""

    def __init__(self, seed: int, size: int) -> None:
        draw = rng.stream(seed, "viewer-sentences")
        words = np.array([word for word in common_words() if word not in ("user", "system")])
        shuffled = draw.permutation(words)
        cumulative = np.cumsum(1 / np.arange(3, len(words) + 3))
        self.tokenizer = build_tiny_tokenizer()
        self.texts = []
        for index in range(size):
            if index % 2:
                a, b, c = draw.integers(2, 99, 3)
                said = (f"{a} + {b} = {a + b}", f"{a} * {c} = {a * c}", f"{a * b} / {a} = {b}", f"{a} - {c} = {a - c}")
                tail = ("which is too large", f"and the {COMMON} is {c}", f"so {c} is left", "which does not help")
                text = f"{said[index // 2 % 4]}, {tail[draw.integers(4)]}"
            else:
                picked = np.searchsorted(cumulative, draw.random(draw.integers(5, 14)) * cumulative[-1])
                text = " ".join(shuffled[picked]).capitalize()
            self.texts.append(text + (".\n" if index % 7 == 0 else ". "))
        self.texts[::200] = [FOREIGN[k % 4] for k in range(len(self.texts[::200]))]
        self.ids = [self.encode(text) for text in self.texts]
        self.lengths = np.array([len(text) for text in self.texts])

    def encode(self, text: str) -> np.ndarray:
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


@dataclass(frozen=True)
class Problem:
    """An example with its prompt's ids, its right answer, some wrong ones, and how hard it is, from 0 to 1."""

    example: Example
    ids: np.ndarray
    right: str
    wrong: list[str]
    hardness: float


class Fabric:
    """Makes the groups of a step, and the samples of an evaluation."""

    def __init__(self, steps: int, completions: int, seed: int) -> None:
        self.steps, self.completions, self.seed = steps, completions, seed
        large = steps * completions > 10_000  # a toy is made in a second or two
        self.sentences = Sentences(seed, 8000 if large else 400)
        draw = rng.stream(seed, "viewer-problems")
        env = load_environment("countdown", max_numbers=4)
        train = max(1, min(EXAMPLES, steps * completions // GROUP // SEEN))
        self.problems = [self._problem(env, env.split("train")[i], draw) for i in range(train)]
        self.held_out = [self._problem(env, env.split("eval")[i], draw) for i in range(min(EVAL_EXAMPLES, completions))]
        self._encoded: dict[str, np.ndarray] = {}
        # Slices of these are what a completion's tokens got.
        self.pool = 2**22 if large else 2**16
        self.logprobs = -draw.gamma(0.15, 1.5, self.pool).astype(np.float32)
        self.entropies = draw.gamma(0.4, 0.8, self.pool).astype(np.float16)
        self.gaps = draw.normal(0, 2e-3, self.pool).astype(np.float32)

    def _problem(self, env: Any, example: Example, draw: np.random.Generator) -> Problem:
        text = "<|im_start|>user\n" + example.prompt[-1]["content"] + "<|im_end|>\n<|im_start|>assistant\n"
        orders = [draw.permutation(example.info["nums"]) for _ in range(4)]
        wrong = ["<answer>" + "+-*+"[k].join(map(str, order)) + "</answer>" for k, order in enumerate(orders)]
        return Problem(example, self.sentences.encode(text), env.reference(example), wrong, float(draw.random()))

    def encoded(self, text: str) -> np.ndarray:
        """Its ids, kept: what is asked for are a few thousand texts."""
        if text not in self._encoded:
            self._encoded[text] = self.sentences.encode(text)
        return self._encoded[text]

    def groups(self, step: int) -> list[Group]:
        """The groups of step `step`, 16 completions each."""
        count = self.completions // GROUP
        numbers = range(step * count, (step + 1) * count)
        problems = [self.problems[number % len(self.problems)] for number in numbers]
        pairs = self.sampled([problem for problem in problems for _ in range(GROUP)], step, f"train-{step}")
        made = []
        for index, (number, problem) in enumerate(zip(numbers, problems, strict=True)):
            members = pairs[index * GROUP : (index + 1) * GROUP]
            scores = [score for _, score in members]
            valid = np.array([not score.outcome.is_failure for score in scores])
            rewards = np.array([score.reward for score in scores])
            advantages = step_advantages(rewards[None], valid[None], scale="group_std")[0]
            made.append(Group(problem.example, number, [trajectory for trajectory, _ in members], scores, advantages))
        return made

    def sampled(self, problems: list[Problem], version: int, name: str) -> list[tuple[Rollout, Score]]:
        """A completion of each problem by policy version `version`, and what it was worth."""
        draw, done, count = rng.stream(self.seed, "viewer", name), version / max(1, self.steps), len(problems)
        sizes = np.clip(draw.lognormal(np.log(180 + 450 * done), 0.45, count), SHORTEST, LONGEST - 100)
        chosen = draw.integers(0, len(self.sentences.texts), (count, 60))
        ends = np.cumsum(self.sentences.lengths[chosen], axis=1)
        kept = np.maximum(1, (ends < sizes[:, None]).sum(axis=1)).tolist()
        chances = draw.random((count, 4)).tolist()
        picks = draw.integers(0, self.pool, (count, 3)).tolist()
        made = []
        for index, problem in enumerate(problems):
            outcome = outcome_at(chances[index][0], problem.hardness, done)
            sentences = chosen[index, : kept[index]].tolist()
            check, start, which = picks[index]
            tail = [CHECKS[check % 3]] if chances[index][1] < max(0.002, 0.5 * (done - 0.3)) else []
            tail += [f"The {RARE} is rare. "] if chances[index][2] < 1 / RARITY else []
            wrong = problem.wrong[which % len(problem.wrong)]
            tail += [wrong, " No. "] if chances[index][3] < 0.15 * (done - 0.5) else []
            said, detail = answer(problem, outcome, wrong)
            tail.append(said)
            text = "".join([self.sentences.texts[i] for i in sentences] + tail)
            ids = [self.sentences.ids[i] for i in sentences] + [self.encoded(part) for part in tail]
            stop = "length" if outcome is Outcome.TRUNCATED else "stop"
            sampled = np.concatenate(ids if stop == "length" else [*ids, END])
            trajectory = self.trajectory(problem, sampled, text, version, start, f"{name}-{index}", stop)
            made.append((trajectory, score_of(outcome, detail)))
        return made

    def trajectory(
        self, problem: Problem, sampled: np.ndarray, text: str, version: int, start: int, name: str, stop_reason: str
    ) -> Rollout:
        """`text` as a completion of these token ids, with logprobs from place `start` of the pool on."""
        before, length = len(problem.ids), len(problem.ids) + len(sampled)
        mask, logprobs = np.ones(length, np.bool_), np.zeros(length, np.float32)
        versions = np.full(length, version, np.int32)
        mask[:before], versions[:before] = False, -1
        logprobs[before:] = self.logprobs.take(np.arange(start, start + len(sampled)), mode="wrap")
        messages = [*problem.example.prompt, {"role": "assistant", "content": text}]
        token_ids = np.concatenate([problem.ids, sampled])
        segment = Segment(token_ids, mask, logprobs, versions, messages, stop_reason)
        return Rollout(name, messages, stop_reason, (segment,))

    def token_rows(self, group: Group) -> Iterator[dict[str, Any]]:
        """Entropies and the trainer's logprobs of the group's tokens; none where it was not trained on."""
        trained = group_state(group) == "trained"
        for trajectory, score in zip(group.rollouts, group.scores, strict=True):
            row: dict[str, Any] = {"sample_id": trajectory.sample_id, "entropies": None, "trainer_logprobs": None}
            if trained and not score.outcome.is_failure:
                logprobs = trajectory.logprobs[trajectory.sampled_mask]
                at = np.arange(len(logprobs)) + len(trajectory.token_ids) * 997 % self.pool
                row["entropies"] = self.entropies.take(at, mode="wrap")
                row["trainer_logprobs"] = np.minimum(logprobs + self.gaps.take(at, mode="wrap"), 0)
            yield row

    def evaluation(self, version: int) -> EvalResult:
        """The evaluation of a version: one completion of each held-out problem."""
        pairs = self.sampled(self.held_out, version, f"eval-{version}")
        samples = [
            EvalSample(index, 0, problem.example, trajectory, score)
            for index, (problem, (trajectory, score)) in enumerate(zip(self.held_out, pairs, strict=True))
        ]
        return EvalResult("countdown", version, 1, samples, {})

    def metrics(self, step: int, groups: list[Group], tokens: int) -> dict[str, Any]:
        """The step's metrics: those of the groups, and made-up ones of the train step."""
        draw = rng.stream(self.seed, "viewer-metrics", step)
        done, noise = step / max(1, self.steps), draw.normal(0, 1, 5)
        return (
            {"canary/gap/mean": 0.0, "canary/gap/max": 0.0, "canary/verdict": 0.0}
            | step_metrics(groups, step)
            | {
                "lr": 2e-4 * (1 - 0.9 * done),
                "grad_norm": float(np.exp(0.3 * noise[0])),
                "loss": 1e-3 * float(noise[1]),
                "entropy": 0.9 * float(np.exp(-1.5 * done)) + 0.02 * float(noise[2]),
                "logprob_gap/mean": 3e-5 * float(np.exp(0.2 * noise[3])),
                "logprob_gap/max": 8e-3 * float(np.exp(0.3 * noise[4])),
                "clipped": 0.0,
                "optimizer/skipped": 0.0,
                "tokens/total": tokens,
            }
        )


def outcome_at(chance: float, hardness: float, done: float) -> Outcome:
    """What a completion comes to when a share `done` of the run is over; `chance` is uniform in 0 to 1."""
    unparsable, truncated = 0.35 * math.exp(-8 * done) + 0.01, 0.02 + 0.06 * done
    right = min(0.98, 0.1 + 0.75 * (1 - math.exp(-3 * done)) * (1.3 - 0.6 * hardness))
    shares = (
        (Outcome.GRADER_ERROR, 0.0005),
        (Outcome.GRADER_TIMEOUT, 0.0003),
        (Outcome.TRUNCATED, truncated),
        (Outcome.UNPARSABLE, unparsable),
        (Outcome.CORRECT, (1 - unparsable - truncated) * right),
    )
    for outcome, share in shares:
        chance -= share
        if chance < 0:
            return outcome
    return Outcome.WRONG


def answer(problem: Problem, outcome: Outcome, wrong: str) -> tuple[str, str]:
    """What a completion ends with, and the grader's words about it."""
    if outcome is Outcome.CORRECT:
        return problem.right, f"makes {problem.example.answer}"
    if outcome is Outcome.TRUNCATED:
        return "and then", "cut at the limit of tokens, without an answer"
    if outcome is Outcome.UNPARSABLE:
        return "So the answer is not clear.", "no expression in <answer> tags"
    if outcome.is_failure:
        return wrong, "ValueError: too many values" if outcome is Outcome.GRADER_ERROR else "no verdict in 10 s"
    return wrong, f"is not {problem.example.answer}"


def score_of(outcome: Outcome, detail: str) -> Score:
    """Correctness and format, weighted as the task weights them."""
    if outcome.is_failure:
        return Score(float("nan"), {}, WEIGHTS, outcome, detail)
    right, well_formed = float(outcome is Outcome.CORRECT), float(outcome in (Outcome.CORRECT, Outcome.WRONG))
    components = {"correctness": right, "format": well_formed}
    return Score(sum(WEIGHTS[name] * value for name, value in components.items()), components, WEIGHTS, outcome, detail)


def make(folder: Path, steps: int = 1000, completions: int = 512, seed: int = 0) -> dict[str, float]:
    """Writes the run. Returns its seconds, completions and tokens."""
    began = time.perf_counter()
    fabric = Fabric(steps, completions, seed)
    words = [f"--max-steps={steps}", f"--output-dir={folder}", f"--orchestrator.batch-size={completions}"]
    words += [f"--orchestrator.eval.interval={EVAL_EVERY}"]
    words += [f"--orchestrator.rollouts-per-example={GROUP}", "--orchestrator.sampling.max-tokens=1600"]
    words += ["--model.name=hone/tiny", "--seq-len=2048", "--display=none", "--ckpt.interval=250"]
    config = parse(RLConfig, ["@", str(RECIPE), *words], "hone rl")
    tokens = 0
    with RunWriter.start(config, "rl", ["hone", "rl", "@", str(RECIPE), *words], observers=[AlarmWatch()]) as run:
        run.note(pool=len(fabric.problems), correctness="correctness")
        for step in range(steps):
            groups = fabric.groups(step)
            write_step(run, fabric, step, groups)
            tokens += sum(rollout.first.num_sampled for group in groups for rollout in group.rollouts)
            metrics = evaluated(run, fabric, step) | fabric.metrics(step, groups, tokens)
            run.log_step(step, metrics, times(step, tokens), f"{step:016x}")
        export(run, steps)
        last = {"canary/gap/mean": 0.0} | evaluated(run, fabric, steps, last=True)
        run.log_step(steps, last, times(steps, tokens), f"{steps:016x}")
    return {"seconds": time.perf_counter() - began, "completions": steps * completions, "tokens": tokens}


def export(run: RunWriter, version: int) -> None:
    """A model with the tokenizer that the texts are told by."""
    with run.weights_dir(version) as weights:
        save_model(load_model("hone/tiny", seed=0), weights)
        save_tokenizer(weights, model_max_length=2048)


def write_step(run: RunWriter, fabric: Fabric, step: int, groups: list[Group]) -> None:
    """The rollouts of a step, and what the train step would have computed of their tokens."""
    rows = [row for i, group in enumerate(groups) for row in group_rows(step, i, group, group_state(group))]
    run.rollouts(step, rows)
    run.token_stats(step, [row for group in groups for row in fabric.token_rows(group)])
    run.note(reward_weights=WEIGHTS)


def evaluated(run: RunWriter, fabric: Fabric, version: int, last: bool = False) -> dict[str, float]:
    """The evaluation of a version, if one is due: its metrics."""
    if version % EVAL_EVERY and not last:
        return {}
    result = fabric.evaluation(version)
    run.evaluation(version, result.rows())
    return result.metrics()


def times(step: int, tokens: int) -> dict[str, float]:
    """The timings of a step."""
    total = sum(SECONDS.values())
    phases = {f"time/{name}": seconds * (1 + 0.1 * (step % 7)) for name, seconds in SECONDS.items()}
    return phases | {"time/step": total, "time/total": total * (step + 1), "tokens/s": tokens / (total * (step + 1))}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--completions", type=int, default=512, help="a step's; a multiple of 16")
    args = parser.parse_args(argv)
    made = make(args.folder, args.steps, args.completions)
    print(", ".join(f"{name} {value:,.0f}" for name, value in made.items()))


if __name__ == "__main__":
    main()
