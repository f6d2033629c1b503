"""What a process takes from the machine, as Linux tells it in ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Resident memory in bytes; open file descriptors; threads."""

    resident_bytes: int
    open_files: int
    threads: int


def process_figures(pid: int) -> ProcessFigures | None:
    """None where the process has ended, or where there is no ``/proc``."""
    folder = Path("/proc") / str(pid)
    try:
        resident_pages = int((folder / "statm").read_text().split()[1])
        # Behind the name in brackets, which may hold anything: state is field 3, the number of threads field 20.
        threads = int((folder / "stat").read_text().rpartition(")")[2].split()[17])
        open_files = len(os.listdir(folder / "fd"))
    except (OSError, IndexError):  # a process that ends shows empty files
        return None
    return ProcessFigures(resident_pages * os.sysconf("SC_PAGE_SIZE"), open_files, threads)
