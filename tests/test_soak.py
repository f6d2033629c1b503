"""Nodes that run for long don't grow. Three minutes here; thirty by ``python -m scripts.benchmarks.soak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.benchmarks.soak import NodeReport, soak

MINUTES, SETTLING = 3.0, 1.5
# In so short a time caches and the allocator are not yet full; a leak of one batch or report per round is far more.
SLOPE_MIB_PER_MINUTE = 4.0


def check(name: str, report: NodeReport) -> None:
    assert report.exit_code == 0, name
    assert report.rounds > 100, name
    assert report.peers_sequences_trained > 0, name
    assert report.log_kib < 64, name
    assert report.store_mib_most < report.store_mib_at_settling + 8, name
    for process, held in report.processes.items():
        assert held.resident_slope_mib_per_minute < SLOPE_MIB_PER_MINUTE, (name, process, held)
        assert held.files_most - held.files_least <= 4, (name, process, held)
        assert held.threads_most - held.threads_least <= 2, (name, process, held)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_grows(tmp_path: Path) -> None:
    report = soak(tmp_path, MINUTES, SETTLING)
    assert report.scrapes > 60 * MINUTES / 2
    for name, node in report.nodes.items():
        check(name, node)
