"""On-policy distillation: a teacher behind a server gives the logprob of each token that the policy sampled.

    teacher = Teacher.connect(config.teacher, renderer, vocab_size, seq_len)
    groups = teacher(groups)              # with the column teacher_logprobs

A request has the token ids of one prompt and its completion. hone's server and vLLM answer with the logprobs of all
these tokens (`prompt_logprobs`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.algorithms.advantages import distilled, reverse_kl
from hone.client import HONE, Endpoint, RequestRejected, ServerUnavailable, api_key
from hone.errors import Halt, UserError
from hone.extensions.services.config import TeacherConfig
from hone.inference.client import ServerClient
from hone.loops.reach import PROBE, Server, are_logprobs, scores, with_remedy
from hone.model.chat import ChatRenderer
from hone.types import Group, Segment, with_column

NAME = "teacher_logprobs"
SPECIAL = 64
"""Most special tokens that the check of the tokenizer uses."""
_UNREADABLE = (KeyError, IndexError, TypeError, ValueError, AttributeError)


def connect(config: Any, renderer: ChatRenderer, vocab_size: int) -> tuple[Teacher, str]:
    """Connect to the teacher of a run. Return the teacher, and its name for messages."""
    teacher = Teacher.connect(config.teacher, renderer, vocab_size, config.seq_len)
    return teacher, f"the teacher at {config.teacher.base_url}"


def advantages(config: Any, advantage: Any, logprobs_T: np.ndarray, teacher_logprobs_T: np.ndarray) -> np.ndarray:
    """Return the advantages `[T]` of a completion's T tokens, with the config's `coef` and `reward_coef`."""
    return distilled(advantage, logprobs_T, teacher_logprobs_T, config.teacher.coef, config.teacher.reward_coef)


def metrics(scored: Sequence[tuple[Segment, np.ndarray]]) -> dict[str, float]:
    """Compute the mean reverse KL to the teacher over a step's sampled tokens."""
    kl = np.concatenate([reverse_kl(one.logprobs, logprobs_T)[one.sampled_mask] for one, logprobs_T in scored])
    return {"teacher/kl": float(kl.mean())}


class Teacher:
    """Scores sampled tokens. Raises Halt if the server is gone, or gives no logprobs."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @classmethod
    def connect(cls, config: TeacherConfig, renderer: ChatRenderer, vocab_size: int, seq_len: int) -> Teacher:
        """Connect to the teacher. Raises UserError unless its server has the policy's tokenizer, accepts all
        `vocab_size` ids, has room for `seq_len` tokens, and returns `prompt_logprobs`.
        """
        key = api_key(config.api_key_var, "--teacher.api-key-var")
        patience = {"timeout": config.timeout, "max_retries": config.max_retries}
        endpoint = Endpoint(config.base_url, key, **patience, section=config.place, who="teacher")
        try:
            return asyncio.run(cls._checked(endpoint, config.model, renderer, vocab_size, seq_len))
        except RequestRejected as error:
            raise with_remedy(error, "--teacher.api-key-var") from None
        except ServerUnavailable as gone:
            raise UserError(f"{gone}: start the teacher there with `inference --model.name TEACHER`") from None

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        segments = [rollout.first for group in groups for rollout in group.rollouts]
        rows = asyncio.run(self._score_all([segment.token_ids.tolist() for segment in segments]))
        both = zip(segments, rows, strict=True)
        logprobs = [np.where(one.sampled_mask, [0.0, *row], 0.0).astype(np.float32) for one, row in both]
        return with_column(groups, NAME, logprobs)

    async def _score_all(self, sequences: Sequence[list[int]]) -> list[list[float]]:
        async with ServerClient(self.server.endpoint) as client:
            return await asyncio.gather(*(self._score(client, ids) for ids in sequences))

    async def _score(self, client: ServerClient, ids: list[int]) -> list[float]:
        """Return the logprobs of all tokens in `ids` except the first."""
        answer = await client.post("/v1/completions", self.server.scoring([ids]))
        try:
            (row,) = scores(answer, [ids])
        except _UNREADABLE as error:
            raise self._without_logprobs(error) from error
        if not are_logprobs(row):
            raise Halt(
                f"the teacher at {self.server.endpoint.url} gives a logprob that is not finite, or above 0: check its "
                "weights"
            )
        return row

    @classmethod
    async def _checked(
        cls, endpoint: Endpoint, model: str | None, renderer: ChatRenderer, vocab_size: int, seq_len: int
    ) -> Teacher:
        url = endpoint.url
        async with ServerClient(replace(endpoint, max_retries=0)) as client:
            served = await client.models()
            known = [entry for entry in served if model in (None, entry.id)]
            if len(known) != 1:
                names = ", ".join(entry.id for entry in served[:20]) or "no model"
                raise UserError(f"{url} serves {names}: set --teacher.model to one of these")
            hones = known[0].owner == HONE
            room, needed = known[0].max_model_len, seq_len + (not hones)  # others always sample a token
            if room is not None and room < needed:
                raise UserError(f"the teacher at {url} has room for {room} tokens, not for {needed}: lower seq_len")
            teacher = cls(Server.of(endpoint, known[0]))
            added = renderer.tokenizer.get_added_tokens_decoder()
            text = PROBE + "".join(added[token].content for token in sorted(added)[:SPECIAL])
            expected = renderer.tokenizer.encode(text, add_special_tokens=hones).ids
            ids = await teacher._ids(client, text, {} if hones else {"add_special_tokens": False})
            if ids != expected[1:]:
                raise UserError(
                    f"{url} serves {known[0].id}, which has another tokenizer than the policy, so it can't score the "
                    "policy's tokens: serve a teacher of the same family"
                )
            try:
                await teacher._score(client, [expected[0], vocab_size - 1])
            except RequestRejected as error:
                raise UserError(
                    f"the policy may sample ids up to {vocab_size - 1}, but the teacher {known[0].id} refuses that id "
                    f"({error.reason}): serve a teacher with at least that vocabulary"
                ) from None
            return teacher

    async def _ids(self, client: ServerClient, text: str, more: dict[str, Any]) -> list[int]:
        """Return the server's token ids for `text`, except the first."""
        answer = await client.post("/v1/completions", self.server.scoring([text]) | more)
        try:
            return [int(token) for entry in answer["choices"][0]["prompt_logprobs"][1:] for token in entry]
        except _UNREADABLE as error:
            raise self._without_logprobs(error) from error

    def _without_logprobs(self, error: Exception) -> Halt:
        return Halt(
            f"the teacher at {self.server.endpoint.url} gives no logprobs of prompts ({type(error).__name__}: {error}):"
            " serve it with `inference` or vLLM"
        )
