"""`hone trainer` and `hone orchestrator`."""
