"""A task whose completions are right by chance, as often as an example's answer says: 0 to 4 times in four."""

TASK = """
import zlib

from hone.environments import Rubric, SingleTurnEnv, inline


@inline
def by_chance(completion, answer):
    return float(zlib.crc32(str(completion).encode()) % 4 < int(answer))


def load_environment(word="question"):
    rows = [{"question": f"{word} {i}", "answer": str(i % 5)} for i in range(10)]
    return SingleTurnEnv(rubric=Rubric([by_chance]), dataset=rows, eval_dataset=[{"question": "q", "answer": "1"}])
"""
