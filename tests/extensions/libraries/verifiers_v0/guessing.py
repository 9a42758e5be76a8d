"""Several turns: find a number; the environment answers by the state, and ends when it is found.

A guess "raise" is a fault of the environment, and "stop" an error that verifiers knows.
"""

import verifiers as vf
from datasets import Dataset


class Guessing(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["low"], state["high"] = 0, 100

    async def env_response(self, messages, state, **kwargs):
        guess = messages[-1]["content"].strip()
        if guess == "raise":
            raise RuntimeError("a fault of the environment")
        if guess == "stop":
            raise vf.ToolCallError from ValueError("a fault of a tool")
        if not guess.isdigit():
            return [{"role": "user", "content": "A number, please."}]
        number, wanted = int(guess), int(state["answer"])
        if number == wanted:
            state["final_env_response"] = [{"role": "user", "content": "Found."}]
            return []
        side = "high" if number > wanted else "low"
        state[side] = number
        return [{"role": "user", "content": f"Too {side}. Between {state['low']} and {state['high']}?"}]


async def found(state) -> float:
    return float(state["final_env_response"] is not None)


async def narrowed(state) -> float:
    return 1 - (state["high"] - state["low"]) / 100


def load_environment(max_turns: int = 5):
    rows = [
        {"question": f"Which number from 0 to 100 is number {n} of my list?", "answer": str(n)} for n in range(40, 60)
    ]
    rubric = vf.Rubric(funcs=[found, narrowed], weights=[1.0, 0.2])
    return Guessing(dataset=Dataset.from_list(rows), max_turns=max_turns, rubric=rubric)
