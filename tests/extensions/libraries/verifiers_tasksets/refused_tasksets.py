"""Tasksets that hone refuses, each for one reason. `make(name)` is the module `refused_NAME` of these."""

from __future__ import annotations

from pathlib import Path

HEAD = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str = ""
"""
PLAIN = """
class Task(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def exact(self, trace) -> float:
        return 1.0
"""
SET = """
class Tasks(vf.Taskset[Task, vf.TasksetConfig]):
    def load(self):
        yield Task(Data(idx=0, {data}), self.config.task)
        yield Task(Data(idx=1, prompt="2"), self.config.task)

__all__ = ["Tasks"]
"""


def _task(body: str) -> str:
    return PLAIN + "".join(f"    {line}\n" for line in body.splitlines())


CASES = {
    "container": (HEAD + _task("NEEDS_CONTAINER = True"), 'prompt="1"', "need a container"),
    "agent_user": (HEAD + PLAIN, 'prompt="1", agent_user="nobody"', "its own agent_user, which takes a container"),
    "image": (
        HEAD + PLAIN,
        'prompt=[vf.UserMessage(content=[{"type": "image_url", "image_url": {"url": "data:,"}}])]',
        "more than text",
    ),
    "no_reward": (
        HEAD + "class Task(vf.Task[Data, vf.State, vf.TaskConfig]):\n    pass\n",
        'prompt="1"',
        "no reward function",
    ),
}


def write(folder: Path, name: str) -> str:
    """Writes the taskset `name` of CASES into `folder`; its id."""
    text, data, _ = CASES[name]
    (folder / f"refused_{name}.py").write_text(text + SET.format(data=data))
    return f"refused-{name.replace('_', '-')}"
