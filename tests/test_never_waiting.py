"""A node never waits for its peers after its first round: whatever they do, its rounds go on.

Rates are not looked at, for a machine may be loaded; what each round's report says of its waiting is exact.
"""

import os
import signal
from pathlib import Path

import pytest

from ftis_node.store.reader import StoreReader
from ftis_node.store.reports import RoundReport
from tests.daemons import Daemon, learners_of, write_run

GROUPS, FLOOR = 8, 2
PACE = (f"training.groups_per_step={GROUPS}", f"training.min_own_share={FLOOR / GROUPS}", "training.learning_rate=3e-4",
        "training.agreement_every=0", "training.checkpoint_every=1000", "training.collect_timeout=60",
        "caps.range_share=1.0", "caps.neighbour_share=1.0", "caps.author_share=1.0", "caps.newcomer_share=1.0",
        "status.address='off'")  # fmt: skip


def reports(node: Daemon) -> list[RoundReport]:
    with StoreReader(node.home) as store:
        return store.rounds()


def check_pace(found: list[RoundReport]) -> None:
    """No round but the first waited; each sampled its floor, and no more than a node alone would."""
    assert found
    assert [report.round for report in found if report.round > 1 and report.seconds.waiting != 0] == []
    for report in found:
        assert FLOOR <= report.own_sampled <= GROUPS
        assert report.own.arrived == 4 * report.own_sampled
        assert report.peer_groups <= GROUPS - FLOOR
        assert report.own_groups + report.peer_groups <= GROUPS
        if report.peer_groups + report.own_groups < GROUPS:  # it didn't step with places left before it had to
            assert report.own_sampled == GROUPS or report.peer_groups == GROUPS - FLOOR
        if report.skipped_reason != "no sequence has an advantage":
            assert report.own_informative == report.own_groups
            assert report.peer_informative == report.peer_groups
        assert report.own.zero_advantage == 4 * (report.own_sampled - report.own_informative)
    last = found[-1]
    assert last.totals.own_sampled == sum(report.own_sampled for report in found)
    assert last.totals.own_informative == sum(report.own_informative for report in found)
    assert last.totals.peer_informative == sum(report.peer_informative for report in found)


def used_peers(node: Daemon) -> bool:
    last = node.status().last_round
    return last is not None and last.totals.peer_informative > 0


@pytest.mark.parametrize("fate", [signal.SIGSTOP, signal.SIGKILL])
def test_rounds_go_on_when_a_peer_stops(fate: signal.Signals, tmp_path: Path) -> None:
    """Frozen, its connections stay open; killed, they end."""
    run = write_run(tmp_path)
    sets = (*PACE, "training.start_peers=1")
    with Daemon(tmp_path / "a", run=run, sets=sets) as a, Daemon(tmp_path / "b", peers=(a.address(),), sets=sets) as b:
        a.until(lambda _: used_peers(a), "b's samples are used")
        for process in (b.process.pid, *learners_of(b.home)):
            os.kill(process, fate)
        last = a.status().last_round
        assert last is not None
        a.after_round(last.round + 30)
        assert a.terminate() == 0
        found = reports(a)
        if fate is signal.SIGSTOP:
            for process in (b.process.pid, *learners_of(b.home)):
                os.kill(process, signal.SIGCONT)
    check_pace(found)
    assert found[-1].peer_groups == 0
    assert found[-1].own_sampled == GROUPS


def test_a_peer_that_joins_late_is_not_waited_for_and_then_used(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    with Daemon(tmp_path / "a", run=run, sets=PACE) as a:
        a.after_round(20)
        with Daemon(tmp_path / "b", peers=(a.address(),), sets=PACE) as b:
            a.until(lambda _: used_peers(a), "b's samples are used")
            last = a.status().last_round
            assert last is not None
            a.after_round(last.round + 5)
            assert b.terminate() == 0
        assert a.terminate() == 0
    found = reports(a)
    check_pace(found)
    assert sum(report.peer_groups for report in found[:20]) == 0
    assert all(report.own_sampled == GROUPS for report in found[:20])
    assert found[0].seconds.waiting == 0  # nobody was named whom the first round should wait for


def test_peers_that_publish_nothing_are_not_waited_for(tmp_path: Path) -> None:
    """A relay has no learner; another peer's has finished its only round."""
    run = write_run(tmp_path)
    with (
        Daemon(tmp_path / "a", run=run, sets=PACE) as a,
        Daemon(tmp_path / "relay", peers=(a.address(),), command="relay") as relay,
        Daemon(tmp_path / "b", peers=(a.address(),), sets=(*PACE, "training.max_rounds=1")) as b,
    ):
        b.finished()
        last = a.after_round(1).last_round
        assert last is not None
        status = a.after_round(last.round + 20)  # by then the last groups of b are used, or too old
        assert {peer.peer_id for peer in status.peers if peer.connected} == {
            relay.status().peer_id, b.status().peer_id,
        }  # fmt: skip
        assert a.terminate() == 0
    found = reports(a)
    check_pace(found)
    assert found[-1].own_sampled == GROUPS


SLOW = """
import sys, time
if 'ftis_node.commands.learner' in ' '.join(sys.orig_argv):
    from ftis_node import own_groups
    honest = own_groups.generate
    def generate(*arguments, **named):
        time.sleep(1.0)
        return honest(*arguments, **named)
    own_groups.generate = generate
"""


def test_a_peer_that_is_ten_times_slower_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path / "slow"), *filter(None, [os.environ.get("PYTHONPATH")])])
    sets = (*PACE, "training.start_peers=1")
    with (
        Daemon(tmp_path / "a", run=run, sets=sets) as a,
        Daemon(tmp_path / "b", peers=(a.address(),), sets=sets, env={"PYTHONPATH": path}) as b,
    ):
        b.after_round(3)
        a.until(lambda _: used_peers(a), "b's samples are used")
        assert a.terminate() == 0
        assert b.terminate() == 0
        ahead, behind = reports(a), reports(b)
    check_pace(ahead)
    check_pace(behind)
    assert len(ahead) > len(behind)
    # What the slow one has no time for the other gives it: it samples its floor.
    assert min(report.own_sampled for report in behind[1:]) == FLOOR
