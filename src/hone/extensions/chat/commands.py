"""`hone chat MODEL_OR_RUN`: a conversation in the terminal; with a run, before and after training side by side.

Answers come as they are sampled. Each model has the conversation with its own answers.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hone import rng
from hone.composition.evaluating import load_weights
from hone.config.shared import PolicyConfig
from hone.errors import UserError
from hone.extensions.chat.config import ChatConfig
from hone.inference.text import Detokenizer
from hone.inference.types import Failure, Job, SamplingParams
from hone.model.fetch import is_fetched
from hone.orchestrator.colocated import EnginePolicy
from hone.runs import Run
from hone.runs.listing import find_run
from hone.terminal import make_console, printable
from hone.types import Message

KV_GIB = 1.0
"""For keys and values of one conversation; two models may share a device."""


@dataclass
class Speaker:
    """A model, by the name that its answers get, and the conversation that it has had."""

    name: str
    policy: EnginePolicy
    system: list[Message]
    messages: list[Message] = field(default_factory=list)

    def answer(self, question: str, config: ChatConfig, turn: int) -> Generator[str]:
        """Yield the answer piece by piece, each with a token more; question and answer are remembered once it is whole.

        Where the conversation leaves less than a quarter of the model's context for it, the conversation begins anew.
        UserError if the question alone fills it, or the model can't answer; the conversation can go on then.
        """
        engine, renderer = self.policy.engine, self.policy.renderer
        context = engine.model.config.max_position_embeddings
        messages: list[Message] = [{"role": "user", "content": question}]
        ids = renderer.prompt_ids(self.system + messages)
        if len(ids) >= context:
            raise UserError(f"the question has {len(ids)} tokens, and the context of {self.name} {context}: shorten it")
        longer = renderer.prompt_ids(self.system + self.messages + messages)
        if len(longer) + min(config.max_tokens, context // 4) <= context:
            messages, ids = self.messages + messages, longer
        elif self.messages:
            print(f"The conversation with {self.name} fills its context, and begins anew.", file=sys.stderr)
        job = Job(tuple(ids), rng.key(config.seed, "chat", turn), min(config.max_tokens, context - len(ids)))
        ticket = engine.add(job, SamplingParams(temperature=config.temperature, stop=renderer.stop_ids))
        text, decoder = renderer.opened_by_template, Detokenizer(renderer.tokenizer)
        try:
            yield text
            while engine.busy:
                for event in engine.step():
                    if isinstance(event, Failure):
                        raise UserError(f"{self.name} can't answer: {event.reason}")
                    text += (piece := decoder.push([event.id]))
                    yield piece
            yield (rest := decoder.finish())
        finally:
            engine.cancel(ticket)
        self.messages = [*messages, {"role": "assistant", "content": text + rest}]


def run(config: ChatConfig) -> int:
    """Answer each line of the standard input. Return 0 at its end."""
    asks, console = sys.stdin.isatty(), make_console(highlight=False, soft_wrap=True)
    system: list[Message] = [{"role": "system", "content": config.system}] if config.system else []
    speakers = [Speaker(name, policy, system) for name, policy in load_models(config)]
    turn = 0
    while (line := read_line(asks)) is not None:
        if line.strip():
            answers = [speaker.answer(line, config, turn) for speaker in speakers]
            turn += 1
            show_all = show_beside if len(speakers) > 1 and console.is_terminal else show
            try:
                with ExitStack() as stack:
                    show_all(console, speakers, [stack.enter_context(closing(answer)) for answer in answers])
            except UserError as error:
                if not asks:
                    raise
                print(f"error: {error}", file=sys.stderr)
    return 0


def load_models(config: ChatConfig) -> list[tuple[str, EnginePolicy]]:
    """Load the model that the config names or, of a run, `before` (its initial model) and `after` (its last weights).

    A run's initial model that is not here any more is left out, and so is one of an evaluation, which has made none.
    """
    name, path = config.model, Path(config.model)
    # A model folder, a hub id, or a name that hone knows.
    if (path / "config.json").exists() or ("/" in name and not path.exists()) or is_fetched(name):
        return [(name, load_weights(name, config.precision, kv_gib=KV_GIB))]
    run = Run(find_run(name))
    if run.info["kind"] == "eval":
        raise UserError(f"{run.path} is an evaluation and made no weights: hone chat {run.config['model']}")
    model, weights = run.config["model"], run.weights()
    if not weights:
        raise UserError(f"{run.path} has no weights yet: talk to what it began with, hone chat {model['name']}")
    last, loaded = weights[max(weights)], []
    given = {name: model[name] for name in ("chat_template", "special_tokens", "implementation") if name in model}
    if "{" not in (template := given.get("chat_template", "{")):  # it is a file
        given["chat_template"] = run.locate(template)
    more: dict[str, Any] = given | {"kv_gib": KV_GIB}
    try:
        first = PolicyConfig.model_validate(model | {"name": run.locate(model["name"])})
        args = first.name, config.precision, run.info["seed"]
        loaded.append(("before", load_weights(*args, init=first.init, lora=first.lora, **more)))
    except UserError as error:
        print(f"The model before training can't be loaded ({error}): only {last} answers.", file=sys.stderr)
    return [*loaded, ("after", load_weights(str(last), config.precision, **more))]


def read_line(asks: bool) -> str | None:
    """Return the next question, None at the end of the input."""
    try:
        return input("> " if asks else "").encode(errors="surrogateescape").decode(errors="replace")
    except EOFError:
        return None


def show(console: Console, speakers: list[Speaker], answers: list[Iterator[str]]) -> None:
    """Print one answer after the other, as it comes; with the speaker's name if there are several."""
    for speaker, answer in zip(speakers, answers, strict=True):
        if len(speakers) > 1:
            console.print(Text(f"{speaker.name}: ", "bold"), end="")
        for piece in answer:
            console.print(Text(printable(piece)), end="")
        console.print()


def show_beside(console: Console, speakers: list[Speaker], answers: list[Iterator[str]]) -> None:
    """Print the answers in a column each, as they come."""
    texts = [""] * len(speakers)
    with Live(console=console, vertical_overflow="visible") as live:
        for pieces in zip_longest(*answers, fillvalue=""):
            texts = [text + printable(piece) for text, piece in zip(texts, pieces, strict=True)]
            table = Table(*(speaker.name for speaker in speakers), box=None, expand=True)
            table.add_row(*map(Text, texts))
            live.update(table)
