"""`hone orchestrator`: the driver of a run in mode split."""

from __future__ import annotations

import json
import os
import sys

from hone.commands.detach import COMMAND
from hone.commands.training import attached, train
from hone.config.rl import RLConfig
from hone.extensions.split.several import SeveralProcesses
from hone.loops.rl import RL


def run(config: RLConfig) -> int:
    """Drive a run in mode split to its end; return the exit code. run.json gets the command that the user typed."""
    typed = os.environ.get(COMMAND)
    rl = RL(config, observers=attached(config, "rl"), processes=SeveralProcesses(launched=bool(typed)))
    rl.command = json.loads(typed) if typed else sys.argv
    return train(rl).exit_code
