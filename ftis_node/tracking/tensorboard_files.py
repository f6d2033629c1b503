"""Event files for TensorBoard. The folder itself tells where the last process stopped: deleted, it is filled anew."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ftis_node.errors import HomeError
from ftis_node.tracking.series import Point
from ftis_node.tracking.tracker import Subject

EVENT_FILES = "events.out.tfevents.*"


class TensorBoardFiles:
    """One folder per node and run below ``target``, which may be shared by many. Raises HomeError."""

    def __init__(self, target: str, subject: Subject) -> None:
        self.folder = subject.home / Path(target).expanduser() / subject.label
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HomeError(f"tracking.tensorboard = {target!r}: can't be written: {error.strerror}") from error
        self._reached = max((_last_step(path) for path in self.folder.glob(EVENT_FILES)), default=0)
        self._writer = EventFileWriter(str(self.folder))

    def reached(self) -> int:
        return self._reached

    def report(self, points: list[Point]) -> None:
        for point in points:
            # One record per round: after a crash it is there as a whole or not at all.
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            event = Event(step=point.round, wall_time=point.at_seconds, summary=Summary(value=values))
            self._writer.add_event(event)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def _last_step(path: Path) -> int:
    """Of one event file; what a crash left half-written at its end doesn't count."""
    return max((int(event.step) for event in LegacyEventFileLoader(str(path)).Load()), default=0)
