"""`hone.grading.Sandbox`: runs code of a model."""

EXPORTS = {f"grading.{name}": "hone.extensions.sandbox.sandbox" for name in ("Limits", "Ran", "Sandbox")}
