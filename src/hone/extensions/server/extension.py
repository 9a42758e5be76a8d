"""`hone inference`: serves a model over the OpenAI protocol."""

from hone.extension import Command

COMMANDS = {"inference": Command("serve a model over the OpenAI protocol", "ServeConfig", "run", __name__)}
