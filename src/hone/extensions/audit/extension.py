"""`hone audit`: finds a broken reward, or chat template, before a run."""

from hone.extension import Command, Key, Watch

COMMANDS = {"audit": Command("find a broken reward or chat template", "AuditConfig", "run", __name__)}
OBSERVERS = {"audit": Watch(40, "preflight.observer", __name__)}
KEYS = {
    "rl.audit": Key(
        "bool",
        True,
        "Audit the task's reward before step 0 (a short `hone audit`), and don't start if it fails.",
        __name__,
        {"decides": "nothing"},
    )
}
