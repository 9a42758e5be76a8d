"""`hone.grading.Sandbox`, which runs code of a model, and a task with a Python tool."""

EXPORTS = {f"grading.{name}": "hone.extensions.sandbox.sandbox" for name in ("Limits", "Ran", "Sandbox")}
TASKS = {"math-python": "hone.extensions.sandbox.math_python"}
