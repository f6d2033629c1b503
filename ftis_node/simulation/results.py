"""The result file of a run: JSON lines, the first says what was done, the last that it is whole."""

from __future__ import annotations

import fcntl
import io
import json
import os
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ftis_node import __version__
from ftis_node.errors import ConfigError, HomeError, StoreError
from ftis_node.simulation.figures import DoneLine, Environment, EvaluationLine, RoundLine, RunLine
from ftis_node.simulation.specification import SimulationSpec

SCHEMA_VERSION = 1
BEGINNING = b'{"kind":"run"'
LONGEST_LINE = 2**20
KINDS: dict[str, type[RunLine | RoundLine | EvaluationLine | DoneLine]] = {
    "run": RunLine, "round": RoundLine, "evaluation": EvaluationLine, "done": DoneLine,
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A result file that was read back. ``done`` is None for a run that isn't finished."""

    run: RunLine
    rounds: tuple[RoundLine, ...]
    evaluations: tuple[EvaluationLine, ...]
    done: DoneLine | None


def result_path(directory: Path, spec: SimulationSpec, seed: int) -> Path:
    return directory / f"{spec.name}-seed{seed}.jsonl"


def read_results(path: Path) -> Results:
    """Raises StoreError, which names the line."""
    rounds: list[RoundLine] = []
    evaluations: list[EvaluationLine] = []
    run, done = None, None
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise StoreError(f"{path}: can't be read: {error.strerror}") from error
    if lines and not lines[-1].endswith(b"\n"):  # a kill in the middle of it
        lines.pop()
    for number, text in enumerate(lines, start=1):
        line = _parse(path, number, text)
        if isinstance(line, RunLine):
            run = line
        elif isinstance(line, RoundLine):
            rounds.append(line)
        elif isinstance(line, EvaluationLine):
            evaluations.append(line)
        else:
            done = line
    if run is None:
        raise StoreError(f"{path}: does not begin with the line of a run")
    return Results(run, tuple(rounds), tuple(evaluations), done)


def _parse(path: Path, number: int, text: bytes) -> RunLine | RoundLine | EvaluationLine | DoneLine:
    try:
        kind = json.loads(text)["kind"]
        return KINDS[kind].model_validate_json(text)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise StoreError(f"{path}: line {number} is none of a simulation's results") from error


def environment(device: str) -> Environment:
    return Environment(
        ftis_node=__version__,
        python=platform.python_version(),
        torch=version("torch"),
        transformers=version("transformers"),
        numpy=version("numpy"),
        processor=_processor(),
        cores=os.cpu_count() or 1,
        device=device,
    )


def _processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class ResultFile:
    """A run's file while it is written, locked against another process."""

    def __init__(self, path: Path, file: io.FileIO) -> None:
        self.path = path
        self._file = file

    def first_line(self) -> RunLine | None:
        """What the file was begun for; None if it is empty, or was killed in its first line."""
        self._file.seek(0)
        text = self._file.readline(LONGEST_LINE)
        if not text.endswith(b"\n") and BEGINNING.startswith(text[: len(BEGINNING)]):
            return None
        line = _parse(self.path, 1, text)
        if not isinstance(line, RunLine):
            raise StoreError(f"{self.path}: does not begin with the line of a run")
        return line

    def is_whole(self) -> bool:
        """Whether the last line says that the run is done."""
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - 4096))
        tail = self._file.read()
        return tail.endswith(b"\n") and b'{"kind":"done"' in tail.splitlines()[-1]

    def cut(self, size: int) -> None:
        """Forget what is behind ``size`` bytes. Raises StoreError when there are fewer."""
        if self._file.seek(0, os.SEEK_END) < size:
            raise StoreError(
                f"{self.path}: is shorter than its checkpoint says; delete it and the checkpoint to start anew"
            )
        self._file.truncate(size)
        self._file.seek(size)

    def write(self, lines: Iterable[BaseModel]) -> None:
        """Raises HomeError."""
        for line in lines:
            text = line.model_dump_json().encode() + b"\n"
            try:
                written = self._file.write(text)
            except OSError as error:
                raise HomeError(f"{self.path}: can't be written: {error.strerror}") from error
            if written != len(text):
                raise HomeError(f"{self.path}: can't be written: the disk took a part of a line only")

    def sync(self) -> int:
        """Bring all lines to disk; returns the size in bytes. Raises HomeError."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise HomeError(f"{self.path}: can't be written: {error.strerror}") from error
        return self._file.tell()


@contextmanager
def open_results(path: Path) -> Iterator[ResultFile]:
    """Raises HomeError when the file can't be written, or another process is at it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b", buffering=0)  # noqa: SIM115 - held until the end of the block
    except OSError as error:
        raise HomeError(f"{path}: can't be written: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HomeError(f"{path}: another simulation is writing it") from error
        yield ResultFile(path, file)


def check_same_run(line: RunLine, path: Path, spec: SimulationSpec, *, here: Environment | None) -> None:
    """Raises ConfigError where a file was begun with something else; ``here`` is where it is to go on."""
    if line.schema_version != SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema version {line.schema_version}, this version writes {SCHEMA_VERSION}")
    if line.specification != spec:
        old, new = line.specification.model_dump(), spec.model_dump()
        differing = ", ".join(key for key in new if old[key] != new[key])
        raise ConfigError(
            f"{path}: was made with another specification ({differing}): give another --output, or delete it"
        )
    if here is not None and line.environment != here:
        was, now = line.environment.model_dump(), here.model_dump()
        key = next(key for key in now if was[key] != now[key])
        raise ConfigError(
            f"{path}: was begun with {key} {was[key]}, here it is {now[key]}, and would not give the same numbers:"
            " delete it to start anew"
        )
