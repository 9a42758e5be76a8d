"""Converts conversations to token ids and back.

The package `renderers` renders the models that it knows by name; all other models use their chat template. The ids of a
completion must continue the ids of its prompt. A template that changes the prompt once the turn is finished is refused,
because training would see other ids than sampling.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from hone import digests
from hone.errors import UserError
from hone.model.files import TINY, is_hub_id, read_json, resolve_model, write_json
from hone.model.rendering import (
    END_THINK,
    REMEDY,
    THOUGHTS,
    Rendering,
    TemplateRendering,
    check_history,
    find_template,
    named_rendering,
    named_tokens,
    read_override,
    squeeze,
    stand_ins,
)
from hone.model.texts import SpecialTexts, TextEncoder, composed, special_tokens_of
from hone.model.tokenizer import CHAT_TEMPLATE, ENDOFTEXT_ID, IM_END, IM_END_ID, build_tiny_tokenizer, save_tokenizer
from hone.model.tool_calls import Tool, tool_calls, with_objects
from hone.types import Message

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
THINK = "<think>"
PROBE = "probe"
PROBED: Message = {"role": "user", "content": PROBE}


class ChatRenderer:
    """Renders conversations for one model. `load_renderer` makes it.

    `stop_ids`: ids at which generation ends; the first id ends the assistant's turn. `vocab_size`: one more than the
    tokenizer's largest id. `opened_by_template`: text such as "<think>\\n" if the generation prompt opens a thought for
    the model, else "". `special_texts`: the messages that `note` counted.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        rendering: Rendering,
        stop_ids: tuple[int, ...],
        source: Path | None,
        template: str | None,
    ) -> None:
        self.tokenizer = tokenizer
        self._rendering, self._source, self._override = rendering, source, template
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.end_of_turn_id = self._find_end_of_turn(stop_ids + rendering.stop_ids)
        self.stop_ids = tuple(dict.fromkeys((self.end_of_turn_id, *stop_ids, *rendering.stop_ids)))
        self.opened_by_template = self._find_opened()
        self.special_texts = SpecialTexts()

    def prompt_ids(self, messages: list[Message], tools: list[Tool] | None = None) -> list[int]:
        """Return the ids of the conversation and of the start of the assistant's turn. `tools` are in OpenAI's form."""
        return self._rendering.prompt_ids(messages, tools)

    def text(self, messages: list[Message], opens: bool, tools: list[Tool] | None = None) -> str:
        """Return the conversation as text. If `opens` is true, add the start of the assistant's next turn."""
        return self._rendering.text(messages, opens, tools)

    def note(
        self, where: str, messages: list[Message], tools: list[Tool] | None = None, key: str | None = None
    ) -> None:
        """Count messages that have special tokens encoded as text, once per `key` (by default `where`)."""
        if found := self._rendering.find_special(messages, tools):
            self.special_texts.add(key or where, where, found)

    def bridge_ids(
        self, conversation: list[Message], answers: list[Message], tools: list[Tool] | None = None
    ) -> list[int]:
        """Return the ids between two sampled turns: `conversation` ends with the first turn, and `answers` follow it.

        The ids come after the end-of-turn id, and include the start of the next turn. Sampled ids are never rendered
        again. Raises UserError if the template rewrites earlier turns once answers follow. For example, Qwen3's
        template drops earlier thoughts after a user's message, but not after a tool's message.
        """
        rendering, opened = self._rendering, self.opened_by_template
        turns = stand_ins(conversation, answers, opened)
        full, ids = rendering.after_turn(turns, answers, tools, self.stop_ids)
        check_history(rendering.text(turns[:-1], True, tools), turns[-1], full, opened, answers)
        if ids is None:
            raise UserError(f"the chat template does not write where an assistant's turn ends: {REMEDY}")
        return ids

    def message(self, ids: list[int], tools: list[Tool] | None = None) -> Message:
        """Return sampled ids as the assistant's message: `role`, `content` and, if it calls tools, `tool_calls`.

        The content starts with `opened_by_template` and is the whole text, including thoughts, calls and tags. A call
        that cannot be read has the name "", and its raw text as arguments (see `hone.model.tool_calls`).
        """
        form = self._rendering.format
        text = self.opened_by_template + self._decode_keeping(ids, form.tokens if form is not None else ())
        calls = tool_calls(text, form, tools) if form is not None else []
        message: Message = {"role": "assistant", "content": text}
        return message | {"tool_calls": calls} if calls else message

    def before_calls(self, text: str) -> str:
        form = self._rendering.format
        return text if form is None else form.before_calls(text)

    @property
    def calls_are_text(self) -> bool:
        """Return True if a call begins with a tag in plain text, not with a special token."""
        form = self._rendering.format
        return form is not None and not form.tokens

    def completion_ids(
        self, prompt_messages: list[Message], completion: str | Message, tools: list[Tool] | None = None
    ) -> list[int]:
        """Return the ids that continue `prompt_ids(prompt_messages)`: the rendered completion and its end-of-turn id.

        A thought is in the content, or under a key of `THOUGHTS`. Raises UserError if the template rewrites the prompt
        once the turn is finished, or does not write the whole text, thought or tool calls.
        """
        given: Message = {"content": completion} if isinstance(completion, str) else completion
        text, calls = given.get("content") or "", given.get("tool_calls") or []
        more = {name: part for name, part in given.items() if name not in ("role", "content", "tool_calls")}
        message: Message = {"role": "assistant", "content": text} | ({"tool_calls": calls} if calls else {}) | more
        ids = self._rendering.continuation_ids(prompt_messages, message, tools)
        ends = [i for i, token in enumerate(ids) if token in self.stop_ids]
        ids = ids[: ends[-1] + 1] if ends else [*ids, self.end_of_turn_id]
        written = self.opened_by_template + self.tokenizer.decode(ids, skip_special_tokens=False)
        if squeeze(text) not in squeeze(written):
            raise UserError(
                f"the chat template leaves out a part of the assistant's text ({text[:60]!r} became "
                f"{written[:60]!r}): set model.chat_template to a template that keeps it"
            )
        before_text = squeeze(written).rpartition(squeeze(text))[0] if text.strip() else squeeze(written)
        for name in THOUGHTS:
            thought = message.get(name) or ""
            if not isinstance(thought, str) or squeeze(thought) not in before_text:
                raise UserError(
                    f"the chat template does not write `{name}` of the assistant's message ({str(thought)[:60]!r}): "
                    "use the key that it reads (Qwen3's reads reasoning_content), put the thought into `content`, or "
                    "remove it"
                )
        read = self.message(ids, tools).get("tool_calls", []) if calls else []
        if composed([_called(call) for call in calls]) != composed([_called(call) for call in read]):
            raise UserError(
                f"the chat template does not write the assistant's tool calls unchanged ({written[:60]!r}): "
                "set model.chat_template to a template that does"
            )
        return ids

    def decode(self, ids: list[int]) -> str:
        """Return the text of a completion, up to the end of its turn, without special tokens."""
        return self.tokenizer.decode(self._up_to_end(ids), skip_special_tokens=True)

    def digest(self) -> str:
        """Compute the SHA-256 of all that turns conversations into ids: the tokenizer's files and the template."""
        if self._source is None:
            tokenizer = hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()
        else:
            files = [self._source / name for name in TOKENIZER_FILES]
            tokenizer = digests.of_files([file for file in files if file.is_file()], self._source)
        return hashlib.sha256(f"{tokenizer} {self._override or ''}".encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer's files into a weights folder, with `chat_template` if `load_renderer` got one."""
        folder = Path(folder)
        if self._source is None:
            save_tokenizer(folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            for name in TOKENIZER_FILES:
                if (self._source / name).is_file():
                    shutil.copyfile(self._source / name, folder / name)
        if self._override is not None:
            # Every version of transformers reads it here, but lets a chat_template.jinja go first.
            (folder / "chat_template.jinja").unlink(missing_ok=True)
            config = read_json(folder, "tokenizer_config.json") | {"chat_template": self._override}
            write_json(folder / "tokenizer_config.json", config)

    def _up_to_end(self, ids: list[int]) -> list[int]:
        return ids[: next((i for i, token in enumerate(ids) if token in self.stop_ids), len(ids))]

    def _decode_keeping(self, ids: list[int], tokens: Sequence[str]) -> str:
        special = {self.tokenizer.token_to_id(token): token for token in tokens} if tokens else {}
        parts, start = [], 0
        ids = self._up_to_end(ids)
        for i, token in enumerate(ids):
            if token in special:
                parts += [self.tokenizer.decode(ids[start:i], skip_special_tokens=True), special[token]]
                start = i + 1
        return "".join([*parts, self.tokenizer.decode(ids[start:], skip_special_tokens=True)])

    def _find_end_of_turn(self, stop_ids: tuple[int, ...]) -> int:
        """Return the id that the template writes after the assistant's text; without one, the first of `stop_ids`."""
        ids = self._rendering.continuation_ids([PROBED], {"role": "assistant", "content": PROBE})
        added = self.tokenizer.get_added_tokens_decoder()
        special = [token for token in ids if token in stop_ids or (token in added and added[token].special)]
        if special:
            return special[-1]
        if stop_ids:
            return stop_ids[0]
        raise UserError(
            "neither the chat template nor the model's files name a token that ends a turn: "
            "set eos_token in tokenizer_config.json, or set model.chat_template to a template that writes one"
        )

    def _find_opened(self) -> str:
        prompt = self.tokenizer.decode(self.prompt_ids([PROBED]), skip_special_tokens=False)
        generation = prompt[prompt.rfind(PROBE) + len(PROBE) :]
        start = generation.rfind(THINK)
        return "" if start < 0 or END_THINK in generation[start:] else generation[start:]


def load_renderer(
    name_or_folder: str | Path, chat_template: str | None = None, special_tokens: bool = False
) -> ChatRenderer:
    """Load the renderer of a model: a folder, a hub id or `hone/tiny`.

    `chat_template` (a file, or Jinja text) replaces the model's template. If `special_tokens` is true, special tokens
    in messages are encoded as tokens, otherwise as text.
    """
    name = str(name_or_folder)
    override = None if chat_template is None else read_override(chat_template)
    if name == TINY:
        tokenizer, stop_ids, named = build_tiny_tokenizer(), (IM_END_ID, ENDOFTEXT_ID), {"eos_token": IM_END}
        rendering = _by_template(tokenizer, override or CHAT_TEMPLATE, named, stop_ids, special_tokens)
        return ChatRenderer(tokenizer, rendering, stop_ids, None, override)
    from_hub = is_hub_id(name)
    folder = resolve_model(name)
    tokenizer = load_tokenizer(folder)
    stop_ids = _stop_ids(folder, tokenizer)
    special = [] if special_tokens else special_tokens_of(tokenizer, stop_ids)
    rendering = named_rendering(name, TextEncoder(tokenizer, special)) if from_hub and override is None else None
    if rendering is None:
        template = override or find_template(folder)
        if template is None:
            raise UserError(f"{name} has no chat template: set model.chat_template to a file, or to the Jinja text")
        rendering = _by_template(tokenizer, template, named_tokens(folder), stop_ids, special_tokens)
    return ChatRenderer(tokenizer, rendering, stop_ids, folder, override)


def _by_template(
    tokenizer: Tokenizer, template: str, named: dict[str, str], stop_ids: tuple[int, ...], special_tokens: bool
) -> TemplateRendering:
    """Return the rendering by a template. Renders an example to find special tokens that only the template reveals."""
    rendering = TemplateRendering(TextEncoder(tokenizer, []), template, named)
    if not special_tokens:
        written, turn = "", {"role": "assistant", "content": PROBE}
        with suppress(UserError):  # the template refuses it
            written = rendering.text([PROBED, turn, PROBED], True)
        rendering.encoder = TextEncoder(tokenizer, special_tokens_of(tokenizer, stop_ids, written))
    return rendering


def load_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(
            f"{folder} has no tokenizer.json: make one with transformers, by "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path} cannot be read ({error}): restore it from the model's source") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _stop_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        eos = read_json(folder, name).get("eos_token_id")
        ids += eos if isinstance(eos, list) else [] if eos is None else [eos]
    eos_id = tokenizer.token_to_id(named_tokens(folder).get("eos_token", ""))
    return tuple(dict.fromkeys(ids if eos_id is None else [*ids, eos_id]))


def _called(call: dict[str, Any]) -> Any:
    function = with_objects(call).get("function") or {}
    return function.get("name"), function.get("arguments")
