"""Evaluating a policy on an environment's held-out examples."""

from hone.evaluation.loop import evaluate
from hone.evaluation.result import EvalResult, EvalSample

__all__ = ["EvalResult", "EvalSample", "evaluate"]
