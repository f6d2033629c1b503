"""Every error that a user can see. The message says what, where and what is allowed, in one line."""

from typing import Literal

NoAnswer = Literal["unresolved", "refused", "unreachable", "silent", "not a node"]
"""Why nobody answers at an address: its name isn't known, nothing listens there, no way leads there, nothing is said in
time, or what answers is something else than a node."""


class FtisError(Exception):
    """Base of all expected errors; the command line prints it without a traceback.

    ``exit_code`` is what the process ends with when nothing catches the error.
    """

    exit_code = 1


class ConfigError(FtisError):
    """A configuration, manifest or option that can't be used (exit code 2)."""

    exit_code = 2


class ModelError(FtisError):
    """A model or tokenizer that can't be loaded or used."""

    exit_code = 2


class HomeError(FtisError):
    """A home directory that can't be used: locked, unsafe or damaged."""


class StoreError(FtisError):
    """The store refused an operation: full, damaged or of another version."""


class WireError(FtisError):
    """Bytes that can't be encoded or decoded under the limits of ``wire.limits``."""


class DialError(WireError):
    """No node answers at an address; ``cause`` says why to programs, the message to people."""

    def __init__(self, cause: NoAnswer, message: str) -> None:
        super().__init__(message)
        self.cause = cause


class CheckpointError(FtisError):
    """A checkpoint that can't be read back."""


class DiscoveryError(FtisError):
    """The DHT can't be used; the node is a member by peer exchange."""


class OutOfMemoryError(FtisError):
    """Work that doesn't fit into memory even in its smallest pieces."""


class RolloutError(FtisError):
    """Generation that gives nothing usable."""


class TaskError(FtisError):
    """A task's data that can't be had or read (exit code 2)."""

    exit_code = 2
