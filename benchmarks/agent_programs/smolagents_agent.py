"""smolagents: its tool calling agent, whose own prompt has thousands of characters."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

sys.stdout, out = sys.stderr, sys.stdout  # it prints what it does


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


example = json.load(sys.stdin)
model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent(tools=[add], model=model, max_steps=2, verbosity_level=0)
answer = str(agent.run(example["prompt"][-1]["content"]))
print(json.dumps({"correct": float(example["answer"] in answer), "letters": len(answer) / 100}), file=out)
