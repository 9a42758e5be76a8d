"""A tool with a state of its rollout, behind MCP: the reward is how often it was called, of three times."""

import verifiers.v1 as vf


class Count(vf.State):
    calls: int = 0


class Counter(vf.Toolset[vf.ToolsetConfig, Count]):
    TOOL_PREFIX = "counter"

    @vf.tool
    def bump(self) -> str:
        """Add one."""
        self.state.calls += 1
        return f"calls={self.state.calls}"


class Config(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class Counting(vf.Task[vf.TaskData, Count, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Counter(config.tools)]

    @vf.reward
    async def counted(self, trace) -> float:
        return min(trace.state.calls, 3) / 3

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class TasksConfig(vf.TasksetConfig):
    task: Config = Config()


class Tasks(vf.Taskset[Counting, TasksConfig]):
    def load(self):
        for i in range(10):
            yield Counting(vf.TaskData(idx=i, prompt=f"Call the tool, please ({i})."), self.config.task)


__all__ = ["Tasks"]

if __name__ == "__main__":
    Counter.run()
