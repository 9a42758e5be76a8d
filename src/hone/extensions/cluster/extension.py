"""`--cluster` of `hone rl` and `hone eval`: trainer ranks, servers and graders on the machines of a Ray cluster."""

from hone.extension import Fields, Function

REQUIRES = ("split", "server")
KEYS = {"rl.cluster": Fields("RLKeys", __name__), "eval.cluster": Fields("EvalKeys", __name__)}
CHOICES = {"rl.mode.cluster": "on machines of a Ray cluster."}
MACHINES = {"cluster": Function("machines.of_config", __name__)}
