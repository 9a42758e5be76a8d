"""A policy that says what a test has written, and conversations with it."""

from __future__ import annotations

from dataclasses import replace

import guessing

from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.types import Completion, SamplingParams
from hone.loops.colocated import segment_of
from hone.model.chat import load_renderer
from hone.types import Ragged, Segment, joined

RENDERER = load_renderer("hone/tiny")
END, END_TEXT = RENDERER.end_of_turn_id, "<|im_end|>"
SAMPLING = SamplingParams()


def encode(text: str) -> list[int]:
    return RENDERER.tokenizer.encode(text, add_special_tokens=False).ids


class Script:
    """A policy that says what is written for each rollout, turn by turn; it keeps the requests of each round."""

    def __init__(self, *texts: list[str], end: int = END, cut: str = "~") -> None:
        self.texts, self.end, self.cut, self.rounds = texts, end, cut, []

    def sample(self, requests, sampling, finished=None):
        self.rounds.append(list(requests))
        return [self._say(request) for request in requests]

    def _say(self, request) -> Segment:
        text = self.texts[int(request.sample_id.split("-")[-1])][request.turn]
        cut = text.endswith(self.cut)
        ids = encode(text.removesuffix(self.cut)) + ([] if cut else [self.end])
        logprobs = [-0.5 - request.turn] * len(ids)
        made = Completion(ids[: request.max_tokens], logprobs[: request.max_tokens], "length" if cut else "stop")
        return segment_of(request, made, [7] * len(made.token_ids), RENDERER)


class Cut(Script):
    """The same, of tokens that were sampled among two each."""

    def _say(self, request) -> Segment:
        said = super()._say(request)
        sets = [[id, id + 1 + request.turn] for id in said.token_ids[said.sampled_mask].tolist()]
        parts = [(int((~said.sampled_mask).sum()), {}), (len(sets), {"candidates": Ragged.of(sets)})]
        return replace(said, columns=joined(parts))


def rolled(policy, env, rollouts: int, seq_len: int = 400, max_tokens: int | None = 50, draws=(4,), step: int = 9):
    settings = RolloutSettings(RENDERER, rollouts, seq_len, max_tokens, 1, "rollout", env.tool_schemas)
    examples = [env.split("train")[i] for i in range(len(draws))]
    return examples, roll_out(env, policy, settings, examples, list(draws), step, SAMPLING)


def game(answer: int = 5, **kwargs) -> guessing.Guessing:
    """A game whose first example has this answer."""
    env = guessing.load_environment(**kwargs)
    rows = [{"prompt": "Guess", "answer": str(answer)}] * 8
    env._sources = {"train": rows, "eval": rows}
    return env
