"""Tasks of other libraries: verifiers and reasoning-gym."""

from hone.extension import Loader

REQUIRES = ("agents",)
LOADERS = {
    "reasoning-gym": Loader("reasoning_gym.load", __name__, names_code=False),
    "verifiers": Loader("verifiers.load", __name__),
}
