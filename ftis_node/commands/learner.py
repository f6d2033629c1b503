"""The learner's process: started by the network half, never by hand.

Standard input is its lifeline: the first line is the node's configuration, and when it closes the
network half is gone, in whatever way, and this process ends too. Standard output takes one line, why it ended:
the store can't, if that is why.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

from ftis_node.allocator import tune_malloc
from ftis_node.config import NodeConfig
from ftis_node.errors import FtisError
from ftis_node.log import LogSettings, set_up_logging
from ftis_node.stop_signal import StopRequested, StopSignal
from ftis_node.store.faults import storage_fault
from ftis_node.supervision import EXIT_STORAGE, LAST_WORDS

log = logging.getLogger(__name__)

EXIT_ORPHANED = 3


def main() -> int:
    """Run rounds until ``training.max_rounds`` or SIGTERM; returns the exit code."""
    home, level, form = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    after_kill = "after-kill" in sys.argv[4:]
    set_up_logging("learner", LogSettings(level, "json" if form == "json" else "text"))
    line = sys.stdin.buffer.readline()
    if not line:
        return EXIT_ORPHANED
    config = NodeConfig.model_validate_json(line)
    threading.Thread(target=_end_with_the_network_half, daemon=True, name="lifeline").start()
    last_words = os.dup(1)
    os.dup2(2, 1)  # what libraries print goes where the log goes
    stop = StopSignal()
    try:
        tune_malloc()
        from ftis_node.learner import Learner  # imports torch, which must come after tune_malloc

        with Learner(home, config, protected=stop.protected, after_kill=after_kill) as learner:
            learner.run()
    except StopRequested:
        log.info("stopped")
    except FtisError as error:
        log.error("%s", error)
        _say(last_words, str(error))
        return error.exit_code
    except Exception as error:
        fault = storage_fault(error)
        if fault is None:
            _say(last_words, f"{type(error).__name__}: {error}")
            raise
        log.error("%s can't be written: %s", home, fault)
        _say(last_words, fault)
        return EXIT_STORAGE
    return 0


def _say(last_words: int, why: str) -> None:
    """One line, short enough to fit into the pipe whoever reads it."""
    line = "".join(character if character.isprintable() else " " for character in why)[:LAST_WORDS]
    os.write(last_words, line.encode(errors="replace"))


def _end_with_the_network_half() -> None:
    while os.read(0, 4096):
        pass
    os._exit(EXIT_ORPHANED)


if __name__ == "__main__":
    sys.exit(main())
