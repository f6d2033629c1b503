"""What a process says of itself in the store: it means nothing once that process is gone. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_SEPARATOR = "\0"


@dataclass(frozen=True, slots=True)
class ProcessState:
    """A state in words, since when it holds, and until when at most (ms); ``None`` where that isn't known."""

    text: str
    since_ms: int | None = None
    until_ms: int | None = None


def encode_state(process: int, state: ProcessState) -> bytes:
    """As it lies in the store, with the id of the process that says it."""
    times = ["" if time is None else str(time) for time in (state.since_ms, state.until_ms)]
    return f"{process} {_SEPARATOR.join([state.text.replace(_SEPARATOR, ' '), *times])}".encode()


def decode_state(value: bytes | None, process: int | None) -> ProcessState | None:
    """The state, if the running process wrote it and not one before it."""
    writer, _, rest = (value or b"").decode(errors="replace").partition(" ")
    if process is None or writer != str(process):
        return None
    text, *times = rest.split(_SEPARATOR)
    since, until = (int(time) if time.isdigit() else None for time in (*times, "", "")[:2])
    return ProcessState(text, since, until)
