"""`hone rl` in mode split, and its roles `hone trainer` and `hone orchestrator`."""

from hone.extension import Command, Function

REQUIRES = ("server",)
COMMANDS = {
    "trainer": Command("the trainer's part of `rl` in several processes", "TrainerRole", "trainer.run", __name__),
    "orchestrator": Command(
        "the driver of `rl` in several processes", "OrchestratorRole", "orchestrator.run", __name__
    ),
}
MODES = {"split": Function("launcher.run_split", __name__)}
