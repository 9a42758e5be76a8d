"""Policies on held-out examples: `loop` samples and grades, `result` is what came out, `intervals` how sure that is."""
