"""`hone audit`: finds a broken reward, or chat template, before a run."""

from hone.extension import Command

COMMANDS = {"audit": Command("find a broken reward, or chat template, beforehand", "AuditConfig", "run", __name__)}
