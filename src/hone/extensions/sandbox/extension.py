"""`hone.grading.Sandbox` for code that a model wrote, and a task with a Python tool."""

EXPORTS = {f"grading.{name}": "hone.extensions.sandbox.sandbox" for name in ("Limits", "Ran", "Sandbox")}
TASKS = {"math-python": "hone.extensions.sandbox.math_python"}
