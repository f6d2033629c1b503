"""Log lines for people (``text``) or for programs (``json``), with a bound on how many alike there may be.

A line that concerns a round, a peer or a batch carries their ids: ``log.info("…", extra=about(peer=peer))``. In
``json`` they are fields of their own: one object per line with ``time``, ``process``, ``level``, ``logger``,
``message``, and where known ``round``, ``peer``, ``batch``, ``traceback``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
# Libraries rename levels for the whole process, so that ``levelname`` is anything.
_NAMES = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning", logging.ERROR: "error"}
ALIKE_PER_MINUTE = 30
LONGEST_MESSAGE = 4000
LONGEST_TRACEBACK = 200
WINDOW_SECONDS = 60.0

Fields = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class LogSettings:
    """``level`` is one of ``LEVELS``."""

    level: str = "info"
    format: Literal["text", "json"] = "text"


def about(
    *, round_number: int | None = None, peer: bytes | None = None, batch: bytes | None = None
) -> dict[str, Fields]:
    """What a line is about, for ``extra``; ids become hex."""
    fields: Fields = {}
    if round_number is not None:
        fields["round"] = round_number
    if peer is not None:
        fields["peer"] = peer.hex()
    if batch is not None:
        fields["batch"] = batch.hex()
    return {"about": fields}


class _TextFormatter(logging.Formatter):
    """``2026-12-02 18:20:31 learner: WARNING message``; what is plain information has no level."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{_level(record).upper()} "
        line = f"{self.formatTime(record, '%Y-%m-%d %H:%M:%S')} {self._process}: {level}{_message(record)}"
        # Indented, so that nothing in an error's text can pass for a line of the log.
        return "\n    ".join([line, *_traceback(self.formatException(record.exc_info))]) if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, int | str] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "process": self._process,
            "level": _level(record),
            "logger": record.name,
            "message": _message(record),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            line["traceback"] = "\n".join(_traceback(self.formatException(record.exc_info)))
        return json.dumps(line)


def _level(record: logging.LogRecord) -> str:
    return _NAMES.get(record.levelno, "critical" if record.levelno > logging.ERROR else "debug")


def _message(record: logging.LogRecord) -> str:
    """One line, of bounded length: it may hold what a peer wrote."""
    text = record.getMessage()
    left_out = getattr(record, "left_out", 0)
    alike = f" ({left_out} lines like this were left out)" if left_out else ""
    return _harmless(text) + alike


def _traceback(text: str) -> list[str]:
    """Its last lines; the error's own words are among them, which may be a peer's."""
    return [_harmless(line) for line in text.split("\n")[-LONGEST_TRACEBACK:]]


def _harmless(text: str) -> str:
    cut = text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"
    return "".join(c if c.isprintable() else "?" for c in cut)


class AtMostSoMany(logging.Filter):
    """Lets at most ``ALIKE_PER_MINUTE`` lines of one place in the code through in a minute, and counts the others.

    The next one that goes through says how many were left out. There are as many counters as places that log.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        now = time.monotonic()
        since, count = self._places.get(place, (now, 0))
        if now - since >= WINDOW_SECONDS:
            left_out = max(0, count - ALIKE_PER_MINUTE)
            if left_out:
                record.left_out = left_out
            since, count = now, 0
        self._places[place] = (since, count + 1)
        return count < ALIKE_PER_MINUTE


def set_up_logging(process: str, settings: LogSettings) -> None:
    """Log to standard error, also what ends the process. ``process`` is ``node`` or ``learner``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process) if settings.format == "json" else _TextFormatter(process))
    handler.addFilter(AtMostSoMany())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("ftis_node").setLevel(settings.level.upper())
    sys.excepthook = _log_what_ends_the_process


def _log_what_ends_the_process(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical(
        "ends by an error: %s: %s", kind.__name__, error, exc_info=(kind, error, trace)
    )
