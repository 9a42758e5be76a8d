"""The two ways to render a conversation as ids: by a chat template, or by the package `renderers`.

A chat template is rendered as in transformers, but without importing transformers, which takes seconds. One difference
is intended: a template that asks for today's date gets a fixed date, so that prompts don't depend on the day.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hone.errors import UserError
from hone.model.files import read_json
from hone.model.texts import TextEncoder, composed
from hone.model.tool_calls import HERMES, LLAMA, XML, Format, Tool, format_of_template, with_objects, without_tools
from hone.types import Message

REMEDY = "set model.chat_template to a template that only appends"
THINKING = "<think>\nthought\n</think>\n\n"
END_THINK = "</think>"
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys under which data sets store a message's thought. A chat template reads at most one of these keys."""
FIXED_DATE = datetime.datetime(2024, 7, 26)
"""The date that templates get as today's: the default date of Llama 3's template."""
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FORMAT_OF_RENDERER = {
    "qwen3": HERMES,
    "qwen3-vl": HERMES,
    "prime-qwen3": XML,
    "qwen3.5": XML,
    "qwen3.6": XML,
    "qwen3.8": XML,
    "llama-3": LLAMA,
}
"""Renderer → format of tool calls. All other renderers are for models that hone cannot load."""


class _Marking:
    """Marks special tokens in messages, before these are rendered."""

    encoder: TextEncoder
    format: Format | None

    def find_special(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[str]:
        """Return the special tokens in messages and tools that will be encoded as text."""
        found = self.encoder.find_special(tools)
        for message in messages:
            found += self.encoder.find_special(message, self._tokens_of(message))
        return list(dict.fromkeys(found))

    def _marked(self, messages: Sequence[Message]) -> list[Message]:
        written = [for_template(message, self.format) for message in messages]
        return [self.encoder.mark(message, self._tokens_of(message)) for message in written]

    def _tokens_of(self, message: Message) -> tuple[str, ...]:
        """Return the special tokens that stay tokens in this message, because the model calls tools with them."""
        return self.format.tokens if self.format is not None and message.get("role") == "assistant" else ()


class TemplateRendering(_Marking):
    """Renders by a Jinja chat template. If the template ignores `tools`, messages contain the tools in Hermes' form."""

    stop_ids: tuple[int, ...] = ()

    def __init__(self, encoder: TextEncoder, template: str, tokens: dict[str, str]) -> None:
        self.encoder = encoder
        self._render, self.knows_tools = compile_template(template, tokens)
        self.format = format_of_template(template) if self.knows_tools else HERMES

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        return self.encoder.encode(self._marked_text(messages, True, tools))

    def continuation_ids(
        self, messages: Sequence[Message], completion: Message, tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Return the ids after `prompt_ids(messages)`: the finished turn, and any ids that the template adds."""
        prompt = self._marked_text(messages, True, tools)
        full = self._marked_text([*messages, completion], False, tools)
        if not full.startswith(prompt):
            raise UserError(
                "the chat template rewrites the conversation once the assistant has answered: "
                + f"{parting(prompt, full, 'the prompt goes on with', 'the finished turn has')}; {REMEDY}"
            )
        # Sampling continues the prompt's ids, so the prompt is never re-tokenised together with what follows it.
        prompt_ids, full_ids = self.encoder.encode(prompt), self.encoder.encode(full)
        if full_ids[: len(prompt_ids)] == prompt_ids:
            return full_ids[len(prompt_ids) :]
        return self.encoder.encode(full[len(prompt) :])

    def after_turn(
        self, turns: Sequence[Message], answers: Sequence[Message], tools: Sequence[Tool] | None, ends: Sequence[int]
    ) -> tuple[str, list[int] | None]:
        """Return the text of the conversation, and the ids after the last turn's end (an id in `ends`) or None.

        `turns` must come from `stand_ins`.
        """
        full, marker = self._marked_text([*turns, *answers], True, tools), turns[-1]["content"].removeprefix(THINKING)
        at = full.rfind(marker)
        tail = self.encoder.encode(full[at + len(marker) :]) if at >= 0 else []
        end = next((i for i, token in enumerate(tail) if token in ends), None)
        return self.encoder.unmark(full), None if end is None else tail[end + 1 :]

    def text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None = None) -> str:
        return self.encoder.unmark(self._marked_text(messages, opens, tools))

    def _marked_text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None) -> str:
        if self.format is None and tools:
            raise UserError(
                "the chat template lists tools, but asks for calls in a form that hone does not read: "
                "set model.chat_template to a template in the form of Qwen or Llama 3"
            )
        written, tools = self._marked(messages), self.encoder.mark(tools)
        if not self.knows_tools:
            return self._render(without_tools(written, tools), opens, None)
        return self._render(written, opens, tools)


class NamedRendering(_Marking):
    """Renders by the package `renderers`, for a model that the package knows. Methods are as in `TemplateRendering`."""

    def __init__(self, renderer: Any, encoder: TextEncoder) -> None:
        self._renderer, self.encoder = renderer, encoder
        self.stop_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        self.format = FORMAT_OF_RENDERER[renderer.config.name]

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        return list(self._rendered(messages, True, tools).token_ids)

    def text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None = None) -> str:
        ids = list(self._rendered(messages, opens, tools).token_ids)
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=False)

    def continuation_ids(
        self, messages: Sequence[Message], completion: Message, tools: Sequence[Tool] | None = None
    ) -> list[int]:
        prompt = self.prompt_ids(messages, tools)
        full = list(self._rendered([*messages, completion], False, tools).token_ids)
        if full[: len(prompt)] != prompt:
            raise UserError(
                f"{type(self._renderer).__name__} writes the conversation differently once the assistant has answered: "
                + REMEDY
            )
        return full[len(prompt) :]

    def after_turn(
        self, turns: Sequence[Message], answers: Sequence[Message], tools: Sequence[Tool] | None, ends: Sequence[int]
    ) -> tuple[str, list[int] | None]:
        full = self._rendered([*turns, *answers], True, tools)
        ids = list(full.token_ids)
        turn_ids = [i for i, message in enumerate(full.message_indices) if message == len(turns) - 1]
        end = next((i for i in reversed(turn_ids) if ids[i] in ends), None)
        text = self.encoder.tokenizer.decode(ids, skip_special_tokens=False)
        return text, None if end is None else ids[end + 1 :]

    def _rendered(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None) -> Any:
        written, tools = self._marked(messages), self.encoder.mark(tools)
        return self._renderer.render(written, tools=list(tools) if tools else None, add_generation_prompt=opens)


Rendering = TemplateRendering | NamedRendering


def for_template(message: Message, form: Format | None) -> Message:
    """Return the message for a template: without `tool_calls` if the text has them, else with arguments as objects."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = message.get("content")
    if form is not None and isinstance(text, str) and form.before_calls(text) != text:
        return {name: part for name, part in message.items() if name != "tool_calls"}
    return {**message, "content": text or "", "tool_calls": [with_objects(call) for call in calls]}


def stand_ins(conversation: Sequence[Message], answers: Sequence[Message], opened: str) -> list[Message]:
    """Return the conversation with the model's texts replaced by a marker, and their thoughts by a fixed thought.

    Sampled text is never rendered again, because it must not affect how the template writes later messages.
    """
    marker = "said"
    while any(marker in str(message) for message in (*conversation, *answers)):
        marker += " on"
    turns: list[Message] = []
    for message in conversation:
        content = message.get("content")
        thinks = opened or (isinstance(content, str) and END_THINK in content) or any(map(message.get, THOUGHTS))
        turn = {"role": "assistant", "content": (THINKING if thinks else "") + marker}
        turns.append(turn if message.get("role") == "assistant" else message)
    assert turns and turns[-1]["role"] == "assistant", "a bridge follows a turn of the assistant"
    return turns


def check_history(prompt: str, turn: Message, full: str, opened: str, answers: Sequence[Message]) -> None:
    """Raise UserError unless `full` begins with `prompt` followed by `turn`. White space is ignored."""
    begun = squeeze(prompt + turn["content"].removeprefix(opened))
    if not squeeze(full).startswith(begun):
        roles = " and ".join(dict.fromkeys(str(message.get("role")) for message in answers))
        raise UserError(
            f"the chat template rewrites earlier turns once a message of {roles} follows, so the model would be "
            "trained on a conversation that it never sees in use: "
            + f"{parting(begun, squeeze(full), 'it was sampled from', 'the template writes')}; {REMEDY}"
        )


def parting(before: str, after: str, one: str, other: str) -> str:
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(at - 10, 0)
    return f"{one} {before[start : at + 40]!r} where {other} {after[start : at + 40]!r}"


def squeeze(text: str) -> str:
    """Return the text in Unicode's composed form, and without white space, which templates may move."""
    return "".join(composed(text).split())


class _RendererTokenizer:
    """Wraps a `TextEncoder` as the tokenizer that `renderers` expects."""

    def __init__(self, encoder: TextEncoder, name: str) -> None:
        self._encoder, self._tokenizer = encoder, encoder.tokenizer
        self.name_or_path = name
        self.unk_token_id = self.eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        assert not add_special_tokens, "renderers writes special tokens by their ids"
        return self._encoder.encode(text)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


def named_rendering(name: str, encoder: TextEncoder) -> NamedRendering | None:
    from renderers import config_from_name, create_renderer
    from renderers.base import MODEL_RENDERER_MAP

    if MODEL_RENDERER_MAP.get(name) not in FORMAT_OF_RENDERER:
        return None
    config = config_from_name(MODEL_RENDERER_MAP[name])
    return NamedRendering(create_renderer(_RendererTokenizer(encoder, name), cast(Any, config)), encoder)


def find_template(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_json(folder, "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template or read_json(folder, "chat_template.json").get("chat_template")


def read_override(chat_template: str) -> str:
    """Return the template for `model.chat_template`: the value if it is Jinja, else the content of the file."""
    if "{{" in chat_template or "{%" in chat_template:
        return chat_template
    path = Path(chat_template)
    if not path.is_file():
        raise UserError(
            f"model.chat_template names {chat_template}, which is not a file: give a file, or the Jinja text"
        )
    return path.read_text(encoding="utf-8")


def named_tokens(folder: Path) -> dict[str, str]:
    found = read_json(folder, "special_tokens_map.json") | read_json(folder, "tokenizer_config.json")
    tokens = {name: found[name] for name in NAMED_TOKENS if found.get(name)}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


def compile_template(template: str, tokens: dict[str, str]) -> tuple[Callable[..., str], bool]:
    """Return `render(messages, add_generation_prompt, tools)`, and True if the template reads `tools`.

    Jinja is set up as in transformers: sandboxed, with trimmed blocks, loop controls, `raise_exception`, `generation`
    blocks, and `tojson` without HTML escapes. Raises UserError for a template that is not valid Jinja.
    """
    import jinja2
    import jinja2.ext
    import jinja2.meta
    import jinja2.nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = FIXED_DATE.strftime
    try:
        compiled = environment.from_string(template)
        knows_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"the chat template is not valid Jinja (line {error.lineno}: {error.message}): correct it"
        ) from error

    def render(messages: Sequence[Message], add_generation_prompt: bool, tools: Sequence[Tool] | None) -> str:
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            return compiled.render(
                messages=present,
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **tokens,
            )
        except Exception as error:  # a template is its author's program, and may fail in any way
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise UserError(
                f"the model's chat template refuses a conversation of {roles} ({error}): "
                "change the messages, or set model.chat_template to another template"
            ) from error

    return render, knows_tools
