"""The process that imports torch for ``doctor``: started by it, never by hand.

A process of its own can be ended when its time is over, and may be killed for its memory or crash in a driver without
taking the examination with it. Requests come by standard input, verdicts go to standard output, a line each; when
standard input closes, ``doctor`` is gone and this process ends too.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from ftis_node.allocator import tune_malloc
from ftis_node.doctor.findings import Verdict, failure
from ftis_node.doctor.requests import VERDICT, DeviceRequest, DhtRequest, ModelRequest
from ftis_node.errors import FtisError
from ftis_node.manifest import parse_run

EXIT_ORPHANED = 3


def main() -> int:
    """``model`` or ``dht`` is the only argument."""
    verdicts = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not get between the verdicts
    lines = _requests()
    for verdict in _dht(next(lines)) if sys.argv[1] == "dht" else _model(lines):
        verdicts.write(VERDICT.dump_json(verdict) + b"\n")
    return 0


def _model(lines: Iterator[bytes]) -> Iterator[Verdict]:
    config = DeviceRequest.model_validate_json(next(lines)).config
    tune_malloc()
    from ftis_node.doctor.model import ModelChecks, device  # imports torch, which must come after tune_malloc

    yield _expected(lambda: device(config))
    request = ModelRequest.model_validate_json(next(lines))
    run = parse_run(request.manifest.encode(), source="the run's manifest")
    for check in ModelChecks(config, run, Path(request.home)).all():
        yield _expected(check)


def _dht(line: bytes) -> Iterator[Verdict]:
    from ftis_node.doctor.dht import join_dht

    request = DhtRequest.model_validate_json(line)
    run = parse_run(request.manifest.encode(), source="the run's manifest")
    yield _expected(lambda: join_dht(run, request.listen, request.peers))


def _expected(check: Callable[[], Verdict]) -> Verdict:
    """What the node itself would stop with is a finding; anything else ends this process, and is seen by that."""
    try:
        return check()
    except FtisError as error:
        return failure(str(error))


def _requests() -> Iterator[bytes]:
    """Lines of standard input as they come; its end is the end of this process, whatever it is at."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        # Not through sys.stdin, whose lock a thread that waits in it would hold at the end of the interpreter.
        rest = b""
        while piece := os.read(0, 65_536):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                lines.put(line)
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=read, daemon=True, name="lifeline").start()
    while True:
        yield lines.get()


if __name__ == "__main__":
    sys.exit(main())
