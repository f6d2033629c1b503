"""Node records: what a node says of itself, signed, at most 1 KiB, with an end."""

from __future__ import annotations

from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from ftis_node.errors import ConfigError, WireError
from ftis_node.identity import RECORD_DOMAIN, Identity, verify_signature
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.types import PeerId, RunId
from ftis_node.wire.limits import MAX_RECORD_BYTES
from ftis_node.wire.v1 import swarm_pb2 as pb

MAX_ADDRESSES = 4
LIFETIME_MS = 3_600_000
LONGEST_LIFETIME_MS = 24 * 3_600_000
SKEW_MS = 120_000


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Who a node is and where it can be reached; an empty ``addresses`` means that it can only dial out.

    ``listen_port`` is where it listens behind whatever address others see it come from. ``instance``
    (16 bytes) is drawn at every start: two of them at one time are two daemons with one identity.
    ``sealed`` is what a received record was read from.
    """

    peer_id: PeerId
    addresses: tuple[Address, ...]
    certificate_sha256: bytes
    run_id: RunId
    model: str
    version: str
    listen_port: int
    instance: bytes
    created_at_ms: int
    expires_at_ms: int
    membership: bytes = b""
    dht_addresses: tuple[str, ...] = ()
    tokenizer_fingerprint: bytes = b""
    sealed: bytes = field(default=b"", compare=False)


def seal_record(record: NodeRecord, identity: Identity) -> bytes:
    """The signed record as it travels. Raises WireError when it would be too large."""
    data = pb.NodeRecord(
        peer_id=record.peer_id,
        addresses=[address.target for address in record.addresses],
        certificate_sha256=record.certificate_sha256,
        run_id=record.run_id,
        model=record.model,
        version=record.version,
        listen_port=record.listen_port,
        instance=record.instance,
        created_at_ms=record.created_at_ms,
        expires_at_ms=record.expires_at_ms,
        membership=record.membership,
        dht_addresses=record.dht_addresses,
        tokenizer_fingerprint=record.tokenizer_fingerprint,
    ).SerializeToString(deterministic=True)
    sealed = pb.SignedRecord(record=data, signature=identity.sign(RECORD_DOMAIN, data)).SerializeToString()
    if len(sealed) > MAX_RECORD_BYTES:
        raise WireError(f"a node record of {len(sealed)} bytes; at most {MAX_RECORD_BYTES} are allowed")
    return sealed


def open_record(sealed: bytes, *, now_ms: int) -> NodeRecord:
    """A peer's record, if its signature holds and it is valid now. Raises WireError."""
    record = read_record(sealed)
    check_lifetime(record, now_ms=now_ms)
    return record


def check_lifetime(record: NodeRecord, *, now_ms: int) -> None:
    """Raises WireError unless the record is valid now."""
    if record.created_at_ms > now_ms + SKEW_MS:
        raise WireError("a node record that is from the future: a clock is wrong")
    if record.expires_at_ms < now_ms:
        raise WireError("a node record that has expired")


def read_record(sealed: bytes) -> NodeRecord:
    """A record whose signature and structure are good, whatever the time is. Raises WireError."""
    if len(sealed) > MAX_RECORD_BYTES:
        raise WireError(f"a node record of {len(sealed)} bytes; at most {MAX_RECORD_BYTES} are allowed")
    try:
        outer = pb.SignedRecord.FromString(sealed)
        inner = pb.NodeRecord.FromString(outer.record)
    except DecodeError as error:
        raise WireError("a malformed node record") from error
    if not verify_signature(PeerId(inner.peer_id), RECORD_DOMAIN, outer.record, outer.signature):
        raise WireError("a node record whose signature is not its node's")
    if not len(inner.certificate_sha256) == len(inner.run_id) == 32 or len(inner.instance) != 16:
        raise WireError("a node record with a hash or instance of the wrong length")
    if len(inner.tokenizer_fingerprint) not in (0, 32):
        raise WireError("a node record with a tokenizer fingerprint of the wrong length")
    if inner.expires_at_ms > inner.created_at_ms + LONGEST_LIFETIME_MS:
        raise WireError("a node record that would live too long")
    if not 0 <= inner.listen_port <= 65_535:
        raise WireError(f"a node record with port {inner.listen_port}")
    if len(inner.addresses) > MAX_ADDRESSES or len(inner.dht_addresses) > MAX_ADDRESSES:
        count = max(len(inner.addresses), len(inner.dht_addresses))
        raise WireError(f"a node record with {count} addresses; {MAX_ADDRESSES} are allowed")
    try:
        addresses = tuple(parse_address(text, source="node record") for text in inner.addresses)
    except ConfigError as error:
        raise WireError(str(error)) from error
    return NodeRecord(
        peer_id=PeerId(inner.peer_id),
        addresses=addresses,
        certificate_sha256=inner.certificate_sha256,
        run_id=RunId(inner.run_id),
        model=inner.model[:100],
        version=inner.version[:40],
        listen_port=inner.listen_port,
        instance=inner.instance,
        created_at_ms=inner.created_at_ms,
        expires_at_ms=inner.expires_at_ms,
        membership=inner.membership,
        dht_addresses=tuple(inner.dht_addresses),
        tokenizer_fingerprint=inner.tokenizer_fingerprint,
        sealed=sealed,
    )
