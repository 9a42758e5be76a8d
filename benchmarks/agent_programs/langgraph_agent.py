"""LangGraph: its ready-made agent, over LangChain's client."""

import json
import sys

from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


example = json.load(sys.stdin)
agent = create_react_agent(ChatOpenAI(model="policy"), [add])
answer = str(agent.invoke({"messages": example["prompt"]})["messages"][-1].content)
print(json.dumps({"correct": float(example["answer"] in answer), "letters": len(answer) / 100}))
