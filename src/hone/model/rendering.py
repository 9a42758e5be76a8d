"""The two ways in which a conversation becomes ids: a chat template, or `renderers` for the models it knows by name."""

from __future__ import annotations

from typing import Any, Protocol, cast

from tokenizers import Tokenizer

from hone.errors import UserError
from hone.model.template import compile_template
from hone.types import Message


class Rendering(Protocol):
    """How one model's conversations are written."""

    stop_ids: tuple[int, ...]

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        """Ids of the conversation and the opening of the assistant's next turn."""
        ...

    def continuation_ids(self, messages: list[Message], completion: Message) -> list[int]:
        """Ids by which the finished turn continues `prompt_ids`, with whatever the template writes after it."""
        ...


class TemplateRendering:
    """A chat template (Jinja) and a tokenizer."""

    stop_ids = ()

    def __init__(self, tokenizer: Tokenizer, template: str, tokens: dict[str, str]) -> None:
        self._tokenizer = tokenizer
        self._render = compile_template(template, tokens)

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        return self._encode(self._render(messages, True))

    def continuation_ids(self, messages: list[Message], completion: Message) -> list[int]:
        prompt, full = self._render(messages, True), self._render([*messages, completion], False)
        if not full.startswith(prompt):
            at = next(
                (i for i, (a, b) in enumerate(zip(prompt, full, strict=False)) if a != b), min(len(prompt), len(full))
            )
            raise UserError(
                "the chat template rewrites the conversation once the assistant has answered: the prompt goes on with "
                f"{prompt[at : at + 40]!r} where the finished turn has {full[at : at + 40]!r}; "
                "give a template that only appends with model.chat_template"
            )
        # Sampling continues the prompt's ids, so the prompt is never re-tokenised together with what follows it.
        prompt_ids, full_ids = self._encode(prompt), self._encode(full)
        if full_ids[: len(prompt_ids)] == prompt_ids:
            return full_ids[len(prompt_ids) :]
        return self._encode(full[len(prompt) :])

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids


class NamedRendering:
    """A model that the `renderers` package knows."""

    def __init__(self, renderer: Any) -> None:
        self._renderer = renderer
        self.stop_ids = tuple(renderer.get_stop_token_ids())

    def prompt_ids(self, messages: list[Message]) -> list[int]:
        return list(self._renderer.render_ids(messages, add_generation_prompt=True))

    def continuation_ids(self, messages: list[Message], completion: Message) -> list[int]:
        prompt = self.prompt_ids(messages)
        full = list(self._renderer.render_ids([*messages, completion]))
        if full[: len(prompt)] != prompt:
            raise UserError(
                f"{type(self._renderer).__name__} writes the conversation differently once the assistant has answered: "
                "give a template that only appends with model.chat_template"
            )
        return full[len(prompt) :]


class _RendererTokenizer:
    """What `renderers` asks of a tokenizer, on top of a plain `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name
        self.unk_token_id = self.eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


def named_rendering(name: str, tokenizer: Tokenizer) -> NamedRendering | None:
    """The rendering of a model that `renderers` knows by this hub id, else None: its generic fallback is never used."""
    from renderers import config_from_name, create_renderer
    from renderers.base import MODEL_RENDERER_MAP

    if name not in MODEL_RENDERER_MAP:
        return None
    config = config_from_name(MODEL_RENDERER_MAP[name])
    return NamedRendering(create_renderer(_RendererTokenizer(tokenizer, name), cast(Any, config)))
