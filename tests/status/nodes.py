"""Homes as running nodes leave them, and their status page served on loopback."""

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ftis_node.identity import lock_home
from ftis_node.status.server import StatusServer, bind
from ftis_node.store.authors import OWN, PEERS, AuthorRound
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore
from ftis_node.store.peers import StoredScore, Traffic
from ftis_node.store.reports import PhaseSeconds, RoundReport, SequenceCounts, Totals, add_to_totals
from ftis_node.store.schema import STORE_FILE
from ftis_node.types import LocalProfile, PeerId
from tests.builders import RUN

OWN_ID = PeerId(b"\x0a" * 32)
HOSTILE = (
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\u202eevil\u202c \u2066\u05d0\u05d1",
    "\x1b[2J\x00\r\n\tbell\x07",
    "W" * 100,
    "Z\u0351\u036b\u0343a\u034a\u0300l\u0489g\u0308o\u030b" * 8,
    "' onmouseover='x' a=\"&amp;&lt;",
)


def empty_home(home: Path) -> Path:
    """A node that has just been started for the first time."""
    home.mkdir(parents=True, exist_ok=True)
    store = NetworkStore(home)
    store.put("peer_id", OWN_ID)
    store.close()
    return home


def report_of(number: int, before: Totals, *, peers: bool) -> RoundReport:
    rise = min(1.0, number / 120)
    filtered = round(3 + 3 * math.sin(number / 5)) if peers else 0
    report = RoundReport(
        round=number,
        own_groups=6,
        peer_groups=18 if peers else 0,
        stepped=number % 50 != 0,
        skipped_reason="log-probs not finite" if number % 50 == 0 else None,
        loss=-0.02 * rise,
        gradient_norm=0.7 - 0.3 * rise,
        own_reward=0.2 + 0.5 * rise + 0.04 * math.sin(number),
        peer_reward=0.3 + 0.3 * rise if peers else None,
        importance_weight=1.0 + 0.08 * math.sin(number / 7) if peers else None,
        truncated_share=0.02 + 0.02 * math.sin(number / 11) if peers else None,
        clipped_share=0.0,
        kl_threshold=50.0,
        peer_weight=0.75 if peers else None,
        peer_divergence=8.0 - 5 * rise + 0.4 * (number % 3) if peers else None,
        own_logprob_mismatch=3e-6,
        generated_tokens=2304,
        tokens_per_second=450.0 + 30 * math.cos(number),
        mean_decode_rows=41.5,
        own=SequenceCounts(arrived=48, trained=40, zero_advantage=8),
        peers=SequenceCounts(
            arrived=150 if peers else 0,
            trained=120 - filtered if peers else 0,
            filtered=filtered,
            zero_advantage=16 if peers else 0,
            excluded={"not_positive": 8} if peers else {},
        ),
        seconds=PhaseSeconds(
            generating=5.2, scoring=1.1, training=3.0 + 0.2 * (number % 3), waiting=2.0 + number % 4 if peers else 0.0
        ),
    )
    return add_to_totals(before, report)


def trained_home(home: Path, *, rounds: int, peers: int = 0) -> Path:
    """A node that has done rounds, alone or with peers, some of which have hostile names."""
    empty_home(home)
    network, learner = NetworkStore(home), LearnerStore(home)
    network.put("manifest", RUN.data)
    network.put("learner", b"%d running" % os.getpid())
    network.put("listening", b"%d 0.0.0.0:47100" % os.getpid())
    network.put("dht", b"%d member, 12 nodes known" % os.getpid())
    learner.put_profile(
        LocalProfile(b"f" * 32, 49152), model="HuggingFaceTB/SmolLM2-135M-Instruct", parameters=134_515_008,
        trainable=134_515_008,
    )  # fmt: skip
    learner.put_memory("micro-batches of 6,144 tokens, 64 completions decoded at the same time")
    ids = [PeerId(bytes([index + 1]) * 32) for index in range(peers)]
    for index, peer in enumerate(ids):
        add_peer(network, peer, index)
    totals = Totals()
    for number in range(1, rounds + 1):
        report = report_of(number, totals, peers=peers > 0)
        totals = report.totals
        learner.finish_round(number, [], report, by_author(number, ids), forget_before_ms=0)
    learner.put_activity(
        "waiting for 2 peers' groups" if peers else "generating 6 groups", round_number=rounds + 1, until_ms=None
    )
    network.close()
    learner.close()
    spread_times(home)
    return home


def add_peer(network: NetworkStore, peer: PeerId, index: int) -> None:
    hostile = HOSTILE[index % len(HOSTILE)] if index % 3 == 1 else None
    network.peers.connected(
        peer, address=f"{hostile or f'host-{index}.example.org'}:47100", direction="in" if index % 4 == 3 else "out",
        model=hostile or ("Qwen/Qwen2.5-1.5B-Instruct", "google/gemma-3-270m-it", "builtin:large")[index % 3],
        version="0.1.0", tokenizer_fingerprint=b"f" * 32 if index % 2 else b"g" * 32,
    )  # fmt: skip
    network.peers.traffic([Traffic(peer, 3_000_000 * (index + 1), 700_000 * (index + 2), 0.0, 12.0 + 7 * index, 0.0)])
    network.peers.put_score(peer, StoredScore(3.5 * (index % 5) - 2, 0))
    if index % 8 == 7:
        network.peers.disconnected(peer)
    if index % 11 == 4:
        network.peers.ban(peer, until_ms=2**52, reason=f"score -100, last for {hostile or 'malformed'}", proof=None)
    if index % 5 == 1:
        network.count_rejection(peer, "wrong_prompt", "author", f"{hostile or 'slot 3'} is not the assigned prompt")
        network.peers.dial_state(f"host-{index}.example.org:47100", f"refused: {hostile or 'no'}", 2**52, peer)


def by_author(number: int, peers: list[PeerId]) -> list[AuthorRound]:
    rows = [AuthorRound(OWN, sequences=48, trained=40, zero_advantage=8)]
    if peers:
        rows.append(AuthorRound(PEERS, agreement=0.2 + 0.05 * (number % 3)))
    for index, peer in enumerate(peers):
        mean = (0.25, -0.2, 0.02)[index % 3]
        agreement = mean + 0.1 * (number % 4 - 1.5) if index % 4 != 3 else None
        rows.append(AuthorRound(peer, sequences=16, trained=12 - index % 3, filtered=index % 3, agreement=agreement,
                                weight=(1.0, 0.0, 0.62, None)[index % 4]))  # fmt: skip
    return rows


def spread_times(home: Path) -> None:
    """As if every round had taken 12 s, and peers had been there for a while."""
    with contextlib.closing(sqlite3.connect(home / STORE_FILE)) as database, database:
        database.execute("UPDATE rounds SET at_ms = at_ms - 12000 * ((SELECT max(round) FROM rounds) - round) - 14000")


@dataclass(frozen=True)
class Served:
    url: str
    server: StatusServer


@contextlib.contextmanager
def serving(home: Path, *, host: str = "127.0.0.1") -> Iterator[Served]:
    """The page of a home in which this process passes for the daemon."""
    listener = bind(host, 0)
    if listener is None:
        pytest.fail("no free port")
    with lock_home(home):
        server = StatusServer(home, host, listener, os.getpid)
        server.start()
        try:
            yield Served(server.url.rstrip("/"), server)
        finally:
            server.stop()
