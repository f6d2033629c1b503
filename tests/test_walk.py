"""The walk through a swarm of real nodes on loopback, and what hostile ones can do to it."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from ftis_node.clock import now_ms
from ftis_node.identity import Identity
from ftis_node.status.judgement import Level
from ftis_node.status.snapshot import DialStatus, read_status
from ftis_node.status.summary import Answer, health_document, level_of
from ftis_node.status.swarm_view import HealthDocument, NodeView
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.service import SwarmService
from ftis_node.walk import NAMED_SECONDS, NODE_SECONDS, Walk, WalkLimits
from ftis_node.wire.v1 import swarm_pb2 as pb
from tests.builders import make_run
from tests.halves import Answers, Half, answering, only_dialling, running_half, running_halves


async def walked(
    named: Sequence[Address], *, max_nodes: int = 500, seconds: float = 20.0, own: Half | None = None
) -> HealthDocument:
    status = None if own is None else read_status(own.home)
    walk = Walk(
        WalkLimits(max_nodes, seconds), None if status is None else Answer("home", True, status.peer_id, status)
    )
    bounds = await walk.run(named)
    return health_document(walk.answers, asked_at_ms=now_ms(), bounds=bounds)


def by_id(document: HealthDocument) -> dict[str | None, NodeView]:
    return {node.peer_id: node for node in document.nodes}


CHAIN = ((), (0,), (1,), (2,), (3,), (4,))


def test_from_one_end_of_a_chain_the_other_is_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, CHAIN) as halves:
            document = await walked([halves[0].address])
            swarm, nodes = document.swarm, by_id(document)
            assert swarm is not None
            assert nodes.keys() == {half.peer_id for half in halves}
            assert (swarm.level, swarm.reasons) == ("healthy", ())
            assert [len(part.nodes) for part in swarm.partitions] == [len(CHAIN)]
            assert (swarm.answered, swarm.no_answer, swarm.known_by_name) == (len(CHAIN), 0, 0)
            assert swarm.states == {"relay": len(CHAIN)}
            assert document.bounds is not None
            assert document.bounds.stopped_by is None
            middle = nodes[halves[2].peer_id].seen
            assert middle is not None
            assert (middle.asked, middle.connected_to, middle.dialled_by) == (5, 2, 1)
            first = nodes[halves[0].peer_id]
            assert first.named
            assert first.status is not None
            assert [peer.connected for peer in first.status.peers] == [True]

    asyncio.run(scenario())


def test_from_a_home_its_own_peers_are_walked_and_the_node_itself_is_not_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, CHAIN) as halves:
            document = await walked([], own=halves[5])
            assert by_id(document).keys() == {half.peer_id for half in halves}
            assert document.nodes[0].asked == "home"
            assert document.bounds is not None
            assert document.bounds.asked == len(CHAIN) - 1

    asyncio.run(scenario())


def test_both_bounds_are_kept_and_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,), (0,), (0,), (0,))) as halves:
            few = (await walked([halves[0].address], max_nodes=2)).bounds
            assert few is not None
            assert (few.asked, few.stopped_by, few.not_asked) == (2, "nodes", 3)
            short = await walked([halves[0].address], seconds=0.001)
            assert short.bounds is not None
            assert short.bounds.stopped_by == "time"
            assert level_of(short) is Level.UNREACHABLE

    asyncio.run(scenario())


def test_a_node_that_only_dials_out_is_known_from_its_neighbours(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running_halves(tmp_path, ((), (0,), (1,))) as halves,
            only_dialling(halves[0], halves[1]) as hidden,
        ):
            document = await walked([halves[0].address])
            view = by_id(document)[hidden]
            assert (view.reach, view.status, view.level) == ("behind NAT", None, "healthy")
            assert view.seen is not None
            assert (view.seen.connected_to, view.seen.dialled_by, view.seen.asked) == (2, 0, 3)
            assert (view.seen.model, view.seen.version) == ("tiny", "0.0.9")
            assert view.seen.last_contact_seconds is not None
            assert document.swarm is not None
            assert (document.swarm.behind_nat, document.swarm.level) == (1, "healthy")
            assert len(document.swarm.versions) == 2
            assert hidden in document.swarm.partitions[0].nodes

    asyncio.run(scenario())


def test_a_swarm_in_two_parts_is_degraded_and_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,), (0,), (), (3,))) as halves:
            document = await walked([halves[0].address, halves[3].address])
            assert document.swarm is not None
            assert [len(part.nodes) for part in document.swarm.partitions] == [3, 2]
            assert "is split into 2 parts of 3 and 2 nodes" in document.swarm.reasons[0]
            assert level_of(document) is Level.DEGRADED

    asyncio.run(scenario())


def test_two_runs_are_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            running_half(tmp_path / "a", run=make_run("one")) as a,
            running_half(tmp_path / "b", run=make_run("two")) as b,
        ):
            document = await walked([a.address, b.address])
            assert document.swarm is not None
            assert sorted(document.swarm.runs.values()) == [1, 1]
            assert "nodes of 2 runs are mixed" in document.swarm.reasons[0]

    asyncio.run(scenario())


def test_a_node_of_a_version_that_sends_no_record_shows_it_with_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_record(service: SwarmService, request: object, context: object) -> pb.StatusReply:
        return pb.StatusReply(status_json=await service._status())

    monkeypatch.setattr(SwarmService, "GetStatus", without_record)

    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,))) as halves:
            document = await walked([halves[0].address])
            assert document.swarm is not None
            assert document.swarm.answered == 2

    asyncio.run(scenario())


def test_a_peer_that_the_own_node_was_told_to_dial_and_never_reached_is_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_half(tmp_path / "a") as a, running_half(tmp_path / "b") as b:
            status = read_status(a.home)
            dial = DialStatus(address=b.address.target, state="does not answer", since_ms=0, retry_at_ms=None)
            own = Answer("home", True, status.peer_id, status.model_copy(update={"dials": (dial,)}))
            walk = Walk(WalkLimits(500, 10.0), own)
            await walk.run([])
            assert [answer.peer_id for answer in walk.answers] == [a.peer_id, b.peer_id]

    asyncio.run(scenario())


def test_only_those_named_are_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,))) as halves:
            walk = Walk(WalkLimits(500, 10.0, follow=False))
            await walk.run([halves[0].address, Address("127.0.0.1", 1)])
            document = health_document(walk.answers, asked_at_ms=0, bounds=None)
            assert sorted(node.reach for node in document.nodes) == ["answers", "no answer"]
            assert document.swarm is None
            assert level_of(document) is Level.UNREACHABLE

    asyncio.run(scenario())


# --- Mallory answers --------------------------------------------------------------------------


async def beside_mallory(folder: Path, answers: Answers, seconds: float = 20.0) -> tuple[NodeView, HealthDocument]:
    """A walk from Mallory and an honest node: all three honest nodes are found; what is shown of Mallory."""
    async with running_halves(folder, ((), (0,), (1,))) as halves, answering(answers) as mallory:
        started = time.monotonic()
        document = await walked([mallory, halves[0].address], seconds=seconds, max_nodes=60)
        assert time.monotonic() - started < seconds + 5
        nodes = by_id(document)
        assert all(nodes[half.peer_id].level == "healthy" for half in halves)
        assert mallory.peer_id is not None
        return nodes[mallory.peer_id.hex()], document


def honest_status(identity: Identity, folder: Path, **changes: object) -> bytes:
    status = read_status(folder / "node-0").model_copy(update={"peer_id": identity.peer_id.hex()})
    return json.dumps(json.loads(status.model_dump_json()) | changes).encode()


def test_mallory_never_answers(tmp_path: Path) -> None:
    async def answers(_: Identity) -> bytes:
        await asyncio.sleep(60)
        return b""

    view, document = asyncio.run(beside_mallory(tmp_path, answers))
    assert view.reasons == ("does not answer within 5 s",)
    assert document.swarm is not None
    assert document.swarm.level == "degraded", "she was named on the command line"


def test_mallory_s_server_sends_a_byte_a_second(tmp_path: Path) -> None:
    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"\x16\x03\x03\x40\x00")  # a TLS record of 16 KiB begins
            while True:
                writer.write(b"\x00")
                await writer.drain()
                await asyncio.sleep(0.2)
        finally:
            writer.transport.abort()

    async def scenario() -> None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        async with server, running_halves(tmp_path, ((), (0,))) as halves:
            port = server.sockets[0].getsockname()[1]
            started = time.monotonic()
            document = await walked([Address("127.0.0.1", port), halves[0].address])
            assert time.monotonic() - started < NAMED_SECONDS + 5
            assert document.swarm is not None
            assert document.swarm.answered == 2

    asyncio.run(scenario())


def test_mallory_answers_with_four_mebibytes(tmp_path: Path) -> None:
    async def answers(_: Identity) -> bytes:
        return b'{"model": "' + b"x" * (4 * 1024 * 1024 - 4096) + b'"}'

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert view.reasons == ("answers with more than a status may have",)


def test_mallory_nests_deeply(tmp_path: Path) -> None:
    async def answers(_: Identity) -> bytes:
        return b'{"peers": ' + b"[" * 1_000_000

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert "can't be read" in view.reasons[0]


def test_mallory_sends_numbers_of_four_thousand_digits(tmp_path: Path) -> None:
    async def answers(identity: Identity) -> bytes:
        return honest_status(identity, tmp_path).replace(b'"round": 0', b'"round": ' + b"9" * 4000)

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert "can't be read" in view.reasons[0]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_mallory_sends_seconds_that_are_no_number(tmp_path: Path, number: str) -> None:
    async def answers(identity: Identity) -> bytes:
        report = {"round": 1, "own_groups": 1, "peer_groups": 1, "stepped": True, "seconds": {"generating": 12345.5}}
        return honest_status(identity, tmp_path, last_round=report).replace(b"12345.5", number.encode())

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert "can't be read" in view.reasons[0]


def test_of_mallory_s_longest_answer_little_is_kept(tmp_path: Path) -> None:
    """With 500 identities she could fill a gigabyte of the asker's memory, and his terminal."""

    async def answers(identity: Identity) -> bytes:
        counts = {f"{number:064d}": 1 for number in range(3000)}
        origin = {"excluded": counts}
        report = {
            "round": 1, "own_groups": 1, "peer_groups": 1, "stepped": False, "skipped_reason": "x" * 100_000,
            "used_authors": counts, "own": origin, "peers": origin, "totals": {"own": origin, "peers": origin},
        }  # fmt: skip
        dial = {"address": "h" * 300, "state": "s" * 300, "since_ms": 0, "retry_at_ms": None}
        rejection = {"peer_id": "", "reason": "r" * 100, "blame": "author", "count": 1, "detail": "d" * 300}
        lists = {"dials": [dial] * 500, "rejections": [rejection] * 500}
        return honest_status(identity, tmp_path, last_round=report, **lists)

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert view.reach == "answers"
    assert len(view.model_dump_json()) < 150_000


def invented(count: int, port: int) -> list[dict[str, object]]:
    return [
        {"peer_id": f"{number:064x}", "address": f"127.0.0.1:{port}", "reached_ms": now_ms()} for number in range(count)
    ]


def test_mallory_names_ten_thousand_peers(tmp_path: Path) -> None:
    async def answers(identity: Identity) -> bytes:
        return honest_status(identity, tmp_path, addresses=invented(10_000, 1))

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert "can't be read" in view.reasons[0]


def test_mallory_names_as_many_invented_peers_as_she_may(tmp_path: Path) -> None:
    """They take their turns with the honest node's words, and whoever answers there is not who was named."""

    async def scenario() -> None:
        async with answering(_silence, seed=b"s" * 32) as silent:

            async def answers(identity: Identity) -> bytes:
                return honest_status(identity, tmp_path, addresses=invented(500, silent.port))

            view, document = await beside_mallory(tmp_path, answers)
            assert view.reach == "answers"
            assert document.bounds is not None
            assert (document.bounds.asked, document.bounds.stopped_by) == (60, "nodes")
            assert document.swarm is not None
            assert document.swarm.answered == 4
            assert len(document.nodes) == 4, "what nobody proves is counted and not listed"

    asyncio.run(scenario())


async def _silence(_: Identity) -> bytes:
    return b"{}"


def test_mallory_claims_to_be_connected_with_invented_peers_and_to_hold_a_split_swarm_together(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_halves(tmp_path, ((), (0,), (), (2,))) as halves:
            real = json.loads(read_status(tmp_path / "node-0").model_dump_json())["peers"][0]

            async def answers(identity: Identity) -> bytes:
                ids = [half.peer_id for half in halves] + [f"{number:064x}" for number in range(400)]
                peers = [real | {"peer_id": peer, "connected": True} for peer in ids]
                return honest_status(identity, tmp_path, peers=peers)

            async with answering(answers) as mallory:
                document = await walked([halves[0].address, halves[2].address, mallory])
            assert document.swarm is not None
            sizes = [len(part.nodes) for part in document.swarm.partitions]
            assert sorted(sizes[1:]) == [2, 2], "with the honest nodes she has no connection"
            assert document.swarm.behind_nat <= 100

    asyncio.run(scenario())


def test_mallory_answers_with_another_node_s_status(tmp_path: Path) -> None:
    async def answers(_: Identity) -> bytes:
        return read_status(tmp_path / "node-0").model_dump_json().encode()

    view, _ = asyncio.run(beside_mallory(tmp_path, answers))
    assert view.reasons == ("answers with the status of another node",)


def test_mallory_sends_the_asker_to_somebody_who_waits_for_ever(tmp_path: Path) -> None:
    """400 addresses at which a server takes connections and says nothing: each costs two seconds of one of 32."""

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.transport.abort()

    async def scenario() -> None:
        server = await asyncio.start_server(hold, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]

            async def answers(identity: Identity) -> bytes:
                return honest_status(identity, tmp_path, addresses=invented(400, port))

            view, document = await beside_mallory(tmp_path, answers, seconds=3 * NODE_SECONDS)
            assert view.reach == "answers"
            assert document.bounds is not None
            assert document.bounds.stopped_by in ("time", "nodes")

    asyncio.run(scenario())
