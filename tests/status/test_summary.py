"""What is made of nodes' answers: who is connected, who is hidden, whom a swarm helps, and what a liar can move."""

import io
from collections.abc import Mapping

import pytest
from rich.console import Console

from ftis_node.status.agreement import Agreement
from ftis_node.status.judgement import Level
from ftis_node.status.rendering import print_health
from ftis_node.status.shares import MOST_WEIGHT
from ftis_node.status.snapshot import NodeStatus, PeerStatus, RejectionStatus
from ftis_node.status.summary import MOST_VOUCHED, Answer, health_document, level_of
from ftis_node.status.swarm_view import Bounds, HealthDocument, NodeView, SwarmSummary

NOW = 1_800_000_000_000
RUN, OTHER_RUN = "ab" * 32, "cd" * 32
A, B, C, D, HIDDEN, MALLORY = (character * 64 for character in "abcdef")
HELPS = Agreement(measured=10, mean=0.2, low=0.1, high=0.3)
HARMS = Agreement(measured=10, mean=-0.2, low=-0.3, high=-0.1)


def bounds(**changes: object) -> Bounds:
    return Bounds(
        max_nodes=500, timeout_seconds=10, node_seconds=2, peers_per_node=100, asked=3, stopped_by=None, not_asked=0
    ).model_copy(update=changes)


def peer(peer_id: str, **changes: object) -> PeerStatus:
    known: dict[str, object] = {
        "peer_id": peer_id, "address": None, "model": "tiny", "version": "1", "connected": True, "direction": "in",
        "last_contact_ms": NOW - 4000, "round_trip_ms": None, "score": 1.0, "bytes_in": 10, "bytes_out": 20,
        "accepted_groups": 0, "rejected_groups": 0, "banned_until_ms": 0, "ban_reason": "",
    }  # fmt: skip
    return PeerStatus.model_validate(known | changes)


def status(peer_id: str, *peers: PeerStatus, **changes: object) -> NodeStatus:
    known: dict[str, object] = {
        "at_ms": NOW, "version": "1", "peer_id": peer_id, "listening": "h:1", "run_id": RUN, "run_name": "test",
        "daemon_running": True, "learner": "running", "dht": "off", "model": "tiny", "parameters": 10,
        "trainable_parameters": 10, "round": 3, "activity": "waiting for 2 peers' groups",
        "activity_since_ms": NOW - 14_000, "activity_until_ms": None, "last_round_at_ms": None, "last_round": None,
        "inbox": {}, "published_batches": 0, "published_bytes": 0, "received_batches": 0, "received_bytes": 0,
        "peers": peers, "dials": (), "rejections": (),
    }  # fmt: skip
    return NodeStatus.model_validate(known | changes)


def document(*statuses: NodeStatus, named: int = 1, **changes: object) -> HealthDocument:
    answers = [Answer(f"h:{n}", n < named, s.peer_id, s) for n, s in enumerate(statuses)]
    return health_document(answers, asked_at_ms=NOW, bounds=bounds(**changes))


def summary(*statuses: NodeStatus, named: int = 1) -> SwarmSummary:
    found = document(*statuses, named=named).swarm
    assert found is not None
    return found


def views(made: HealthDocument) -> Mapping[str | None, NodeView]:
    return {view.peer_id: view for view in made.nodes}


def text_of(made: HealthDocument) -> str:
    output = io.StringIO()
    print_health(made, Console(file=output, width=250))
    return output.getvalue()


def sizes(swarm: SwarmSummary) -> list[int]:
    return [len(part.nodes) for part in swarm.partitions]


def test_a_swarm_of_three_in_a_row() -> None:
    made = document(status(A, peer(B)), status(B, peer(A), peer(C, direction="out")), status(C, peer(B)))
    assert level_of(made) is Level.HEALTHY
    seen = views(made)[C].seen
    assert seen is not None
    assert (seen.connected_to, seen.dialled_by, seen.asked) == (1, 1, 2)
    assert made.swarm is not None
    assert sizes(made.swarm) == [3]
    assert made.swarm.states == {"waiting": 3}


def test_a_hidden_node_is_one_that_others_are_connected_with() -> None:
    away = peer(D, connected=False)
    made = document(status(A, peer(B), peer(HIDDEN), away), status(B, peer(A), peer(HIDDEN)))
    hidden = views(made)[HIDDEN]
    assert hidden.reach == "behind NAT"
    assert hidden.state == "seen by 2 of 2 nodes"
    assert hidden.seen is not None
    assert hidden.seen.last_contact_seconds == 4
    assert made.swarm is not None
    assert (made.swarm.behind_nat, made.swarm.known_by_name) == (1, 1)
    assert D not in views(made)


def test_of_a_walk_that_was_stopped_who_was_not_asked_is_not_called_hidden() -> None:
    answers = [Answer("h:1", True, A, status(A, peer(B), peer(HIDDEN))), Answer("h:2", False, HIDDEN, None, "no")]
    made = health_document(answers, asked_at_ms=NOW, bounds=bounds(stopped_by="nodes", not_asked=1))
    assert {peer_id: view.reach for peer_id, view in views(made).items()} == {
        A: "answers",
        B: "not asked",
        HIDDEN: "behind NAT",
    }
    assert made.swarm is not None
    assert (made.swarm.behind_nat, made.swarm.no_answer, sizes(made.swarm)) == (1, 0, [3])


def test_a_connection_that_only_one_of_two_names_is_none() -> None:
    assert sizes(summary(status(A, peer(B)), status(B))) == [1, 1]
    cut_off = tuple(peer(f"{number:064x}") for number in range(100))
    swarm = summary(status(A, peer(B)), status(B, *cut_off))
    assert A in swarm.partitions[0].nodes, "of a list that was cut off the other's word has to do"


def test_a_node_behind_nat_can_hold_a_swarm_together() -> None:
    assert sizes(summary(status(A, peer(HIDDEN)), status(B, peer(HIDDEN)))) == [3]


def test_mallory_vouches_for_a_bounded_number_of_hidden_nodes() -> None:
    invented = [peer(f"{number:064x}") for number in range(400)]
    swarm = summary(status(A), status(MALLORY, *invented))
    assert swarm.behind_nat == MOST_VOUCHED
    assert swarm.known_by_name == 400 - MOST_VOUCHED


def test_what_is_no_peer_id_is_nobody() -> None:
    made = document(status(A, peer("\x1b[2J" + "0" * 60), peer("short"), peer(A)))
    assert views(made).keys() == {A}


def test_one_node_of_two_addresses_counts_once() -> None:
    made = document(status(A, peer(B)), status(B, peer(A)), status(B, peer(A)))
    assert made.swarm is not None
    assert made.swarm.answered == 2


@pytest.mark.parametrize(
    ("ill", "healthy", "level"), [(1, 20, Level.HEALTHY), (3, 20, Level.DEGRADED), (1, 3, Level.DEGRADED)]
)
def test_a_strangers_trouble_is_not_the_swarm_s_but_that_of_many_is(ill: int, healthy: int, level: Level) -> None:
    ids = [f"{number:064x}" for number in range(ill + healthy)]
    everybody = [
        status(own, *(peer(other) for other in ids if other != own), learner="running" if n >= ill else "starting")
        for n, own in enumerate(ids)
    ]
    assert level_of(document(*everybody, named=0)) is level
    assert level_of(document(*everybody, named=1)) is Level.DEGRADED, "the first one was named, and is ill"


def test_mallory_s_counts_can_t_drown_what_the_others_say_of_an_honest_node() -> None:
    said = {"accepted_groups": 40, "rejected_groups": 2, "sequences": 100, "trained": 90}
    lie = {"accepted_groups": 0, "rejected_groups": 2**62, "sequences": 2**62, "filtered": 2**62}
    of_a = RejectionStatus(peer_id=A, reason="reward", blame="author", count=2, detail="")
    lied = of_a.model_copy(update={"count": 2**62, "reason": "made up"})
    made = document(
        *(status(other, peer(A, **said), rejections=(of_a,)) for other in (B, C, D)),
        status(MALLORY, peer(A, **lie), rejections=(lied,)),
        status(A),
    )
    seen = views(made)[A].seen
    assert seen is not None
    assert (seen.accepted_groups, seen.sequences) == (120, 300 + MOST_WEIGHT * 100)
    assert seen.rejected_groups == 6 + MOST_WEIGHT * 42
    assert made.swarm is not None
    assert (made.swarm.accepted_groups, made.swarm.rejected_groups) == (120, seen.rejected_groups)
    assert made.swarm.rejections == {"reward": 6, "made up": MOST_WEIGHT * 2}


@pytest.mark.parametrize("lie", [{}, {"run_id": OTHER_RUN}])
def test_mallory_s_node_that_keeps_to_itself_neither_splits_nor_mixes_a_swarm(lie: dict[str, object]) -> None:
    """She answers, is connected with nobody but a hundred peers that she has invented, or is in another run."""
    ids = [f"{number:064x}" for number in range(11)]
    honest = [status(own, *(peer(other) for other in ids if other != own)) for own in ids]
    invented = [peer(f"{number:064x}") for number in range(1000, 1100)]
    made = document(*honest, status(MALLORY, *invented, **lie))
    assert (level_of(made), made.swarm is not None and made.swarm.reasons) == (Level.HEALTHY, ())
    named = document(*honest, status(MALLORY, *invented, **lie), named=12)
    assert level_of(named) is Level.DEGRADED, "whoever names her wants to know"
    two = document(*honest[:10], status(MALLORY, **lie), status(HIDDEN, **lie))
    assert level_of(two) is Level.DEGRADED, "more than a tenth"


def test_levels_of_a_swarm() -> None:
    assert level_of(health_document([], asked_at_ms=NOW, bounds=bounds())) is Level.UNREACHABLE
    assert "no node answers" in text_of(health_document([], asked_at_ms=NOW, bounds=bounds()))
    lost = [Answer("h:1", True, None, None, "does not answer"), Answer("h:0", False, A, status(A))]
    made = health_document(lost, asked_at_ms=NOW, bounds=bounds())
    assert level_of(made) is Level.DEGRADED
    assert made.swarm is not None
    assert made.swarm.reasons == ("h:1 is unreachable: does not answer",)
    mixed = document(status(A), status(B, run_id=OTHER_RUN), named=0)
    assert level_of(mixed) is Level.DEGRADED
    assert "nodes of 2 runs are mixed: 1 in abababababab, 1 in cdcdcdcdcdcd" in text_of(mixed)


def test_versions_models_and_rejections_are_added_up() -> None:
    refused = RejectionStatus(peer_id=B, reason="reward", blame="author", count=3, detail="x")
    swarm = summary(
        status(
            A, peer(B, accepted_groups=9, rejected_groups=3), version="2", published_lately=10, rejections=(refused,)
        ),
        status(B, peer(A), model="", learner="none: this is a relay", published_lately=5),
    )
    assert swarm.versions == {"2": 1, "1": 1}
    assert swarm.models == {"tiny": 1, "relay": 1}
    assert (swarm.batches_per_minute, swarm.rejected_share) == (3.0, 0.25)
    assert swarm.rejections == {"reward": 3}


def test_whom_an_author_helps_is_counted_over_the_nodes_that_trained_on_it() -> None:
    def used(agreement: Agreement) -> PeerStatus:
        return peer(C, sequences=8, trained=5, filtered=2, agreement=agreement)

    made = document(
        status(A, used(HELPS), peers_agreement=HELPS),
        status(B, used(HARMS), peers_agreement=HARMS),
        status(D, used(Agreement(measured=2, mean=0.5))),
        status(C, peer(A), peer(B), peer(D)),
    )
    seen = views(made)[C].seen
    assert seen is not None
    assert (seen.helps, seen.harms, seen.unknown) == (1, 1, 1)
    assert (seen.sequences, seen.trained, seen.filtered) == (24, 15, 6)
    assert made.swarm is not None
    assert (made.swarm.swarm_helps, made.swarm.swarm_harms, made.swarm.swarm_unknown) == (1, 1, 2)
    assert "yes for 1 of the nodes, it harms 1, unknown for 2" in text_of(made)


def test_what_was_measured_is_said_with_its_number() -> None:
    assert HELPS.in_words() == "helps (+0.20, from +0.10 to +0.30 over 10 measurements)"
    assert Agreement(measured=2, mean=0.5).in_words() == "unknown (2 of 4 measurements)"


def test_a_state_says_what_for_since_when_and_until_when() -> None:
    page = text_of(document(status(A, activity_until_ms=NOW + 16_000)))
    assert "waiting for 2 peers' groups, 14 s, at most 16 s more" in page
    dead = status(A, learner="died (killed by signal SIGKILL), restarting", learner_until_ms=NOW + 2000)
    assert "learner died (killed by signal SIGKILL), restarting in 2 s" in text_of(document(dead))
    lonely = status(A, run_id=None, run_name=None, network="waiting for the run manifest: does not answer (h:1)",
                    network_since_ms=NOW - 5000, network_until_ms=NOW + 30_000, learner="starting")  # fmt: skip
    page = text_of(health_document([Answer("home", True, A, lonely)], asked_at_ms=NOW, bounds=None))
    assert "waiting for the run manifest: does not answer (h:1), 5 s, at most 30 s more" in page


def test_a_clock_that_differs_is_told() -> None:
    for ahead_ms, expected in (
        (3_600_000, "its clock is 60 min ahead of this"),
        (-9000, "its clock is 9 s behind this"),
    ):
        answer = Answer("h:1", True, A, status(A), clock_ahead_ms=ahead_ms)
        assert expected in text_of(health_document([answer], asked_at_ms=NOW, bounds=None))
    answer = Answer("h:1", True, A, status(A), clock_ahead_ms=900)
    assert "its clock" not in text_of(health_document([answer], asked_at_ms=NOW, bounds=None))


def test_where_the_walk_stopped_is_said() -> None:
    page = text_of(document(status(A), stopped_by="nodes", not_asked=37))
    assert "stopped at 500 nodes (--max-nodes); 37 known peers were not asked" in page
    page = text_of(document(status(A), stopped_by="time", not_asked=1))
    assert "stopped at 10 s (--timeout); 1 known peers were not asked" in page


def test_mallory_s_strings_can_not_move_the_cursor_nor_style_nor_fill_the_screen() -> None:
    evil = "\x1b[2J[red]evil[/]\r\u202e" + "x" * 250
    refused = RejectionStatus(peer_id=B, reason=evil[:100], blame="author", count=3, detail=evil)
    hostile = status(
        MALLORY, peer(HIDDEN, model=evil[:100], version=evil[:40]), version=evil[:40], model=evil,
        activity=evil, run_name=evil[:64], dht=evil, memory=evil, faults=(evil,), rejections=(refused,), listening=evil,
    )  # fmt: skip
    for made in (
        document(hostile),
        health_document([Answer(evil, True, MALLORY, hostile)], asked_at_ms=NOW, bounds=None),
    ):
        page = text_of(made)
        assert not {"\x1b", "\r", "\u202e"} & set(page)
        assert "[red]evil[/]" in page
        assert len(page) < 20_000


def test_the_document_of_a_swarm_holds_of_each_node_only_those_connected() -> None:
    made = document(status(A, peer(B), peer(C, connected=False)), status(B, peer(A)))
    held = views(made)[A].status
    assert held is not None
    assert [p.peer_id for p in held.peers] == [B]
    assert HealthDocument.model_validate_json(made.model_dump_json()) == made


def test_a_node_that_loads_its_model_is_no_relay() -> None:
    """Only who says that it is a relay is counted as one; one that had a model in an earlier life is none now."""
    loading = status(A, model="", parameters=0, trainable_parameters=0, activity="loading the run's data and the model")
    relays = status(B, learner="none: this is a relay", model=""), status(C, learner="none: this is a relay")
    made = document(loading, *relays, status(D))
    assert made.swarm is not None
    assert made.swarm.models == {"not loaded yet": 1, "relay": 2, "tiny": 1}
    assert text_of(made).count("not loaded yet") == 2, "in the summary and in the node's row"
