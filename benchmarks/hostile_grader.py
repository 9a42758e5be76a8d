"""A task for `grading.py`, whose grader takes five milliseconds, or goes wrong where the completion says so."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from pathlib import Path

from hone.environments import Parser, Rubric, SingleTurnEnv
from hone.types import Message

SECONDS = 0.005


def work(completion: list[Message], info: dict) -> float:
    """A number of the completion, after some work."""
    text = completion[-1]["content"]
    if text == "hang":
        while True:
            pass
    if text == "crash":
        ctypes.string_at(0)
    if text == "fork":
        child = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
        (Path(info["folder"]) / str(child.pid)).touch()
    if text == "allocate":
        bytearray(8 * 2**30)
    if text == "print":
        for _ in range(1024):
            sys.stdout.write("x" * 2**20)
            os.write(2, b"")
    end = time.process_time() + SECONDS
    while time.process_time() < end:
        pass
    return len(text) / 100


def load_environment() -> SingleTurnEnv:
    return SingleTurnEnv(parser=Parser(), rubric=Rubric([work]), dataset=[{"question": "?"}])
