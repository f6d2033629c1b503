"""Who is at the other end: the two hellos and their checks. Pure but for the clock that callers pass in.

The client goes first. Its hello is signed over the server's public key and a nonce that the server drew for
this stream, so that nobody can pass it on. The server's hello carries its node record, whose certificate
hash must be that of the certificate that TLS pinned.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftis_node.errors import WireError
from ftis_node.identity import HELLO_DOMAIN, Identity, verify_signature
from ftis_node.manifest import Run
from ftis_node.swarm.addresses import Address
from ftis_node.swarm.records import LIFETIME_MS, NodeRecord, open_record, seal_record
from ftis_node.swarm.tls import Certificate
from ftis_node.types import PeerId, short_id
from ftis_node.wire.v1 import swarm_pb2 as pb

NONCE_BYTES = 32
NONCE_KEY = "ftis-nonce-bin"
HELLO_SKEW_MS = 120_000


class Refused(WireError):
    """The other side can't be a neighbour, and trying again soon won't change that."""


@dataclass
class Reach:
    """How this node can be reached and what it trains, as far as it has been found out by now."""

    addresses: tuple[Address, ...] = ()
    dht_addresses: tuple[str, ...] = ()
    tokenizer_fingerprint: bytes = b""


@dataclass(frozen=True)
class Self:
    """What this node says of itself."""

    identity: Identity
    certificate: Certificate
    run: Run
    version: str
    model: str
    reach: Reach
    listen_port: int
    instance: bytes
    membership: bytes = b""

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def record(self, now_ms: int) -> bytes:
        """A fresh signed node record."""
        return seal_record(
            NodeRecord(
                peer_id=self.peer_id,
                addresses=self.reach.addresses,
                dht_addresses=self.reach.dht_addresses,
                tokenizer_fingerprint=self.reach.tokenizer_fingerprint,
                certificate_sha256=self.certificate.sha256,
                run_id=self.run.run_id,
                model=self.model[:100],
                version=self.version,
                listen_port=self.listen_port,
                instance=self.instance,
                created_at_ms=now_ms,
                expires_at_ms=now_ms + LIFETIME_MS,
                membership=self.membership,
            ),
            self.identity,
        )


def client_hello(own: Self, *, server_key_sha256: bytes, nonce: bytes, now_ms: int) -> pb.Frame:
    """The first frame of a stream, fit for this server and this stream only."""
    bound = _bound(server_key_sha256, nonce, own.run.run_id, now_ms)
    signature = own.identity.sign(HELLO_DOMAIN, bound)
    return pb.Frame(hello=pb.Hello(record=own.record(now_ms), at_ms=now_ms, signature=signature))


def server_hello(own: Self, *, now_ms: int) -> pb.Frame:
    """The answer; its record is bound to the certificate that the client has pinned."""
    return pb.Frame(hello=pb.Hello(record=own.record(now_ms)))


def check_client_hello(frame: pb.Frame, own: Self, *, nonce: bytes, now_ms: int) -> NodeRecord:
    """The client's record if it proves its identity to this server. Raises WireError or Refused."""
    record = _open_hello(frame, own, now_ms)
    at_ms = frame.hello.at_ms
    if abs(at_ms - now_ms) > HELLO_SKEW_MS:
        raise Refused(f"your clock and mine differ by {abs(at_ms - now_ms) / 1000:.0f} s: one of them is wrong")
    bound = _bound(own.certificate.public_key_sha256, nonce, record.run_id, at_ms)
    if not verify_signature(record.peer_id, HELLO_DOMAIN, bound, frame.hello.signature):
        raise WireError("the hello is not signed for this connection")
    return record


def check_server_hello(
    frame: pb.Frame, own: Self, *, certificate_sha256: bytes, expected: PeerId | None, now_ms: int
) -> NodeRecord:
    """The server's record if it is the owner of the pinned certificate. Raises WireError or Refused."""
    if frame.WhichOneof("kind") == "goodbye":
        raise Refused(f"the peer refused: {frame.goodbye.reason[:160]}")
    record = _open_hello(frame, own, now_ms)
    check_server_record(record, certificate_sha256=certificate_sha256, expected=expected)
    return record


def check_server_record(record: NodeRecord, *, certificate_sha256: bytes, expected: PeerId | None) -> None:
    """Raises Refused unless the record names the certificate that was seen, and the peer that was expected."""
    if record.certificate_sha256 != certificate_sha256:
        raise Refused(
            f"{short_id(record.peer_id)} names another certificate than the one that answers here: somebody may be"
            " between"
        )
    if expected is not None and record.peer_id != expected:
        raise Refused(
            f"peer {record.peer_id.hex()} answers instead of {short_id(expected)}; if it was replaced on purpose, give"
            " --peers that-id@host:port"
        )


def _open_hello(frame: pb.Frame, own: Self, now_ms: int) -> NodeRecord:
    if frame.WhichOneof("kind") != "hello":
        raise WireError("the first frame isn't a hello")
    record = open_record(frame.hello.record, now_ms=now_ms)
    if record.run_id != own.run.run_id:
        raise Refused(f"the peer is in run {short_id(record.run_id)}, this node in {short_id(own.run.run_id)}")
    if record.instance == own.instance:
        raise Refused("this is the node itself")
    return record


def _bound(server_key_sha256: bytes, nonce: bytes, run_id: bytes, at_ms: int) -> bytes:
    return server_key_sha256 + nonce + run_id + at_ms.to_bytes(8, "big")
