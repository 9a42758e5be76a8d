"""Tasks of verifiers v0, by the id `verifiers-v0:ENVIRONMENT`."""

from hone.extension import Loader

LOADERS = {"verifiers-v0": Loader("loading.load", __name__)}
