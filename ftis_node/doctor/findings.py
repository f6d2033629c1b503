"""What ``ftis-node doctor`` checks, in its order, and what a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """A failure keeps the node from its work; a warning makes it worse, or couldn't be checked."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """``seconds`` is the most that it may take; ``waits_for`` is said when it takes long."""

    name: str
    seconds: float
    waits_for: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, and what to do about it; ``advice`` is empty where ``found`` says it all."""

    level: Level
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of one check. Example: ``Finding("python", Level.OK, "3.12.3 (needs >=3.11)", "", 0.01)``."""

    check: str
    level: Level
    found: str
    advice: str
    seconds: float


PYTHON = Check("python", 10, "the package's metadata")
PACKAGES = Check("packages", 20, "the packages' metadata")
DEVICE = Check("device", 180, "torch to be imported and a kernel to run")
HOME = Check("home", 15, "the home's file system")
IDENTITY = Check("identity", 15, "the home's file system")
STORE = Check("store", 30, "the store to be read")
PEERS = Check("peers", 30, "peers to answer")
RUN = Check("run", 15, "the home's file system")
CLOCK = Check("clock", 5, "nothing")
PORT = Check("port", 15, "the port to be taken")
REACH = Check("reach", 45, "a peer to dial back")
DHT = Check("dht", 90, "hivemind to be imported and its DHT node to start")
DATA = Check("data", 600, "the run's data, from the hub if it isn't here")
MODEL = Check("model", 1800, "the model to be loaded, from the hub if it isn't here")
TOKENIZER = Check("tokenizer", 60, "the tokenizer")
MEMORY = Check("memory", 600, "passes of the size of a micro-batch")
DISK = Check("disk", 15, "the home's file system")
COMPLETION = Check("completion", 600, "a short completion")
STEP = Check("step", 600, "one step on it")

MODEL_CHECKS = (DATA, MODEL, TOKENIZER, MEMORY, DISK, COMPLETION, STEP)
"""Made one after the other by the process that has the model."""


def ok(found: str, advice: str = "") -> Verdict:
    return Verdict(Level.OK, found, advice)


def warning(found: str, advice: str = "") -> Verdict:
    return Verdict(Level.WARNING, found, advice)


def failure(found: str, advice: str = "") -> Verdict:
    return Verdict(Level.FAILURE, found, advice)


def not_checked(because: str) -> Verdict:
    return warning(f"not checked, because {because}")
