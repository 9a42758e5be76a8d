"""A tool of the whole taskset, without state, behind MCP: the reward is 1 if the reply has the word that it gives."""

import verifiers.v1 as vf

WORDS = {"red": "alder", "green": "beech", "blue": "cedar"}


class Words(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = "words"

    @vf.tool
    def find(self, color: str) -> str:
        """Return the word of a color."""
        return WORDS.get(color, "none")


class Data(vf.TaskData):
    answer: str


class Look(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward
    async def found(self, trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))


class Config(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class Tasks(vf.Taskset[Look, Config]):
    @classmethod
    def toolsets(cls, config):
        return [Words(config.tools)]

    def load(self):
        for i, (color, word) in enumerate(WORDS.items()):
            yield Look(Data(idx=i, prompt=f"Which word has {color}?", answer=word), self.config.task)


__all__ = ["Tasks"]

if __name__ == "__main__":
    Words.run()
