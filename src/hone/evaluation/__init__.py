"""Evaluation on held-out examples: `loop` samples and grades, `result` has the outcome, `intervals` its uncertainty."""
