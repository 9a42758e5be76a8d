"""Tools: what do two things cost? `stateful` adds a till, whose content the model does not see."""

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "bread": 5, "cheese": 8, "dates": 6}


def price(item: str) -> int:
    """Look up a price.

    Args:
        item: The thing to buy.
    """
    return PRICES[item]


def pay(amount: int, till: list) -> str:
    """Pay an amount.

    Args:
        amount: What to pay.
        till: The till.
    """
    till.append(amount)
    return f"{len(till)} paid"


class Till(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(pay, args_to_skip=["till"])

    async def setup_state(self, state):
        state["till"] = []

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "till": state["till"]} if tool_name == "pay" else tool_args


def right(completion, answer) -> float:
    return float(completion[-1]["content"] == answer)


async def paid(state) -> float:
    return float(sum(state.get("till", [])))


def load_environment(stateful: bool = False):
    pairs = [(a, b) for a in PRICES for b in PRICES if a < b]
    rows = [{"question": f"What do {a} and {b} cost?", "answer": str(PRICES[a] + PRICES[b])} for a, b in pairs]
    rubric = vf.Rubric(funcs=[right, paid], weights=[1.0, 0.1])
    kind = Till if stateful else vf.ToolEnv
    return kind(tools=[price], max_turns=4, dataset=Dataset.from_list(rows), rubric=rubric)
