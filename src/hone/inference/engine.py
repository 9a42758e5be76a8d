"""The engine: continuous batching. Each step prefills waiting jobs that fit, and samples a token for every running job.

The engine uses the trainer's parameters and model code, without a copy. So its logprobs equal the trainer's, except for
rounding: matrix products have other shapes. Equal prompts are computed once. The layers' products run over all
sequences at once; attention runs separately over each batch of sequences that began together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from hone import rng
from hone.errors import Halt, UserError
from hone.inference.batch import Batch, Ticket, read
from hone.inference.prefill import Prompt
from hone.inference.runner import Runner
from hone.inference.sampler import target_logprobs
from hone.inference.types import Completion, Failure, Job, SamplingParams, ScoredToken, Token
from hone.model.decoder import Decoder
from hone.types import Ragged

if TYPE_CHECKING:
    from hone.inference.text import StopWatch

ADMIT_AT = 0.25
"""While other jobs run, waiting jobs start only if this share of the KV cache is free, or if all waiting jobs fit."""


class Engine:
    """Samples from a `Decoder` in this process.

    `kv_bytes` bounds the KV cache; jobs that do not fit wait. `prefill_tokens` bounds the prompt tokens computed
    between two decode steps; longer prompts are computed in chunks. `prefix_bytes` bounds the stored keys and values of
    recent prompts, which are reused for prompts with the same beginning. Stop strings need the `tokenizer`.

    A sample's random numbers depend only on its key and position. With `batch_invariant`, neither settings nor other
    jobs change a bit of a sample (see `hone.inference.invariant`). `cuda_graphs` is for a GPU.
    """

    def __init__(
        self,
        model: Decoder,
        kv_bytes: int = 4 * 2**30,
        prefill_tokens: int = 2**15,
        prefix_bytes: int = 0,
        batch_invariant: bool = False,
        cuda_graphs: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.kv_bytes = kv_bytes
        self.prefill_tokens = prefill_tokens
        self.version = 0
        if batch_invariant and cuda_graphs:
            raise UserError("batch_invariant and cuda_graphs can't be used together: leave out one of the two")
        if cuda_graphs and model.recordable:
            from hone.inference.graphs import GraphRunner

            self.runner: Runner = GraphRunner(model, prefix_bytes, kv_bytes)
        elif batch_invariant:
            from hone.inference.invariant import InvariantRunner

            self.runner = InvariantRunner(model, prefix_bytes)
        else:
            self.runner = Runner(model, prefix_bytes)
        self.prefill = self.runner.prefill
        self._waiting: deque[Ticket] = deque()
        self._starting: tuple[list[Ticket], list[Prompt]] | None = None
        self._batches: list[Batch] = []
        self._count = 0

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._starting or self._batches)

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[Completion]]:
        """Return `params.n` completions of each prompt. Sample i of prompt p has the key (seed, "generate", p, i).

        Raises UserError for an empty prompt, or one that leaves no room in the model's context.
        """
        jobs = [
            Job(tuple(prompt), rng.key(params.seed, "generate", p, i), params.max_tokens)
            for p, prompt in enumerate(prompts)
            for i in range(params.n)
        ]
        flat = self.run(jobs, params)
        return [flat[p * params.n : (p + 1) * params.n] for p in range(len(prompts))]

    def run(
        self,
        jobs: Sequence[Job],
        params: SamplingParams,
        finished: Callable[[int, Completion], None] = lambda index, completion: None,
    ) -> list[Completion]:
        """Return one completion per job, in the order of the jobs. Jobs with equal prompts share their prefill.

        Calls `finished(index, completion)` as soon as a job has ended. Any error drops all jobs. Raises Halt if the
        model's logits are not finite.
        """
        for job in jobs:
            self._check(job)
        try:
            indices = {self.add(job, params): index for index, job in enumerate(jobs)}
            sampled: list[list[Token]] = [[] for _ in jobs]
            completions: dict[int, Completion] = {}
            while self.busy:
                for event in self.step():
                    if isinstance(event, Failure):
                        raise Halt(f"{event.reason}: go back to earlier weights")
                    index = indices[event.ticket]
                    tokens = sampled[index]
                    tokens.append(event)
                    if (reason := event.stop_reason) is not None:
                        ids, logprobs = [token.id for token in tokens], [token.logprob for token in tokens]
                        sets = [token.candidates for token in tokens if token.candidates is not None]
                        candidates = Ragged.of(sets) if sets else None
                        completions[index] = Completion(ids, logprobs, reason, candidates)
                        finished(index, completions[index])
        except BaseException:  # Ctrl-C too: what is half done must not be in the way of the next call
            self.clear()
            raise
        return [completions[index] for index in range(len(jobs))]

    def add(self, job: Job, params: SamplingParams | None = None) -> int:
        """Queue a job; return the number of its ticket. `params` apply if the job has no parameters.

        Raises UserError for an empty prompt, or one that leaves no room in the model's context.
        """
        self._check(job)
        how = job.params or params or SamplingParams()
        self._count += 1
        self._waiting.append(Ticket(self._count, job, how, self._stop_ids(how), self._stop_watch(how)))
        return self._count

    def cancel(self, ticket: int) -> None:
        """Drop a waiting or running job; do nothing if it has ended."""
        self._waiting = deque(other for other in self._waiting if other.number != ticket)
        if self._starting is not None:
            tickets, prompts = self._starting
            left = [other for other in tickets if other.number != ticket]
            self._starting = (left, prompts) if left else None
        for batch in self._batches:
            if batch.cancel(ticket):
                return

    def clear(self) -> None:
        self._waiting.clear()
        self._batches.clear()
        self._starting = None

    def weights_changed(self, version: int) -> None:
        """Record that the model's parameters changed. Tokens sampled from now on get this `version`."""
        self.version = version
        self.prefill.weights_changed()

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[list[float]]:
        """Return the logprobs of each sequence's tokens except the first, under softmax(logits / temperature).

        Sequences go through the same prefill as prompts. Raises UserError for an empty or too long sequence.
        """
        return [[token.logprob for token in self.score_tokens(ids, temperature)] for ids in sequences]

    @torch.no_grad()
    def score_tokens(self, ids: Sequence[int], temperature: float = 1.0, top: int = 0) -> list[ScoredToken]:
        """Score one sequence as `score` does. Return also the `top` likeliest tokens at each position."""
        self._check_length(ids, 0)
        prompt = self.prefill.begin(tuple(ids), all_hidden=True)
        while prompt.done < len(ids):
            self.prefill.advance([prompt], self.prefill_tokens)
        assert prompt.all_hidden is not None
        hidden_ND = torch.cat(prompt.all_hidden)[:-1]
        if not len(hidden_ND):
            return []
        targets_N = torch.tensor(ids[1:], device=self.model.device)
        columns = target_logprobs(self.model, hidden_ND, targets_N, temperature, top)
        rows = zip(ids[1:], *(column.tolist() for column in columns), strict=True)
        return [ScoredToken(id, logprob, tuple(zip(top, best, strict=True))) for id, logprob, top, best in rows]

    @torch.no_grad()
    def step(self) -> list[Token | Failure]:
        """Start waiting jobs that fit; return the next token of every running job.

        A job ends with a Failure if its logits are not finite. After any other error, which is raised, call `clear`.
        """
        self._admit()
        self.runner.join(self._batches, self._budget)
        drawn = read([batch.draw() for batch in self._batches])
        if self.runner.ahead:  # where all rows end with this token, the batch has no other
            self.runner.decode([batch for batch in self._batches if batch.room > 1])
        emitted: list[Token | Failure] = []
        for batch, columns in zip(self._batches, drawn(), strict=True):
            emitted += batch.take(columns, self.version)
            batch.compact()
        self._batches = [batch for batch in self._batches if len(batch)]
        if self._batches and not self.runner.ahead:
            self.runner.decode(self._batches)
        return emitted

    def _admit(self) -> None:
        if self._starting is None:
            tickets = self._next_tickets()
            if not tickets:
                return
            distinct = dict.fromkeys(ticket.job.prompt for ticket in tickets)
            self._starting = tickets, [self.prefill.begin(prompt) for prompt in distinct]
        tickets, prompts = self._starting
        self.prefill.advance([p for p in prompts if p.done < len(p.ids)], self.prefill_tokens)
        if all(prompt.done == len(prompt.ids) for prompt in prompts):
            self._batches += self.runner.start(tickets, prompts)
            self._starting = None

    def _next_tickets(self) -> list[Ticket]:
        """Return the jobs to start now: as many as fit into the cache, with prompts that fit into one prefill."""
        budget = self._budget
        taken: list[Ticket] = []
        longest_prompt = longest_new = tokens = 0
        prompts: set[tuple[int, ...]] = set()
        for ticket in self._waiting:
            job = ticket.job
            widths = max(longest_prompt, len(job.prompt)), max(longest_new, job.max_tokens)
            new = 0 if job.prompt in prompts else len(job.prompt)
            full = self.runner.tokens_with(self._batches, len(taken) + 1, sum(widths)) > budget
            if (full and (taken or self._batches)) or (taken and new and tokens + new > self.prefill_tokens):
                break
            tokens += new
            longest_prompt, longest_new = widths
            prompts.add(job.prompt)
            taken.append(ticket)
        all_fit = len(taken) == len(self._waiting)
        if self._batches and not all_fit and self.runner.tokens_with(self._batches) > (1 - ADMIT_AT) * budget:
            return []
        for _ in taken:
            self._waiting.popleft()
        return taken

    @property
    def _budget(self) -> int:
        return self.kv_bytes // self.model.kv_bytes_per_token

    def _check(self, job: Job) -> None:
        if job.max_tokens < 1:
            raise UserError(f"a job's max_tokens is {job.max_tokens}; it must be at least 1")
        self._check_length(job.prompt, job.max_tokens)

    def _check_length(self, prompt: Sequence[int], new: int) -> None:
        if not prompt:
            raise UserError("a prompt has no tokens; give at least one")
        if len(prompt) + new > self.model.config.max_position_embeddings:
            raise UserError(
                f"a prompt of {len(prompt)} tokens plus {new} new ones exceeds the model's "
                f"{self.model.config.context}; lower max_tokens or shorten the prompt"
            )

    def _stop_ids(self, params: SamplingParams) -> tuple[int, ...]:
        eos: Iterable[int] = () if params.ignore_eos else self.model.config.eos_token_ids
        return tuple(sorted({*(stop for stop in params.stop if isinstance(stop, int)), *eos}))

    def _stop_watch(self, params: SamplingParams) -> StopWatch | None:
        strings = params.stop_strings
        if not strings:
            return None
        if self.tokenizer is None:
            raise UserError(f"the stop string {strings[0]!r} needs a tokenizer: give Engine(…, tokenizer=…)")
        from hone.inference.text import StopWatch

        return StopWatch(self.tokenizer, strings)
