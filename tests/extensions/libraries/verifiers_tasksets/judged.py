"""A judge at a URL that the user names gives the reward; its tokens are counted."""

import verifiers.v1 as vf


class Verdict(vf.Judge[float]):
    prompt = "Rate {response} as an answer to {question}, from 0 to 1."

    def parse(self, response) -> float:
        return float(response.text)


class Config(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig()


class Judged(vf.Task[vf.TaskData, vf.State, Config]):
    async def finalize(self, trace, runtime):
        """Makes verifiers run this task."""

    @vf.reward
    async def rated(self, trace) -> float:
        judge = Verdict(self.config.judge)
        found = await judge.evaluate(
            trace=trace, question=self.data.prompt_text, response=trace.last_reply or "", answer=""
        )
        return float(found.parsed)


class TasksConfig(vf.TasksetConfig):
    task: Config = Config()


class Tasks(vf.Taskset[Judged, TasksConfig]):
    def load(self):
        for i in range(10):
            yield Judged(vf.TaskData(idx=i, prompt=f"Write {i}"), self.config.task)


__all__ = ["Tasks"]
