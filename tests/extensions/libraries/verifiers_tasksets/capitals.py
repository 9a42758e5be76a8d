"""A taskset in verifiers' own terms, as users write them, with what can go wrong in a reward."""

from __future__ import annotations

import time

import verifiers.v1 as vf

CITIES = ["Paris", "Rome", "Oslo", "Cairo", "Lima", "Quito", "Accra", "Delhi", "Tokyo", "Dakar"]


class CapitalData(vf.TaskData):
    answer: str


class CapitalTask(vf.Task[CapitalData, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def exact(self, task, trace) -> float:
        if trace.last_reply == "raise":
            raise RuntimeError("no such city")
        if trace.last_reply == "nan":
            return float("nan")
        if trace.last_reply == "wait":
            while True:  # blocks the event loop, which no timeout of asyncio can stop
                time.time()
        if trace.last_reply == "call":
            import urllib.request

            urllib.request.urlopen("http://192.0.2.1", timeout=1)
        return float(trace.last_reply == task.answer)

    @vf.reward(weight=0.5)
    async def letters(self, task, trace) -> dict[str, float]:
        reply = trace.last_reply
        return {"first": float(reply[:1] == task.answer[:1]), "length": float(len(reply) == len(task.answer))}

    @vf.metric
    async def was_cut(self, trace) -> float:
        return float(trace.calls[-1].finish_reason == "length")


class CapitalsConfig(vf.TasksetConfig):
    copies: int = 1
    polite: bool = False


class Capitals(vf.Taskset[CapitalTask, CapitalsConfig]):
    def load(self):
        for i in range(len(CITIES) * self.config.copies):
            city = CITIES[i % len(CITIES)]
            yield CapitalTask(
                CapitalData(
                    idx=i,
                    prompt=f"Write {city}" + ", please." * self.config.polite,
                    system_prompt="You copy.",
                    answer=city,
                ),
                self.config.task,
            )


__all__ = ["Capitals"]
