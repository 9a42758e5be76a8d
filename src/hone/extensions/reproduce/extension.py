"""`hone replay`, `verify`, `diff` and `regrade`: retrain, check, compare and regrade recorded runs."""

from hone.extension import Command, Watch

COMMANDS = {
    "replay": Command("retrain a run from its recorded rollouts", "ReplayConfig", "replay.run", __name__),
    "verify": Command("check a run's files, and repeat some steps", "VerifyConfig", "verify.run", __name__),
    "diff": Command("find where two runs first differ", "DiffConfig", "diff.run", __name__),
    "regrade": Command("grade a run's completions with another grader", "RegradeConfig", "regrade.run", __name__),
}
OBSERVERS = {"reward check": Watch(60, "reward_check.observer", __name__)}
