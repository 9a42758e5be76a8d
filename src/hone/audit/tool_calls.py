"""Calls of a task's tools with made-up arguments, as often as the task allows, and nothing made of their answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hone.audit.canary import IN_TOOL, payload
from hone.audit.playing import Script
from hone.audit.trajectories import MOST_TURNS, call_message, made_up
from hone.environments import Environment, MultiTurnEnv
from hone.errors import UserError


def calls_without_use(env: Environment, last: str | None) -> Sequence[Script]:
    """For each tool, a conversation that calls it at every turn; with `last`, the last turn says that instead."""
    if not isinstance(env, MultiTurnEnv) or not _runs(env):
        return []
    played = []
    for tool in _tools(env):
        call = call_message((tool["name"], made_up(tool.get("parameters") or {})))
        turns = [call] * min(env.max_turns, MOST_TURNS)
        played.append(turns if last is None else [*turns[:-1], {"role": "assistant", "content": last}])
    return played


def calls_with_code(env: Environment, folder: Path) -> Sequence[Script]:
    """For each tool that takes text, calls of it with code in place of each text: what runs it must be a sandbox."""
    if not isinstance(env, MultiTurnEnv) or not _runs(env):
        return []
    played = []
    for tool in _tools(env):
        schema = tool.get("parameters") or {}
        texts = [name for name, part in schema.get("properties", {}).items() if _is_text(part)]
        codes = [payload("code-in-tool", folder, code) for code in IN_TOOL] if texts else []
        played += [[call_message((tool["name"], made_up(schema) | dict.fromkeys(texts, code)))] for code in codes]
    return played


def _is_text(part: dict) -> bool:
    """Whether an argument of this schema may be any text: `str`, or `str | None`."""
    return part.get("type") == "string" or any(_is_text(one) for one in part.get("anyOf") or [])


def calls_in_text(env: Environment) -> str | None:
    """Calls written as text, for a task of one turn."""
    if isinstance(env, MultiTurnEnv):
        return None
    call = json.dumps({"name": "python", "arguments": {"code": "print('Hello')"}})
    return "\n".join([f"<tool_call>\n{call}\n</tool_call>"] * 5)


def _tools(env: Environment) -> list[dict]:
    return [schema["function"] for schema in env.tool_schemas or []]


def _runs(env: Environment) -> bool:
    """Whether the tools work on this machine; of what needs a sandbox there may be none."""
    try:
        env.check_rollouts()
    except UserError:
        return False
    return True
