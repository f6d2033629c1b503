"""Log lines that a person can read: time, process, level when it isn't plain information, message."""

from __future__ import annotations

import logging
import sys


class _LineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        line = f"{self.formatTime(record, '%H:%M:%S')} {self._process}: {level}{record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process


def set_up_logging(process: str, level: str) -> None:
    """Log to standard error. ``process`` is ``node`` or ``learner``; ``level`` a name of ``logging``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(process))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ftis_node").setLevel(level.upper())
