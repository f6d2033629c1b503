"""What is made of peers' answers: their clocks, their runs, and whose identity they have."""

from dataclasses import replace

import pytest

from ftis_node.config import NodeConfig
from ftis_node.doctor.acquaintances import Acquaintance, judge_clock, judge_peers, judge_run
from ftis_node.doctor.findings import Level, Verdict
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import Introduction
from ftis_node.swarm.records import read_record
from tests.builders import make_run
from tests.swarm.test_gossip import self_of

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("offsets", "newest", "level", "said"),
    [
        ([], None, Level.WARNING, "can't be checked without a peer"),
        ([], NOW - 5, Level.WARNING, "it isn't before the store's last entry"),
        ([], NOW + 90_000, Level.FAILURE, "90 s before this node's own last entry"),
        ([200.0], NOW, Level.OK, "agrees with a peer's"),
        ([1_500.0, 1_400.0, 99_000.0], NOW, Level.OK, "1.5 s behind that of 3 peers"),
        ([-5_000.0], NOW, Level.WARNING, "5.0 s ahead of a peer's; the DHT allows 3 s"),
        ([31_000.0], NOW, Level.FAILURE, "31.0 s behind a peer's; the run allows 30 s"),
    ],
)
def test_clocks(offsets: list[float], newest: int | None, level: Level, said: str) -> None:
    found = judge_clock(offsets, now_ms=NOW, newest_ms=newest, allowed_ms=30_000, config=NodeConfig())
    assert found.level is level
    assert said in found.found


def met(number: int, *, name: str = "test") -> Introduction:
    own = replace(self_of(number), run=make_run(name))
    return Introduction(own.run, read_record(own.record(NOW)), NOW, 10)


def dialled(*answers: Introduction | str, given: bool = True) -> list[Acquaintance]:
    return [
        Acquaintance(Address("10.0.0.1", port), given, *((None, answer) if isinstance(answer, str) else (answer, "")))
        for port, answer in enumerate(answers, 1)
    ]


def test_peers_that_answer_and_peers_that_do_not() -> None:
    def judged(peers: list[Acquaintance], *, daemon_runs: bool = False) -> Verdict:
        return judge_peers(peers, own_id=self_of(7).peer_id, daemon_runs=daemon_runs)

    assert judged([]).level is Level.WARNING
    assert judged(dialled(met(1), met(2))).level is Level.OK
    assert judged(dialled(met(1), "does not answer")).level is Level.WARNING
    assert judged(dialled("does not answer")).level is Level.FAILURE
    assert judged(dialled("does not answer", given=False)).level is Level.WARNING
    twin = judged(dialled(met(7), met(1)))
    assert twin.level is Level.FAILURE
    assert "another daemon runs with it" in twin.found
    assert judged(dialled(met(7)), daemon_runs=True).level is Level.WARNING
    assert judged(dialled(met(7), met(1)), daemon_runs=True).level is Level.OK


def test_peers_of_another_run() -> None:
    run = make_run("test")
    assert judge_run(None, "", []).level is Level.WARNING
    assert judge_run(run, "given", dialled(met(1))).level is Level.OK
    assert judge_run(run, "given", dialled(met(1), met(2, name="other"))).level is Level.WARNING
    others = judge_run(run, "given", dialled(met(2, name="other"), "does not answer"))
    assert others.level is Level.FAILURE
    assert "10.0.0.1:1 is in run other" in others.found
