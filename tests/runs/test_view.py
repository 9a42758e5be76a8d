"""The files of a run have their names in one module, and a view reads them whatever state the run is in."""

from __future__ import annotations

import ast
from pathlib import Path

from hone.runs import view

SOURCE = Path(view.__file__).parents[1]
WORDS = {view.WEIGHTS, view.CHECKPOINTS, view.ROLLOUTS, view.TOKENS, view.EVALS, view.PROCESS_LOGS, view.SPOOL}
"""Names that are words of other things, too: they stand for a folder where a path ends with one."""
FILES = {*view.NAMES, *view.GIVEN, view.PREVIOUS, view.LOCK, view.LAUNCHER, view.CERTIFICATE} - WORDS
ELSEWHERE = {
    "config/shared.py: weights",  # of a transport
    "studies/running.py: evals",  # of a study
    "viewer/card/files.py: report.html",  # a template
    "environments/kept_source.py: rewards.py",  # how a traceback names a function's file
}


def literals(tree: ast.AST) -> set[str]:
    """Return the names of files of a run that stand in the code as texts, but for keys of the trackers' facts."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value in FILES}
    joined = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    ends = {node.value for node in joined if isinstance(node, ast.Constant) and node.value in WORDS}
    return (texts - {"wandb", "trackio"}) | ends


def test_the_names_of_the_files_stand_in_one_module() -> None:
    files = {path.relative_to(SOURCE).as_posix(): path for path in SOURCE.rglob("*.py")}
    found = {f"{name}: {text}" for name, path in files.items() for text in literals(ast.parse(path.read_bytes()))}
    assert {one for one in found if not one.startswith("runs/view.py")} <= ELSEWHERE
