"""adding: add two numbers with a tool. A task of several turns with a tool, for tests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from hone.environments import MultiTurnEnv, Rubric
from hone.types import Example, Message

CALL = {"name": "add", "arguments": {"a": 1, "b": 2}}
SAID = f"I add.\n<tool_call>\n{json.dumps(CALL)}\n</tool_call>"
"""What the model learns to say."""
SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "The sum.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
"""The tool, in OpenAI's form."""


def correctness(completion: list[Message], answer: str) -> float:
    """1 if a tool has told the sum."""
    return float(any(message["role"] == "tool" and message["content"] == answer for message in completion))


def calls(state: dict[str, Any]) -> float:
    return float(state["calls"])


class Adding(MultiTurnEnv):
    tool_schemas = [SCHEMA]  # noqa: RUF012

    def initial_state(self, example: Example, seed: int) -> dict[str, Any]:
        return super().initial_state(example, seed) | {"calls": 0}

    def env_response(self, messages: list[Message], state: dict[str, Any]) -> list[Message]:
        shown = []
        for call in messages[-1].get("tool_calls", []):
            state["calls"] += 1
            try:
                numbers = json.loads(call["function"]["arguments"])
                content = str(numbers["a"] + numbers["b"])
            except (ValueError, KeyError, TypeError) as error:
                content = f"error: {error!r}"
            shown.append({"role": "tool", "name": "add", "tool_call_id": call["id"], "content": content})
        return shown

    def demonstrate(self, example: Example, rng: np.random.Generator) -> str:
        return SAID


def load_environment(max_turns: int = 2, spelled: bool = False) -> Adding:
    """`spelled`: the prompt says what hone/tiny's template makes of the tool, and there is none."""
    prompt: list[Message] = [{"role": "user", "content": "1+2"}]
    rows = [{"prompt": [*_spelled(), *prompt] if spelled else prompt, "answer": "3"}] * 4
    rubric = Rubric([correctness, calls], [1.0, 0.0])
    env = Adding(rubric=rubric, dataset=rows, eval_dataset=rows, id="adding", max_turns=max_turns)
    if spelled:
        env.tool_schemas = None
    return env


def _spelled() -> list[Message]:
    from hone.model.chat import load_renderer

    renderer = load_renderer("hone/tiny")
    text = renderer.tokenizer.decode(renderer.prompt_ids([{"role": "user", "content": ""}], [SCHEMA]), False)
    return [{"role": "system", "content": text.split("<|im_start|>system\n")[1].split("<|im_end|>")[0]}]
