"""What every tracker does; see ``tensorboard_files`` and ``wandb_run``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ftis_node.tracking.series import Point


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose rounds are tracked. Ids are hex."""

    home: Path
    peer_id: str
    run_id: str
    run_name: str
    model: str
    version: str

    @property
    def label(self) -> str:
        return f"{self.run_name.replace(' ', '-')}-{self.peer_id[:12]}"


class Tracker(Protocol):
    """Made when there is a first round to report. Its calls may block for as long as they like."""

    def reached(self) -> int:
        """The last round that it holds, also from earlier processes; 0 if none."""

    def report(self, points: list[Point]) -> None:
        """Keep these rounds, in order; they are safe when this returns."""

    def close(self) -> None: ...
