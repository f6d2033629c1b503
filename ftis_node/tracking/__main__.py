"""A tracker's process: reads finished rounds out of the store and reports them. Started by the network half.

    python -m ftis_node.tracking KIND TARGET HOME LOG_LEVEL

Standard input is its lifeline: when it closes, the network half is gone, and this process ends too.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from ftis_node import __version__
from ftis_node.errors import FtisError
from ftis_node.log import LogSettings, set_up_logging
from ftis_node.manifest import parse_run
from ftis_node.store.reader import StoreReader
from ftis_node.store.reports import RoundReport
from ftis_node.tracking.series import point_of
from ftis_node.tracking.tracker import Subject, Tracker

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
AT_ONCE = 200
EXIT_ORPHANED = 3


def main() -> int:
    kind, target, home, level, form = sys.argv[1:6]
    set_up_logging(kind, LogSettings(level, "json" if form == "json" else "text"))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the network half's to handle
    threading.Thread(target=_end_with_the_network_half, daemon=True, name="lifeline").start()
    try:
        follow(kind, target, Path(home), stop)
    except FtisError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


def follow(kind: str, target: str, home: Path, stop: threading.Event) -> None:
    """Report every round once, from where an earlier process stopped, until told to end. Raises FtisError.

    A round that is done again after a crash isn't reported again.
    """
    tracker: Tracker | None = None
    reached = 0
    stopping = False
    while not stopping:
        stopping = stop.is_set()  # and what was finished before that is still reported
        rounds = _rounds_after(home, reached)
        if rounds and tracker is None:
            tracker = open_tracker(kind, target, _subject(home))
            reached = tracker.reached()
            log.debug("reports to %s after round %d", target, reached)
            rounds = _rounds_after(home, reached)
        if rounds and tracker is not None:
            tracker.report([point_of(report, at_ms) for report, at_ms in rounds])
            reached = rounds[-1][0].round
        if len(rounds) < AT_ONCE:
            stop.wait(POLL_SECONDS)
    if tracker is not None:
        tracker.close()


def open_tracker(kind: str, target: str, subject: Subject) -> Tracker:
    """Imports the tracker's package. Raises FtisError where it refuses."""
    if kind == "tensorboard":
        from ftis_node.tracking.tensorboard_files import TensorBoardFiles

        return TensorBoardFiles(target, subject)
    from ftis_node.tracking.wandb_run import WandbRun

    return WandbRun(target, subject)


def _rounds_after(home: Path, reached: int) -> list[tuple[RoundReport, int]]:
    with StoreReader(home) as store:
        return store.rounds_after(reached, AT_ONCE)


def _subject(home: Path) -> Subject:
    """Of a home with a finished round, in which all of this is known."""
    with StoreReader(home) as store:
        run = parse_run(store.network_state("manifest") or b"", source=f"{home}: stored run manifest")
        return Subject(
            home=home,
            peer_id=(store.network_state("peer_id") or b"").hex(),
            run_id=run.run_id.hex(),
            run_name=run.manifest.name,
            model=(store.learner_state("model") or b"").decode(),
            version=__version__,
        )


def _end_with_the_network_half() -> None:
    while os.read(0, 4096):
        pass
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
