"""pydantic-ai: an agent with a tool."""

import json
import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy", instructions="You add numbers.")


@agent.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


example = json.load(sys.stdin)
answer = str(agent.run_sync(example["prompt"][-1]["content"]).output)
print(json.dumps({"correct": float(example["answer"] in answer), "letters": len(answer) / 100}))
