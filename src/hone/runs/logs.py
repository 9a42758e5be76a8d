"""logs/<process>.log: Python's warnings and log records, off the terminal."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

_BYTES = 2**20


class LogFile:
    """Sends log records of level INFO and up, and Python warnings, to a file of at most 1 MiB (and one older one)."""

    def __init__(self, path: Path):
        self._handler = RotatingFileHandler(path, maxBytes=_BYTES, backupCount=1, delay=True, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handler.setLevel(logging.INFO)
        logging.getLogger().addHandler(self._handler)
        logging.captureWarnings(True)

    def close(self) -> None:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
