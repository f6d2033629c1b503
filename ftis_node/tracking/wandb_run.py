"""A run in Weights & Biases. Only the rounds' figures are sent: no code, no machine metrics, no console.

Where it is and who may write there is W&B's own matter (``wandb login``, ``WANDB_MODE``, ``WANDB_BASE_URL``, …). A file
in the home tells where the last process stopped.
"""

from __future__ import annotations

import hashlib
import os

import wandb

from ftis_node.errors import HomeError
from ftis_node.tracking.series import Point
from ftis_node.tracking.tracker import Subject

FOLDER = "tracking"


class WandbRun:
    """One run per node and swarm run, resumed by every process. Raises HomeError."""

    def __init__(self, target: str, subject: Subject) -> None:
        folder = subject.home / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        run_id = hashlib.sha256(f"{subject.peer_id} {subject.run_id}".encode()).hexdigest()[:16]
        self._mark = folder / f"wandb-{target}.round"
        try:
            self._run = wandb.init(
                project=target,
                id=run_id,
                name=subject.label,
                resume="allow",
                dir=folder,
                config={"run": subject.run_name, "model": subject.model, "version": subject.version},
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    disable_code=True,
                    disable_git=True,
                    x_disable_meta=True,
                    x_disable_stats=True,
                    x_save_requirements=False,
                ),
            )
        except wandb.Error as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise HomeError(f"tracking.wandb = {target!r}: {reason}") from error

    def reached(self) -> int:
        try:
            return int(self._mark.read_text())
        except FileNotFoundError:
            return 0
        except ValueError:
            raise HomeError(f"{self._mark}: holds no round number; delete it to send all rounds again") from None

    def report(self, points: list[Point]) -> None:
        for point in points:
            self._run.log({**point.values, "finished_at": point.at_seconds}, step=point.round)
        fresh = self._mark.with_suffix(".new")
        fresh.write_text(str(points[-1].round))
        os.replace(fresh, self._mark)

    def close(self) -> None:
        self._run.finish()
