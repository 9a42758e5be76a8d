"""`hone chat`: talks to a model."""

from hone.extension import Command

COMMANDS = {"chat": Command("talk to a model, or to a run's first and last weights", "ChatConfig", "run", __name__)}
