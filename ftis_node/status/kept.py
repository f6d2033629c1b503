"""What a walk keeps of a stranger's status: so little that as many nodes as are asked fit into memory. Pure."""

from __future__ import annotations

from itertools import islice

from ftis_node.status.snapshot import NodeStatus
from ftis_node.store.reports import Counts, RoundReport, SequenceCounts

KEPT_PARTS = 64
"""Of dials, rejections, authors in a round, and reasons: far more than an honest node has or anybody reads."""
LONGEST_REASON = 300


def small(status: NodeStatus, most_peers: int) -> NodeStatus:
    """The first entries of every list, and none of its addresses, which the walk has taken in."""
    kept = {
        "peers": status.peers[:most_peers],
        "addresses": (),
        "dials": status.dials[:KEPT_PARTS],
        "rejections": status.rejections[:KEPT_PARTS],
        "last_round": None if status.last_round is None else _small_round(status.last_round),
    }
    return status.model_copy(update=kept)


def _small_round(report: RoundReport) -> RoundReport:
    reason, totals = report.skipped_reason, report.totals
    return report.model_copy(
        update={
            "skipped_reason": None if reason is None else reason[:LONGEST_REASON],
            "own": _small_counts(report.own),
            "peers": _small_counts(report.peers),
            "used_authors": _first(report.used_authors),
            "totals": totals.model_copy(
                update={"own": _small_counts(totals.own), "peers": _small_counts(totals.peers)}
            ),
        }
    )


def _small_counts(counts: SequenceCounts) -> SequenceCounts:
    return counts.model_copy(update={"excluded": _first(counts.excluded)})


def _first(counts: Counts) -> Counts:
    return dict(islice(counts.items(), KEPT_PARTS))
