"""Calls of a task's tools with made-up arguments, as often as the task allows, and nothing made of their answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hone.audit.canary import IN_TOOL, payload
from hone.audit.playing import Script
from hone.environments import Environment, MultiTurnEnv
from hone.errors import UserError
from hone.types import Message

_VALUES: dict[str, Any] = {"string": "1 + 1", "integer": 7, "number": 7.5, "boolean": True, "array": [], "null": None}


def made_up(schema: dict[str, Any]) -> Any:
    """A value that a JSON schema allows: a default, the first option, or something small of its type."""
    if "default" in schema:
        return schema["default"]
    if schema.get("enum"):
        return schema["enum"][0]
    for options in ("anyOf", "oneOf"):
        if schema.get(options):
            return made_up(schema[options][0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        required = schema.get("required", [])
        return {name: made_up(part) for name, part in schema.get("properties", {}).items() if name in required}
    if kind == "array" and schema.get("minItems"):
        return [made_up(schema.get("items", {}))] * schema["minItems"]
    return _VALUES.get(kind, "1 + 1")


def calls_without_use(env: Environment, last: str | None) -> Sequence[Script]:
    """For each tool, a conversation that calls it at every turn; with `last`, the last turn says that instead."""
    if not isinstance(env, MultiTurnEnv) or not env.tool_schemas or not _runs(env):
        return []
    played = []
    for schema in env.tool_schemas:
        call = [_message(schema, turn) for turn in range(env.max_turns)]
        played.append(call if last is None else [*call[:-1], {"role": "assistant", "content": last}])
    return played


def calls_with_code(env: Environment, folder: Path) -> Sequence[Script]:
    """For each tool that takes text, calls of it with code in place of each text: what runs it must be a sandbox."""
    if not isinstance(env, MultiTurnEnv) or not _runs(env):
        return []
    played = []
    for schema in env.tool_schemas or []:
        parts = schema.get("function", schema).get("parameters", {}).get("properties", {})
        texts = [name for name, part in parts.items() if part.get("type") == "string"]
        codes = [payload("code-in-tool", folder, code) for code in IN_TOOL] if texts else []
        played += [[_message(schema, 0, dict.fromkeys(texts, code))] for code in codes]
    return played


def calls_in_text(env: Environment) -> str | None:
    """Calls written as text, for a task of one turn."""
    if isinstance(env, MultiTurnEnv):
        return None
    call = json.dumps({"name": "python", "arguments": {"code": "print('Hello')"}})
    return "\n".join([f"<tool_call>\n{call}\n</tool_call>"] * 5)


def _message(schema: dict[str, Any], turn: int, given: Mapping[str, Any] = MappingProxyType({})) -> Message:
    """A message that calls a tool with made-up arguments, but for those that are given."""
    function = schema.get("function", schema)
    arguments = json.dumps(made_up({"type": "object", **function.get("parameters", {})}) | dict(given))
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _runs(env: Environment) -> bool:
    """Whether the tools work on this machine; of what needs a sandbox there may be none."""
    try:
        env.check_rollouts()
    except UserError:
        return False
    return True
