"""Who is at the other end: impersonation, relayed hellos, a man in the middle, minted certificates."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ftis_node.errors import HomeError, WireError
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.dialing import fetch_run, open_channel
from ftis_node.swarm.handshake import (
    Refused,
    check_client_hello,
    check_server_hello,
    client_hello,
    server_hello,
)
from ftis_node.swarm.records import LONGEST_LIFETIME_MS, NodeRecord, open_record, seal_record
from ftis_node.swarm.service import bind
from ftis_node.swarm.tls import Certificate, fetch_certificate, load_or_create_certificate
from ftis_node.types import RunId
from ftis_node.wire.limits import MAX_RECORD_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb
from ftis_node.wire.v1 import swarm_pb2_grpc as rpc
from tests.builders import ALICE as ALICE_ID
from tests.swarm.test_gossip import OTHER_RUN, Node, self_of, until

NOW = 1_800_000_000_000
NONCE = b"n" * 32
ALICE, BOB, MALLORY = self_of(1), self_of(2), self_of(200)


def hello_to_alice(nonce: bytes = NONCE, at_ms: int = NOW) -> pb.Frame:
    return client_hello(BOB, server_key_sha256=ALICE.certificate.public_key_sha256, nonce=nonce, now_ms=at_ms)


def test_an_honest_hello_is_accepted_by_the_server_it_was_made_for() -> None:
    record = check_client_hello(hello_to_alice(), ALICE, nonce=NONCE, now_ms=NOW)
    assert record.peer_id == BOB.peer_id
    answer = check_server_hello(
        server_hello(ALICE, now_ms=NOW), BOB, certificate_sha256=ALICE.certificate.sha256, expected=ALICE.peer_id,
        now_ms=NOW,
    )  # fmt: skip
    assert answer.peer_id == ALICE.peer_id


def test_mallory_relays_bobs_hello_to_alice() -> None:
    """Bob dials Mallory; what he signs is bound to her key and is worth nothing at Alice's."""
    to_mallory = client_hello(BOB, server_key_sha256=MALLORY.certificate.public_key_sha256, nonce=NONCE, now_ms=NOW)
    with pytest.raises(WireError, match="not signed for this connection"):
        check_client_hello(to_mallory, ALICE, nonce=NONCE, now_ms=NOW)


def test_mallory_replays_a_hello_that_bob_made_for_alice() -> None:
    with pytest.raises(WireError, match="not signed for this connection"):
        check_client_hello(hello_to_alice(), ALICE, nonce=b"another nonce of 32 bytes, drawn!", now_ms=NOW)


def test_mallory_shows_alices_record_behind_her_own_certificate() -> None:
    with pytest.raises(Refused, match="somebody may be between"):
        check_server_hello(
            server_hello(ALICE, now_ms=NOW),
            BOB,
            certificate_sha256=MALLORY.certificate.sha256,
            expected=None,
            now_ms=NOW,
        )


def test_mallory_answers_where_alice_is_expected() -> None:
    with pytest.raises(Refused, match=f"{MALLORY.peer_id.hex()} answers instead of"):
        check_server_hello(
            server_hello(MALLORY, now_ms=NOW), BOB, certificate_sha256=MALLORY.certificate.sha256,
            expected=ALICE.peer_id, now_ms=NOW,
        )  # fmt: skip


def test_mallory_puts_alices_peer_id_into_her_own_record() -> None:
    forged = replace(MALLORY, identity=replace(MALLORY.identity, peer_id=ALICE.peer_id))
    with pytest.raises(WireError, match="signature is not its node's"):
        check_server_hello(
            server_hello(forged, now_ms=NOW), BOB, certificate_sha256=MALLORY.certificate.sha256, expected=None,
            now_ms=NOW,
        )  # fmt: skip


def test_a_clock_that_is_wrong_is_said_plainly() -> None:
    hello = hello_to_alice(at_ms=NOW - 300_000)
    with pytest.raises(Refused, match="differ by 300 s: one of them is wrong"):
        check_client_hello(hello, ALICE, nonce=NONCE, now_ms=NOW)


def test_another_run_the_node_itself_and_a_second_daemon_are_told_apart() -> None:
    def refused(client) -> str:
        hello = client_hello(client, server_key_sha256=ALICE.certificate.public_key_sha256, nonce=NONCE, now_ms=NOW)
        with pytest.raises(Refused) as caught:
            check_client_hello(hello, ALICE, nonce=NONCE, now_ms=NOW)
        return str(caught.value)

    assert "the peer is in run" in refused(self_of(2, OTHER_RUN))
    assert refused(ALICE) == "this is the node itself"


# --- node records -----------------------------------------------------------------------------


def record(**changes: Any) -> NodeRecord:
    honest = NodeRecord(
        peer_id=ALICE_ID.peer_id, addresses=(Address("10.0.0.1", 5),), certificate_sha256=b"c" * 32,
        run_id=RunId(b"r" * 32), model="m", version="1", listen_port=5, instance=b"i" * 16, created_at_ms=NOW,
        expires_at_ms=NOW + 1000,
    )  # fmt: skip
    return replace(honest, **changes)


def test_a_record_comes_back() -> None:
    assert open_record(seal_record(record(), ALICE_ID), now_ms=NOW) == record()


def test_a_record_with_any_byte_changed_is_refused() -> None:
    sealed = seal_record(record(), ALICE_ID)
    for position in range(len(sealed)):
        changed = bytearray(sealed)
        changed[position] ^= 1
        with contextlib.suppress(WireError):
            # A changed field number outside what is signed may make protobuf skip the signature only.
            assert open_record(bytes(changed), now_ms=NOW) == record()


@pytest.mark.parametrize(
    ("changes", "now_ms", "message"),
    [
        ({}, NOW + 1001, "has expired"),
        ({"created_at_ms": NOW + 200_000, "expires_at_ms": NOW + 300_000}, NOW, "from the future"),
        ({"dht_addresses": ("/ip4/1.1.1.1",) * 5}, NOW, "5 addresses"),
        ({"expires_at_ms": NOW + LONGEST_LIFETIME_MS + 1}, NOW, "would live too long"),
        ({"instance": b"short"}, NOW, "wrong length"),
        ({"certificate_sha256": b""}, NOW, "wrong length"),
        ({"listen_port": 70_000}, NOW, "port 70000"),
        ({"addresses": (Address("h", 1),) * 5}, NOW, "5 addresses"),
        ({"addresses": (Address("h", 0),)}, NOW, "the port must be"),
    ],
)
def test_records_that_no_honest_node_makes(changes: dict[str, object], now_ms: int, message: str) -> None:
    with pytest.raises(WireError, match=message):
        open_record(seal_record(record(**changes), ALICE_ID), now_ms=now_ms)


def test_a_record_beyond_one_kibibyte() -> None:
    with pytest.raises(WireError, match="at most 1024"):
        seal_record(record(model="x" * 1000), ALICE_ID)
    with pytest.raises(WireError, match="at most 1024"):
        open_record(b"\0" * (MAX_RECORD_BYTES + 1), now_ms=NOW)


# --- over real connections --------------------------------------------------------------------


def test_a_man_in_the_middle_at_the_first_contact_with_the_peer_id_given() -> None:
    async def scenario() -> None:
        mallory = Node(200)
        async with mallory.serving():
            address = Address("127.0.0.1", mallory.port, ALICE.peer_id)
            with pytest.raises(Refused, match="answers instead of"):
                await fetch_run(address, None)

    asyncio.run(scenario())


def test_without_a_peer_id_the_first_who_answers_is_remembered_and_a_change_raises_an_alarm() -> None:
    async def scenario() -> None:
        first, bob = Node(3), Node(2)
        async with first.serving(), bob.serving(first):
            await until(lambda: bob.gossip.sessions, "the first contact")
        mallory = Node(200)
        mallory.port = first.port
        bob.dials.clear()
        async with mallory.serving(), bob.serving(first):
            await until(lambda: any("answers instead of" in dial for dial in bob.dials), "the alarm")
            assert not bob.gossip.sessions

    asyncio.run(scenario())


def mint(issuer: Certificate) -> Certificate:
    """A certificate in the same name, signed by somebody's node certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(issuer.key_pem, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ftis-node")])
    now = datetime.datetime.now(datetime.UTC)
    minted = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.load_pem_x509_certificate(issuer.pem).subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("ftis-node")]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    pem = minted.public_bytes(serialization.Encoding.PEM) + issuer.pem
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Certificate(pem, key_pem)


@contextlib.asynccontextmanager
async def tls_server(certificate: Certificate) -> AsyncIterator[Address]:
    server, port = await bind(Address("127.0.0.1", 0), certificate.server_credentials())
    rpc.add_SwarmServicer_to_server(rpc.SwarmServicer(), server)
    await server.start()
    try:
        yield Address("127.0.0.1", port)
    finally:
        await server.stop(grace=0)


def test_a_pinned_peer_mints_a_certificate_in_anothers_name() -> None:
    """Mallory, whose certificate Bob has pinned, signs another one with it: TLS must not take it."""

    async def scenario() -> None:
        async with (
            tls_server(mint(MALLORY.certificate)) as address,
            open_channel(address, MALLORY.certificate.pem) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.SwarmStub(channel).GetStatus(pb.StatusRequest(), timeout=5)
            assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)

    asyncio.run(scenario())


def test_a_channel_speaks_to_the_pinned_certificate_alone() -> None:
    async def scenario() -> None:
        async with tls_server(MALLORY.certificate) as address, open_channel(address, ALICE.certificate.pem) as channel:
            with pytest.raises(grpc.aio.AioRpcError):
                await rpc.SwarmStub(channel).GetStatus(pb.StatusRequest(), timeout=5)

    asyncio.run(scenario())


def test_a_server_that_does_not_speak_tls_and_one_that_is_not_there() -> None:
    async def scenario() -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(WireError, match="is it an ftis-node"):
                await fetch_certificate(Address("127.0.0.1", port))
        with pytest.raises(WireError, match="can't be reached"):
            await fetch_certificate(Address("127.0.0.1", port))

    asyncio.run(scenario())


def test_the_certificate_of_a_home_stays(tmp_path: Path) -> None:
    first = load_or_create_certificate(tmp_path)
    assert load_or_create_certificate(tmp_path) == first
    assert (tmp_path / "tls.pem").stat().st_mode & 0o077 == 0
    (tmp_path / "tls.pem").write_bytes(b"damaged")
    with pytest.raises(HomeError, match="damaged; delete it"):
        load_or_create_certificate(tmp_path)
