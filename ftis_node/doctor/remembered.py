"""What a home knows already: its identity, and what its store says. Read once, and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ftis_node.doctor.findings import Verdict, ok, warning
from ftis_node.errors import HomeError, StoreError
from ftis_node.identity import KEY_FILE, daemon_of, peek_key_file
from ftis_node.status.snapshot import NodeStatus, read_status
from ftis_node.store.reader import StoreReader
from ftis_node.store.schema import STORE_FILE
from ftis_node.swarm.addresses import Address, parse_address
from ftis_node.types import PeerId

MOST_ADDRESSES = 4


@dataclass(frozen=True)
class Remembered:
    """``daemon`` is the process that runs on the home; ``trouble`` why the store can't be read; ``newest_ms`` the last
    time in it by this machine's clock; ``reached`` where peers were found before; ``pins`` who answers where.
    """

    peer_id: PeerId | None = None
    daemon: int | None = None
    exists: bool = False
    trouble: str = ""
    status: NodeStatus | None = None
    newest_ms: int | None = None
    manifest: bytes | None = None
    membership: bytes = b""
    reached: tuple[Address, ...] = ()
    pins: Mapping[str, PeerId] = field(default_factory=dict)

    def expected(self, address: Address) -> Address:
        """The address with the peer that must answer there, if that is known."""
        return Address(address.host, address.port, address.peer_id or self.pins.get(address.target))


def read_home(home: Path, peers: Sequence[Address]) -> Remembered:
    """``peers`` are the addresses whose pins are wanted. Raises ConfigError for an unusable stored manifest."""
    peer_id, daemon = _peer_id(home), _daemon(home)
    if not (home / STORE_FILE).is_file():
        return Remembered(peer_id, daemon)
    try:
        with StoreReader(home) as store:
            pins = {address.target: store.pinned(address.target) for address in peers}
            return Remembered(
                peer_id=peer_id,
                daemon=daemon,
                exists=True,
                status=read_status(home),
                newest_ms=store.newest_ms(),
                manifest=store.network_state("manifest"),
                membership=store.network_state("membership") or b"",
                reached=tuple(_address(*entry) for entry in store.reached_addresses(MOST_ADDRESSES)),
                pins={target: PeerId(peer) for target, peer in pins.items() if peer is not None},
            )
    except StoreError as error:
        return Remembered(peer_id, daemon, exists=True, trouble=str(error))


def judge_store(home: Remembered) -> Verdict:
    """Whether it can be read, and what is in it."""
    if not home.exists:
        return ok("none yet: the first `ftis-node join` makes one")
    if home.status is None:
        return warning(home.trouble)
    state = home.status
    return ok(
        f"round {state.round}, {state.published_batches:,} batches published, {state.received_batches:,} of others"
        f" held, {len(state.peers):,} peers known"
    )


def _address(peer: bytes, target: str) -> Address:
    found = parse_address(target, source="store")
    return Address(found.host, found.port, PeerId(peer))


def _peer_id(home: Path) -> PeerId | None:
    try:
        return peek_key_file(home / KEY_FILE).peer_id
    except HomeError:  # the check of the identity says why
        return None


def _daemon(home: Path) -> int | None:
    try:
        return daemon_of(home)
    except HomeError:  # the check of the home says why
        return None
