"""The two ways in which a conversation becomes ids: a chat template, or `renderers` for the models it knows by name."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Protocol, cast

from tokenizers import Tokenizer

from hone.errors import UserError
from hone.model.template import compile_template
from hone.model.tool_calls import HERMES, LLAMA, XML, Call, Format, Tool, format_of_template
from hone.model.tool_messages import with_objects, without_tools
from hone.types import Message

REMEDY = "give a template that only appends with model.chat_template"
THINKING = "<think>\nthought\n</think>\n\n"
END_THINK = "</think>"
FORMAT_OF_RENDERER = {
    "qwen3": HERMES,
    "qwen3-vl": HERMES,
    "prime-qwen3": XML,
    "qwen3.5": XML,
    "qwen3.6": XML,
    "qwen3.8": XML,
    "llama-3": LLAMA,
}
"""Of the models that `renderers` knows, those whose calls hone reads itself; the calls of others the package reads."""


class Rendering(Protocol):
    """How one model's conversations are written."""

    stop_ids: tuple[int, ...]
    format: Format | None

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """Ids of the conversation and the opening of the assistant's next turn."""
        ...

    def text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None = None) -> str:
        """The conversation as text, special tokens included; `opens`: with the opening of the assistant's next turn."""
        ...

    def continuation_ids(
        self, messages: Sequence[Message], completion: Message, tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """Ids by which the finished turn continues `prompt_ids`, with whatever the template writes after it."""
        ...

    def bridge_ids(
        self,
        conversation: Sequence[Message],
        answers: Sequence[Message],
        tools: Sequence[Tool] | None,
        opened: str,
        ends: Sequence[int],
    ) -> list[int]:
        """Ids that follow the end of the conversation's last turn: the answers, and the opening of the next turn.

        `opened` is what the template opens for the model to continue, `ends` are the ids that end a turn.
        """
        ...

    def read_calls(self, ids: list[int], tools: Sequence[Tool] | None) -> list[Call]:
        """The tool calls of sampled ids, for a rendering without a `format`."""
        ...


class TemplateRendering:
    """A chat template (Jinja) and a tokenizer. One that knows no tools (`knows_tools`) gets them in Hermes' form."""

    stop_ids = ()

    def __init__(self, tokenizer: Tokenizer, template: str, tokens: dict[str, str]) -> None:
        self._tokenizer = tokenizer
        self._compiled = compile_template(template, tokens)
        self.knows_tools = self._compiled.knows_tools
        self.format = format_of_template(template) if self.knows_tools else HERMES

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        return self._encode(self.text(messages, True, tools))

    def continuation_ids(
        self, messages: Sequence[Message], completion: Message, tools: Sequence[Tool] | None = None
    ) -> list[int]:
        prompt, full = self.text(messages, True, tools), self.text([*messages, completion], False, tools)
        if not full.startswith(prompt):
            raise UserError(
                "the chat template rewrites the conversation once the assistant has answered: "
                + _difference(prompt, full, "the prompt goes on with", "the finished turn has")
            )
        # Sampling continues the prompt's ids, so the prompt is never re-tokenised together with what follows it.
        prompt_ids, full_ids = self._encode(prompt), self._encode(full)
        if full_ids[: len(prompt_ids)] == prompt_ids:
            return full_ids[len(prompt_ids) :]
        return self._encode(full[len(prompt) :])

    def bridge_ids(
        self,
        conversation: Sequence[Message],
        answers: Sequence[Message],
        tools: Sequence[Tool] | None,
        opened: str,
        ends: Sequence[int],
    ) -> list[int]:
        structured = self.format is not None and self.format.structured
        only_calls = self.format is not None and self.format.only_calls
        turns, marker = stand_ins(conversation, answers, opened, structured, only_calls)
        full = self.text([*turns, *answers], True, tools)
        check_history(self.text(turns[:-1], True, tools), turns[-1], full, opened, answers)
        at = full.rfind(marker)
        tail = self._encode(full[at + len(marker) :]) if at >= 0 else []
        end = next((i for i, token in enumerate(tail) if token in ends), None)
        if end is None:
            raise UserError(f"the chat template does not write where an assistant's turn ends: {REMEDY}")
        return tail[end + 1 :]

    def read_calls(self, ids: list[int], tools: Sequence[Tool] | None) -> list[Call]:
        return []

    def text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None = None) -> str:
        if self.format is None and tools:
            raise UserError(
                "the chat template lists tools, but asks for calls in a form that hone does not read: "
                "give a template in the form of Qwen, Llama 3, Mistral or DeepSeek V3 with model.chat_template"
            )
        written = [for_template(message, self.format) for message in messages]
        if not self.knows_tools:
            return self._compiled.render(without_tools(written, tools), opens, None)
        return self._compiled.render(written, opens, tools)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids  # lets other threads run


class NamedRendering:
    """A model that the `renderers` package knows."""

    def __init__(self, renderer: Any, tokenizer: Tokenizer) -> None:
        self._renderer, self._tokenizer = renderer, tokenizer
        self.stop_ids = tuple(renderer.get_stop_token_ids())
        self.format = FORMAT_OF_RENDERER.get(renderer.config.name)

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        return list(self._rendered(messages, True, tools).token_ids)

    def text(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None = None) -> str:
        ids = list(self._rendered(messages, opens, tools).token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=False)

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

    def bridge_ids(
        self,
        conversation: Sequence[Message],
        answers: Sequence[Message],
        tools: Sequence[Tool] | None,
        opened: str,
        ends: Sequence[int],
    ) -> list[int]:
        """Not by the renderer's own `bridge_to_next_turn`: that refuses more than is rewritten, and gives no reason."""
        turns, _ = stand_ins(conversation, answers, opened, structured=self.format is None)
        full = self._rendered([*turns, *answers], True, tools)
        text = self._tokenizer.decode(list(full.token_ids), skip_special_tokens=False)
        prompt = self._tokenizer.decode(self.prompt_ids(turns[:-1], tools), skip_special_tokens=False)
        check_history(prompt, turns[-1], text, opened, answers)
        of_turn = [i for i, message in enumerate(full.message_indices) if message == len(turns) - 1]
        end = next((i for i in reversed(of_turn) if full.token_ids[i] in ends), None)
        if end is None:
            raise UserError(f"{type(self._renderer).__name__} does not write where an assistant's turn ends: {REMEDY}")
        return list(full.token_ids[end + 1 :])

    def read_calls(self, ids: list[int], tools: Sequence[Tool] | None) -> list[Call]:
        try:
            parsed = self._renderer.parse_response(ids, tools=list(tools) if tools else None).tool_calls
        except Exception:  # the package's readers do not expect every text that a model may write
            return [Call(None, {}, self._tokenizer.decode(ids, skip_special_tokens=False))]
        return [
            Call(call.name, call.arguments)
            if call.name and call.status == "ok" and isinstance(call.arguments, dict)
            else Call(None, {}, call.raw)
            for call in parsed
        ]

    def _rendered(self, messages: Sequence[Message], opens: bool, tools: Sequence[Tool] | None) -> Any:
        written = [for_template(message, self.format) for message in messages]
        return self._renderer.render(written, tools=list(tools) if tools else None, add_generation_prompt=opens)


def for_template(message: Message, form: Format | None) -> Message:
    """The message as a template takes it: calls that stand in the text are not written twice, arguments are objects."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = message.get("content")
    spoken = form.before_calls(text) if form is not None and isinstance(text, str) else text
    if spoken != text and form is not None and not form.structured:
        return {name: part for name, part in message.items() if name != "tool_calls"}
    return {**message, "content": spoken or "", "tool_calls": [with_objects(call) for call in calls]}


def stand_ins(
    conversation: Sequence[Message], answers: Sequence[Message], opened: str, structured: bool, only_calls: bool = False
) -> tuple[list[Message], str]:
    """The conversation with something short in place of what the model said, and the text that ends the last turn.

    What was sampled is never rendered again: no text of a model decides how the template writes what follows, nor
    whether it can. Kept is whether there was thought. `structured`: a turn that tools answer gets a call for each of
    their messages, for templates that want to see them; `only_calls`: it has no thought beside them.
    """
    marker = "said"
    while any(marker in str(message) for message in (*conversation, *answers)):
        marker += " on"
    turns: list[Message] = []
    messages = [*conversation, *answers]
    for i, message in enumerate(conversation):
        if message.get("role") != "assistant":
            turns.append(message)
            continue
        content = message.get("content")
        thought = THINKING if opened or (isinstance(content, str) and END_THINK in content) else ""
        answered = itertools.takewhile(lambda later: later.get("role") == "tool", messages[i + 1 :])
        calls = [_stand_in_call(answer, marker) for answer in answered] if structured else []
        if calls:
            turns.append({"role": "assistant", "content": "" if only_calls else thought, "tool_calls": calls})
        else:
            turns.append({"role": "assistant", "content": thought + marker})
    assert turns and turns[-1]["role"] == "assistant", "a bridge follows a turn of the assistant"
    return turns, marker


def _stand_in_call(answer: Message, marker: str) -> dict[str, Any]:
    function = {"name": answer.get("name") or "tool", "arguments": {"text": marker}}
    return {"id": answer.get("tool_call_id", ""), "type": "function", "function": function}


def check_history(prompt: str, turn: Message, full: str, opened: str, answers: Sequence[Message]) -> None:
    """Raises UserError unless `full` goes on from `prompt`, after which `turn` was said. White space may move."""
    said = turn["content"].removeprefix(opened)
    begun = squeeze(prompt + said)
    if not squeeze(full).startswith(begun):
        roles = " and ".join(dict.fromkeys(str(message.get("role")) for message in answers))
        raise UserError(
            f"the chat template rewrites earlier turns once a message of {roles} follows, so the model would be "
            "trained on a conversation that it never sees in use: "
            + _difference(begun, squeeze(full), "it was sampled from", "the template writes")
        )


def _difference(before: str, after: str, one: str, other: str) -> str:
    """Where two texts part, in words, and the remedy."""
    pairs = zip(before, after, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(after)))
    start = max(at - 10, 0)
    return f"{one} {before[start : at + 40]!r} where {other} {after[start : at + 40]!r}; {REMEDY}"


def squeeze(text: str) -> str:
    """Templates may move white space around a turn, never anything else."""
    return "".join(text.split())


class _RendererTokenizer:
    """What `renderers` asks of a tokenizer, on top of a plain `tokenizers.Tokenizer`."""

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        self._tokenizer = tokenizer
        self.name_or_path = name
        self.unk_token_id = self.eos_token_id = None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

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
    return NamedRendering(create_renderer(_RendererTokenizer(tokenizer, name), cast(Any, config)), tokenizer)
