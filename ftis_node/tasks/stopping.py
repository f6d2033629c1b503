"""Strings at which a completion ends: found alike by who samples it and by who receives it.

A completion ends with the token that makes its first stop string complete. White space at the start of a completion is
no part of one: the first line is the first that isn't empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

END_OF_LINE = ("\n",)
MOST_STOPS = 8
LONGEST_STOP = 100


def stop_strings(parameters: Mapping[str, object]) -> tuple[str, ...]:
    """The stop strings that a task's parameters mean; the registry checks whether they are allowed."""
    given = parameters.get("stop", END_OF_LINE if parameters.get("format") == "plain" else ())
    texts = given if isinstance(given, tuple) else (given,)
    return tuple(text for text in texts if isinstance(text, str) and text)


class Stopper:
    """Watches the text of one completion in the making."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        self._kept = max(map(len, self._stops), default=1) - 1
        self._tail = b""
        self._begun = False

    def feed(self, piece: bytes) -> bool:
        """Whether the text so far, of which ``piece`` is the newest token, holds a stop string."""
        if not self._begun:
            piece = piece.lstrip()
            self._begun = bool(piece)
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._kept) :]
        return any(stop in text for stop in self._stops)


def tokens_until_stop(text: bytes, token_byte_lengths: Sequence[int], stops: Sequence[str]) -> int | None:
    """How many tokens of a text there are up to and with the one that completes a stop string; None without any."""
    if not any(stop.encode() in text for stop in stops):
        return None
    stopper, position = Stopper(stops), 0
    for count, length in enumerate(token_byte_lengths, start=1):
        if stopper.feed(text[position : position + length]):
            return count
        position += length
    return None
