"""logs/<process>.log: Python's warnings and the warnings that libraries log, off the terminal."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

_BYTES = 2**20


class LogFile:
    """Sends warnings and log records of level WARNING and up to a file of at most 1 MiB (and one older one)."""

    def __init__(self, path: Path):
        self.path = path
        self._count = 0
        self._handler = RotatingFileHandler(path, maxBytes=_BYTES, backupCount=1, delay=True, encoding="utf-8")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._handler.setLevel(logging.WARNING)
        self._handler.addFilter(self._counted)
        logging.getLogger().addHandler(self._handler)
        logging.captureWarnings(True)

    def _counted(self, _record: logging.LogRecord) -> bool:
        self._count += 1
        return True

    def close(self) -> int:
        """Detach, and return how many records were written."""
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(self._handler)
        self._handler.close()
        return self._count
