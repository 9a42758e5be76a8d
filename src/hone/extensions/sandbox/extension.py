"""Provides `hone.grading.Sandbox` for a model's code, and the task `math-python`."""

EXPORTS = {f"grading.{name}": "hone.extensions.sandbox.sandbox" for name in ("Limits", "Ran", "Sandbox")}
TASKS = {"math-python": "hone.extensions.sandbox.math_python"}
