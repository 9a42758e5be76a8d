"""openai-agents: an agent with a tool."""

import asyncio
import json
import sys

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled

set_default_openai_api("chat_completions")
set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


example = json.load(sys.stdin)
agent = Agent(name="Assistant", instructions="You add numbers.", tools=[add], model="policy")
result = asyncio.run(Runner.run(agent, example["prompt"][-1]["content"], max_turns=3))
print(
    json.dumps({"correct": float(example["answer"] in result.final_output), "letters": len(result.final_output) / 100})
)
