"""The certificate that `hone verify` leaves beside a run: where it lies, and what of the run it pins.

Reading one needs neither torch nor pyarrow.
"""

from __future__ import annotations

from pathlib import Path

from hone.runs.files import MARKER, sha256
from hone.runs.outputs import CERTIFICATE

_LOGS = ("run.json", "config.toml", "hashes.jsonl", "metrics.jsonl")


def certificate_path(run: Path) -> Path:
    """Where the certificate of the run in this directory lies: beside it, never in it."""
    folder = run.resolve()
    return folder.with_name(folder.name + CERTIFICATE)


def pinned(run: Path) -> dict[str, str]:
    """SHA-256 by name of the files that stand for all that a verification covers.

    hashes.jsonl holds the hashes of rollouts, a completion marker those of the files beside it.
    """
    markers = [path for kind in ("weights", "checkpoints") for path in sorted(run.glob(f"{kind}/step_*/{MARKER}"))]
    files = [run / name for name in _LOGS] + markers
    return {file.relative_to(run).as_posix(): sha256(file) for file in files if file.is_file()}
