"""Two agents write the same word; only `a` is trained, and its reward needs both."""

import asyncio

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Write(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def short(self, trace) -> float:
        return float(len(trace.last_reply or "") < 20)


class Duet(vf.EnvConfig):
    a: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))
    b: vf.AgentConfig = vf.AgentConfig(harness=vf.HarnessConfig(id="null"))


class DuetEnv(vf.Env[Duet]):
    async def setup(self, agents):
        agents.b.trainable = False

    async def run(self, task, agents):
        await asyncio.gather(agents.a.run(task), agents.b.run(task))

    async def finalize(self, task, episode):
        same = len({trace.last_reply for trace in episode.traces}) == 1
        for trace in episode.traces:
            trace.record_reward("same", float(same))


class Tasks(vf.Taskset[Write, vf.TasksetConfig]):
    def load(self):
        for i in range(10):
            yield Write(Data(idx=i, prompt=f"Write {i}", answer=str(i)))


__all__ = ["DuetEnv", "Tasks"]
