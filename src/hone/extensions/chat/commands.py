"""`hone chat MODEL_OR_RUN`: a conversation in the terminal; with a run, before and after training side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from hone import rng
from hone.config.shared import PolicyConfig
from hone.environments import Environment
from hone.errors import UserError
from hone.extensions.chat.config import ChatConfig
from hone.inference.conversations import RolloutSettings, roll_out
from hone.inference.policy import Request
from hone.inference.text import Detokenizer
from hone.inference.types import Completion, Failure, Job, SamplingParams, Token
from hone.loops.colocated import EnginePolicy, segment_of
from hone.loops.evaluating import load_weights
from hone.model.fetch import is_fetched
from hone.runs import Run
from hone.runs.listing import find_run
from hone.terminal import make_console, printable
from hone.types import Example, Message, Rollout, Segment


class Chat(Environment):
    """A task with questions from standard input. It also samples from all models, and prints their answers."""

    def __init__(self, config: ChatConfig) -> None:
        self.config, self.asks, self.models = config, sys.stdin.isatty(), load_models(config)
        self.console = make_console(highlight=False, soft_wrap=True)
        self.system: list[Message] = [{"role": "system", "content": config.system}] if config.system else []
        self.conversations, self.turns, self.asked = [self.system for _ in self.models], dict[str, Segment](), 0

    async def rollout(self, model: Any, example: Example) -> Rollout:
        """Answer each question; start a new conversation if less than a quarter of the context is left."""
        name, context, renderer = self.models[model.index][0], model.settings.seq_len, model.settings.renderer
        while question := (await model.respond([], {}))[0]:
            anew, messages = self.system + question, self.conversations[model.index] + question
            if (tokens := len(renderer.prompt_ids(anew))) >= context:
                raise UserError(f"the question has {tokens} tokens, but {name} has room for {context}: shorten it")
            try:
                ids, _ = model.prompt(messages, None, model.parent_of(messages, None))
            except UserError:  # the template rewrites earlier turns
                ids, model.calls = renderer.prompt_ids(messages), []
            if messages != anew and len(ids) + min(self.config.max_tokens, context // 4) > context:
                print(f"The conversation with {name} fills the context: a new one begins.", file=sys.stderr)
                messages = anew
            turn = await model.sample(messages)
            self.conversations[model.index] = [*messages, turn.message]
        return model.rollout()

    def respond_many(self, turns: Sequence[Any]) -> list[Any]:
        line, question = "", list[Message]()
        with suppress(EOFError):
            while not line.strip():
                line = input("> " if self.asks else "").encode(errors="surrogateescape").decode(errors="replace")
            question.append({"role": "user", "content": line})
            self.asked += 1
        return [(question, {})] * len(turns)

    def sample(self, requests: Sequence[Request], sampling: SamplingParams, finished: Any = None) -> list[Segment]:
        """Print the answers as they come: in columns on a terminal, else one after another."""
        names = [name for name, _ in self.models]
        answers = [self.answer(*model, one, sampling) for model, one in zip(self.models, requests, strict=True)]
        if len(names) > 1 and self.console.is_terminal:
            texts = [""] * len(names)
            with Live(console=self.console, vertical_overflow="visible") as live:
                for pieces in zip_longest(*answers, fillvalue=""):
                    texts = [text + printable(piece) for text, piece in zip(texts, pieces, strict=True)]
                    table = Table(*names, box=None, expand=True)
                    table.add_row(*map(Text, texts))
                    live.update(table)
        else:
            for name, answer in zip(names, answers, strict=True):
                self.console.print(f"{name}: " if len(names) > 1 else "", end="")
                for piece in answer:
                    self.console.print(Text(printable(piece)), end="")
                self.console.print()
        return [self.turns[name] for name in names]

    def answer(self, name: str, policy: EnginePolicy, request: Request, sampling: SamplingParams) -> Iterator[str]:
        engine, tokens, text = policy.engine, list[Token](), Detokenizer(policy.renderer.tokenizer)
        engine.clear()  # what was interrupted
        key = rng.key(self.config.seed, "chat", self.asked - 1)
        engine.add(Job(request.prompt_ids, key, request.max_tokens), sampling)
        yield policy.renderer.opened_by_template
        while engine.busy:
            for event in engine.step():
                if isinstance(event, Failure):
                    raise UserError(f"{name} can't answer: {event.reason}")
                tokens.append(event)
                yield text.push([event.id])
        yield text.finish()
        ids, logprobs = [token.id for token in tokens], [token.logprob for token in tokens]
        completion = Completion(ids, logprobs, tokens[-1].stop_reason or "stop")
        self.turns[name] = segment_of(request, completion, [0] * len(ids), policy.renderer)


def run(config: ChatConfig) -> int:
    """Answer each line of standard input. On a terminal an error ends only the current turn."""
    chat = Chat(config)
    example = Example([*chat.system, {"role": "user", "content": "hello"}])
    policy = chat.models[-1][1]
    context, renderer = policy.engine.model.config.max_position_embeddings, policy.renderer
    settings = RolloutSettings(renderer, len(chat.models), context, config.max_tokens, config.seed, "chat")
    sampling = SamplingParams(temperature=config.temperature, stop=renderer.stop_ids)
    while True:
        asked = chat.asked
        try:
            for rollout in roll_out(chat, chat, settings, [example], [0], 0, sampling):
                assert rollout.failure is None, rollout.failure
            return 0
        except UserError as error:
            if not chat.asks or chat.asked == asked:
                raise
            print(f"error: {error}", file=sys.stderr)


def load_models(config: ChatConfig) -> list[tuple[str, EnginePolicy]]:
    """Load the named model; for a run, load `before` (its initial model, if it can be loaded) and `after` (its last
    weights).
    """
    name, path = config.model, Path(config.model)
    more: dict[str, Any] = {"precision": config.precision, "kv_gib": 1.0}  # two models may share a device
    # A model folder, a hub id, or a name that hone knows.
    if (path / "config.json").exists() or ("/" in name and not path.exists()) or is_fetched(name):
        return [(name, load_weights(name, **more))]
    run = Run(find_run(name))
    if run.info["kind"] == "eval":
        raise UserError(f"{run.path} is an evaluation, without weights: try hone chat {run.config['model']}")
    first, weights, loaded = PolicyConfig.model_validate(run.config["model"]), run.weights(), []
    if not weights:
        raise UserError(f"{run.path} has no weights yet: talk to its initial model, hone chat {first.name}")
    last, template = weights[max(weights)], first.chat_template
    more["chat_template"] = template if template is None or "{" in template else run.locate(template)
    more |= {"special_tokens": first.special_tokens, "implementation": first.implementation}
    try:
        began = {"seed": run.info["seed"], "init": first.init, "lora": first.lora}
        loaded.append(("before", load_weights(run.locate(first.name), **began, **more)))
    except UserError as error:
        print(f"The model before training can't be loaded ({error}): only {last} answers.", file=sys.stderr)
    return [*loaded, ("after", load_weights(str(last), **more))]
