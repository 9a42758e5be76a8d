"""`hone orchestrator`: drives a run in mode split, and says what it does; in any order with the other roles.

hone orchestrator @ orch.toml --output-dir outputs
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from hone.commands.detach import COMMAND as LAUNCHED
from hone.commands.forecast import forecast
from hone.commands.preflight import Audit
from hone.commands.training import last_lines, observers
from hone.composition.split import SplitRL
from hone.config.rl import RLConfig


def run(config: RLConfig) -> int:
    """Drives the run to its end; returns the exit code: 0, or 130/143 when a signal ended the run (saved then)."""
    watching = observers(config, "rl", introduction, Audit())
    with SplitRL(config, observers=watching, command=command_line(), launched=LAUNCHED in os.environ) as rl:
        rl.train()
    if rl.ending is not None:
        print(last_lines(rl.config, rl.run, rl.version, rl.ending, "", config.orchestrator.env))
    return rl.exit_code


def command_line() -> list[str]:
    """The command that the user typed: that of the launcher, if there is one."""
    return json.loads(os.environ[LAUNCHED]) if os.environ.get(LAUNCHED) else sys.argv


def introduction(rl: SplitRL) -> Iterator[str]:
    """What is about to run, and where, and the plan in short."""
    config, orch, hello = rl.config, rl.config.orchestrator, rl.hello
    prompts, ranks = orch.batch_size // orch.rollouts_per_example, hello.ranks
    yield (
        f"RL: {config.model.name} ({hello.parameters / 1e6:.2f}M parameters, {config.precision}) on {orch.env.id}\n"
        f"    {config.max_steps} steps x {prompts} prompts x {orch.rollouts_per_example} completions = "
        f"{config.max_steps * orch.batch_size:,} completions, into {config.output_dir}\n"
        f"    trainer: {ranks} rank{'s' if ranks > 1 else ''} on {hello.device} of {hello.host}; sampler: "
        f"{rl.server.name}, at most {orch.max_async_level} versions behind"
    )
    yield from forecast(config, rl.decoder, rl.renderer, rl.env, alone=False)
