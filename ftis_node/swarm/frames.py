"""Frames of the Exchange stream: building them, and reading a peer's with every length checked."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import grpc

from ftis_node.errors import ConfigError, WireError
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.types import BatchName, PeerId
from ftis_node.wire.limits import CHUNK_BYTES, MAX_BATCH_BYTES, MAX_NAMES_PER_FRAME, MAX_PEERS_PER_FRAME
from ftis_node.wire.v1 import swarm_pb2 as pb

NAME_BYTES = 32
EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it


def have_frames(batches: Sequence[tuple[BatchName, int]]) -> Iterable[pb.Frame]:
    """Announcements, in as few frames as the limit allows."""
    for start in range(0, len(batches), MAX_NAMES_PER_FRAME):
        part = batches[start : start + MAX_NAMES_PER_FRAME]
        sizes = struct.pack(f"<{len(part)}I", *(size for _, size in part))
        yield pb.Frame(have=pb.Have(names=b"".join(name for name, _ in part), sizes=sizes))


def want_frame(names: Sequence[BatchName]) -> pb.Frame:
    return pb.Frame(want=pb.Want(names=b"".join(names)))


def chunk_frames(name: BatchName, data: bytes | None) -> Iterable[pb.Frame]:
    """A batch cut into chunks; ``None`` says that it is no longer held."""
    if data is None:
        yield pb.Frame(chunk=pb.Chunk(name=name, offset=0, data=b"", last=True))
        return
    for offset in range(0, len(data), CHUNK_BYTES):
        part = data[offset : offset + CHUNK_BYTES]
        yield pb.Frame(chunk=pb.Chunk(name=name, offset=offset, data=part, last=offset + len(part) == len(data)))


def peers_frame(addresses: Sequence[tuple[PeerId, str]]) -> pb.Frame:
    """Addresses of peers, at most as many as one frame may hold."""
    parts = []
    for peer, target in addresses[:MAX_PEERS_PER_FRAME]:
        text = target.encode()
        parts.append(peer + bytes([len(text)]) + text)
    return pb.Frame(peers=pb.Peers(entries=b"".join(parts)))


def read_peers(peers: pb.Peers) -> list[Address]:
    """A neighbour's hints, each with the peer id that must answer there. Raises WireError."""
    data = peers.entries
    addresses: list[Address] = []
    while data:
        if len(addresses) == MAX_PEERS_PER_FRAME or len(data) <= NAME_BYTES:
            raise WireError(f"addresses of peers that are cut off, or more than {MAX_PEERS_PER_FRAME}")
        end = NAME_BYTES + 1 + data[NAME_BYTES]
        peer, text, data = PeerId(data[:NAME_BYTES]), data[NAME_BYTES + 1 : end], data[end:]
        try:
            address = parse_address(text.decode("ascii"), source="a neighbour's hint")
        except (ConfigError, UnicodeDecodeError) as error:
            raise WireError("a peer's address that is none") from error
        if address.peer_id is not None:
            raise WireError("a peer's address that is none")
        addresses.append(Address(address.host, address.port, peer))
    return addresses


def read_names(packed: bytes) -> list[BatchName]:
    """Names in a peer's frame. Raises WireError when the bytes aren't whole names or too many."""
    if len(packed) % NAME_BYTES or len(packed) > NAME_BYTES * MAX_NAMES_PER_FRAME:
        raise WireError(f"{len(packed)} bytes of names; up to {MAX_NAMES_PER_FRAME} times {NAME_BYTES} are allowed")
    return [BatchName(packed[i : i + NAME_BYTES]) for i in range(0, len(packed), NAME_BYTES)]


def read_have(have: pb.Have) -> list[tuple[BatchName, int]]:
    """Names and sizes that a peer announces. Raises WireError."""
    names = read_names(have.names)
    if len(have.sizes) != 4 * len(names):
        raise WireError(f"{len(names)} names are announced with {len(have.sizes)} bytes of sizes")
    sizes = struct.unpack(f"<{len(names)}I", have.sizes)
    for size in sizes:
        if not 0 < size <= MAX_BATCH_BYTES:
            raise WireError(f"a batch of {size} bytes is announced; 1 to {MAX_BATCH_BYTES} are allowed")
    return list(zip(names, sizes, strict=True))
