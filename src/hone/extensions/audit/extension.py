"""`hone audit`: finds a broken reward, or chat template, before a run."""

from hone.extension import Command, Watch

COMMANDS = {"audit": Command("find a broken reward, or chat template, beforehand", "AuditConfig", "run", __name__)}
OBSERVERS = {"audit": Watch(40, "preflight.observer", __name__)}
