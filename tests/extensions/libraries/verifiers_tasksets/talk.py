"""A scripted user who opens the conversation and answers once; the reward is the share of vowels in the replies.

A reply "sleep" makes the reward block verifiers' process.
"""

import time

import verifiers.v1 as vf


class Data(vf.TaskData):
    says: list[str]


class Talk(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def vowels(self, trace) -> float:
        if trace.last_reply == "sleep":
            time.sleep(1000)
        replies = [message.content or "" for message in trace.assistant_messages]
        return sum(sum(letter in "aeiouy" for letter in reply) / max(1, len(reply)) for reply in replies) / len(replies)


class TalkEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            for words in task.data.says:
                if (await talk.turn(words)).terminated:
                    break


class Tasks(vf.Taskset[Talk, vf.TasksetConfig]):
    def load(self):
        for i in range(10):
            yield Talk(Data(idx=i, prompt=None, system_prompt="You talk.", says=[f"Hello {i}", "And then?"]))


__all__ = ["TalkEnv", "Tasks"]
