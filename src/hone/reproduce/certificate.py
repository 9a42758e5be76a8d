"""`<run>.verify.json`: what a verification found, beside the run and never in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.errors import UserError
from hone.reproduce.compare import QUANTITIES
from hone.reproduce.verify import StepCheck, Verification
from hone.runs import Run, provenance
from hone.runs.certificates import certificate_path, pinned
from hone.runs.files import write_json

FORMAT = "hone-verify-1"


def write_certificate(run: Run, verification: Verification, machine: Mapping[str, Any]) -> Path:
    """Writes it, replacing an earlier one, and returns its path. UserError where the folder can't be written."""
    path = certificate_path(run.path)
    try:
        write_json(path, certificate(run, verification, machine))
    except OSError as error:
        raise UserError(
            f"the certificate {path} can't be written ({error.strerror}): copy the run to a folder that can be"
        ) from None
    return path


def certificate(run: Run, verification: Verification, machine: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate as a record. Of logs that come from clocks it says nothing."""
    info = run.info
    about = {name: info.get(name) for name in ("id", "kind", "status", "seed", "exact", "inexact")}
    about["numerics"] = provenance.numerics(info)
    return {
        "format": FORMAT,
        "verdict": verification.verdict,
        "date": provenance.now(),
        "run": about,
        "sha256": pinned(run.path),
        "files": verification.checked.counts,
        "damaged": [vars(damage) for damage in verification.checked.damages],
        "quantities": list(QUANTITIES),
        "steps": [_step(check) for check in verification.steps],
        "evaluation": verification.evaluation and _step(verification.evaluation),
        "choice": {"seed": verification.seed, "candidates": _span(verification.candidates)},
        "incomparable": verification.reasons,
        "notes": verification.notes,
        "machine": dict(machine),
    }


def _step(check: StepCheck) -> dict[str, Any]:
    record: dict[str, Any] = {"step": check.step, "from": check.start, "replayed": check.replayed}
    record |= {"equal": check.difference is None, "weights": check.fingerprint}
    if check.difference is not None:
        record |= {"difference": check.difference.as_dict() | {"sentence": check.sentence()}}
    return record


def _span(steps: list[int]) -> dict[str, int] | None:
    return {"first": steps[0], "last": steps[-1], "count": len(steps)} if steps else None
