"""A reward of a group: three siblings of an episode share the share of their letters that all three use."""

import asyncio

import verifiers.v1 as vf


class Sing(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """A task without a reward of its own."""


class ChorusEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(agents.agent.run(task))

    async def finalize(self, task, episode):
        used = [set(trace.last_reply or "") for trace in episode.traces]
        together = len(set.intersection(*used)) / max(1, len(set.union(*used)))
        for trace in episode.traces:
            trace.record_reward("together", together)


class Tasks(vf.Taskset[Sing, vf.TasksetConfig]):
    def load(self):
        for i in range(10):
            yield Sing(vf.TaskData(idx=i, prompt=f"Sing {i}"))


__all__ = ["ChorusEnv", "Tasks"]
