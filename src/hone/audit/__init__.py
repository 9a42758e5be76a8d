"""Linting a task before it costs money: its reward, its prompts, a model's chat template."""

from hone.audit.environment import audit_environment
from hone.audit.report import Check, Evidence, Finding, Report, Verdict
from hone.audit.template import audit_template

__all__ = ["Check", "Evidence", "Finding", "Report", "Verdict", "audit_environment", "audit_template"]
