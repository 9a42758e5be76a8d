"""Chat templates: finding a model's Jinja template and rendering it the way transformers does, without importing it.

Importing transformers costs seconds; a template and a `tokenizer.json` are all that rendering needs. One difference is
on purpose: a template that asks for today's date is given a fixed one, for a prompt must not depend on the day.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.model.files import read_json
from hone.model.tool_calls import Tool
from hone.types import Message

# What Llama 3's own template falls back to.
FIXED_DATE = datetime.datetime(2024, 7, 26)
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def find_template(folder: Path) -> str | None:
    """The template in a model folder: chat_template.jinja, else the default one in tokenizer_config.json, else None."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = read_json(folder, "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return template or read_json(folder, "chat_template.json").get("chat_template")


def read_override(chat_template: str) -> str:
    """The template that `model.chat_template` names: the text itself if it is Jinja, else the content of that file."""
    if "{{" in chat_template or "{%" in chat_template:
        return chat_template
    path = Path(chat_template)
    if not path.is_file():
        raise UserError(
            f"model.chat_template names {chat_template}, which is not a file: give a file, or the Jinja text"
        )
    return path.read_text(encoding="utf-8")


def special_tokens(folder: Path) -> dict[str, str]:
    """The named special tokens (`bos_token`, `eos_token`, …) that templates may write."""
    found = read_json(folder, "special_tokens_map.json") | read_json(folder, "tokenizer_config.json")
    tokens = {name: found[name] for name in NAMED_TOKENS if found.get(name)}
    return {name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()}


@dataclass(frozen=True)
class CompiledTemplate:
    """`render(messages, add_generation_prompt, tools)` → text; `knows_tools`: the template reads `tools`."""

    render: Callable[[Sequence[Message], bool, Sequence[Tool] | None], str]
    knows_tools: bool


def compile_template(template: str, tokens: dict[str, str]) -> CompiledTemplate:
    """The template, ready to render. Raises UserError for one that can't be parsed.

    The environment is transformers': sandboxed, blocks trimmed, loop controls, `tojson` without HTML escapes,
    `raise_exception`, and `generation` blocks, which only mark.
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

    def render(messages: Sequence[Message], add_generation_prompt: bool, tools: Sequence[Tool] | None = None) -> str:
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
                "change the messages, or give another template with model.chat_template"
            ) from error

    return CompiledTemplate(render, knows_tools)
