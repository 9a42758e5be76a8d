"""Evaluation on held-out examples: `loop` samples and grades, `result` has averages, `intervals` their uncertainty."""
