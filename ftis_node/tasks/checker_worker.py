"""The process that checks answers: one job per line on standard input, one verdict per line on standard output.

A keeper with everything imported forks a child that does the work. A job that takes too long or too much memory
ends the child, and the keeper answers for it and forks another, which takes milliseconds. Run as
``python -m ftis_node.tasks.checker_worker``.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys

from ftis_node.tasks.checks import CHECKS, MathCheck, is_right, prepare

CHECK_SECONDS = 2.0
PREPARE_SECONDS = 60.0
PRELOAD_GYM = "gym"
CHECK_MEGABYTES = 1024
JOBS_PER_CHILD = 2000
READY, RIGHT, WRONG, FAILED = b"ready\n", b"right\n", b"wrong\n", b"failed\n"
_CLOSED, _WORN_OUT = 0, 3


def main() -> int:
    """Until standard input closes."""
    logging.disable(logging.WARNING)  # math-verify tells that its own timeouts are off, for every job
    jobs, verdicts = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)  # what a library prints is no verdict
    is_right(MathCheck(expected="2x", answer="x+x"))  # loads and warms up everything once for all children
    if PRELOAD_GYM in sys.argv:
        import reasoning_gym  # noqa: F401
    os.write(verdicts, READY)
    while True:
        child = os.fork()
        if child == 0:
            os._exit(_serve(jobs, verdicts))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _CLOSED:
            return 0
        if code != _WORN_OUT:
            os.write(verdicts, FAILED)


def _serve(jobs: int, verdicts: int) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process even within a computation in C
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limit = used + CHECK_MEGABYTES * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for _ in range(JOBS_PER_CHILD):
        line = _read_line(jobs)
        if not line:
            return _CLOSED
        signal.setitimer(signal.ITIMER_REAL, PREPARE_SECONDS)
        try:
            check = CHECKS.validate_json(line)
            prepare(check)
            signal.setitimer(signal.ITIMER_REAL, CHECK_SECONDS)
            right = is_right(check)
        except Exception:  # noqa: BLE001  # whatever a parser raises on a hostile text: the answer isn't right
            right = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(verdicts, RIGHT if right else WRONG)
    return _WORN_OUT


def _read_line(jobs: int) -> bytes:
    """Unbuffered, so that the next child finds the next job; there is never more than one on its way."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(jobs, 65536)
        if not part:
            return b""
        line += part
    return line


if __name__ == "__main__":
    sys.exit(main())
