"""Evaluation on held-out examples: `loop` samples and grades, `result` has the averages, `intervals` their intervals."""
