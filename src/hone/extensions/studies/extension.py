"""`hone study` and `hone.study`: variants of a run over seeds."""

from hone.extension import Command

REQUIRES = ("viewer",)
COMMANDS = {"study": Command("train variants over seeds, and test differences", "StudyConfig", "run", __name__)}
EXPORTS = {"study": "hone.extensions.studies.study"}
