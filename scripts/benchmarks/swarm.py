"""A swarm in one process: how fast batches spread, and what a node pays for it.

Every node is the whole network half (TLS, gRPC, verification, store on disk) without a DHT and without a learner;
batches of about 16 KiB come out of its outbox every 10 s, or as often as a second argument says. Times are from the
making of a batch to its commit in the receiver's store.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ftis_node.clock import now_ms
from ftis_node.commands.init import run_toml
from ftis_node.config import NetworkConfig, NodeConfig
from ftis_node.database_thread import DatabaseThread, store_thread
from ftis_node.identity import load_or_create_identity
from ftis_node.manifest import Run, parse_run
from ftis_node.network_half import NetworkHalf, Party
from ftis_node.store.learner import LearnerStore
from ftis_node.store.network import NetworkStore
from ftis_node.swarm.addresses import Address
from ftis_node.types import Completion, FinishReason, Group, RolloutPayload, SamplingParams
from ftis_node.wire.codec import encode_payload

INTERVAL_SECONDS, GROUPS, TOKENS = 10.0, 2, 200
PUBLISH_SECONDS, MOST_BATCHES = 120.0, 6
SETTLE_SECONDS, DRAIN_SECONDS = 20.0, 120.0
HELD_BY = 0.99


def make_run() -> Run:
    text = run_toml("bench").replace("completion_tokens = 48", f"completion_tokens = {TOKENS}")
    return parse_run(text.encode(), source="bench")


def payload(number: int, rng: random.Random) -> bytes:
    """About 16 KiB: 16 completions of 200 random bytes as tokens."""
    groups = []
    for index in range(GROUPS):
        completions = []
        for _ in range(8):
            text = rng.randbytes(TOKENS)
            logprobs = tuple(-rng.expovariate(1.0) for _ in range(TOKENS))
            ids = tuple(rng.randrange(150_000) for _ in range(TOKENS))
            completions.append(Completion(ids, logprobs, text, (1,) * TOKENS, FinishReason.LENGTH))
        groups.append(Group("addition", number * GROUPS + index, tuple(completions)))
    return encode_payload(RolloutPayload("bench", b"f" * 32, (151_643,), SamplingParams(1.0), tuple(groups)))


@dataclass
class Node:
    half: NetworkHalf
    database: DatabaseThread
    outbox: LearnerStore
    home: Path
    serving: asyncio.Task[None] | None = None


async def start(home: Path, run: Run, peers: list[Address], thread: ThreadPoolExecutor) -> tuple[Node, Address]:
    home.mkdir()  # noqa: ASYNC240  # nothing else runs yet
    database = DatabaseThread(NetworkStore(home), thread)
    await database(database.store.put, "manifest", run.data)
    config = NodeConfig(network=NetworkConfig(listen="127.0.0.1:0", dht="off"))
    identity = load_or_create_identity(home)
    await database(database.store.put, "peer_id", identity.peer_id)
    half = NetworkHalf(Party(home, identity, run, "bench", b""), config, peers, database)
    address = await half.start()
    node = Node(half, database, LearnerStore(home), home)
    node.serving = asyncio.create_task(half.serve())
    return node, Address(address.host, address.port, identity.peer_id)


async def publish_all(node: Node, payloads: list[bytes], run: Run, delay: float, interval: float) -> None:
    await asyncio.sleep(delay)
    for number, data in enumerate(payloads):
        created = now_ms()
        node.outbox.add_outbox(
            [(data, GROUPS)], round_number=number, created_at_ms=created, window=run.window(created),
            next_slot=(number + 1) * GROUPS,
        )  # fmt: skip
        await asyncio.sleep(interval)


async def scenario(size: int, interval: float, folder: Path) -> dict[str, float]:
    run, rng = make_run(), random.Random(1)
    batches = min(MOST_BATCHES, int(PUBLISH_SECONDS / interval))
    payloads = [payload(number, rng) for number in range(batches)]
    nodes: list[Node] = []
    thread = store_thread()
    addresses: list[Address] = []
    for number in range(size):
        node, address = await start(folder / str(number), run, rng.sample(addresses, min(2, len(addresses))), thread)
        nodes.append(node)
        addresses.append(address)
    await until(lambda: all(len(n.half.gossip.sessions) >= min(8, size - 1) for n in nodes), SETTLE_SECONDS)
    before = totals(nodes)
    used, began = await processor_seconds(thread), time.monotonic()
    await asyncio.gather(*(publish_all(node, payloads, run, rng.uniform(0, interval), interval) for node in nodes))
    must_receive = batches * size * (size - 1)
    await until(lambda: totals(nodes)["payloads_in"] - before["payloads_in"] >= must_receive, DRAIN_SECONDS)
    await asyncio.sleep(2.0)  # what has come is being stored
    seconds = time.monotonic() - began
    spent = {key: value - used[key] for key, value in (await processor_seconds(thread)).items()}
    moved = {key: value - before[key] for key, value in totals(nodes).items()}
    delays, missing = delays_of(nodes, batches)
    delays.sort()
    for node in nodes:
        assert node.serving is not None
        node.serving.cancel()
        await asyncio.gather(node.serving, return_exceptions=True)
    await asyncio.gather(*(node.half.stop() for node in nodes))
    others = spent["all"] - spent["event_loop"] - spent["store"]
    return {
        "nodes": size,
        "seconds_between_batches": interval,
        "batch_bytes": len(payloads[0]),
        "seconds": seconds,
        "until_99_percent_median_s": statistics.median(delays),
        "until_99_percent_p99_s": delays[max(0, round(0.99 * len(delays)) - 1)],
        "copies_missing_percent": 100 * missing / must_receive,
        "sent_bytes_per_node_second": moved["bytes_out"] / size / seconds,
        "sent_bytes_per_delivery": moved["bytes_out"] / must_receive,
        "messages_per_batch_and_node": moved["messages_out"] / must_receive,
        "payloads_per_batch_and_node": moved["payloads_in"] / must_receive,
        "cpu_seconds_per_node_second": spent["all"] / size / seconds,
        "cpu_ms_per_delivery": 1000 * spent["all"] / must_receive,
        "cpu_ms_per_delivery_event_loop": 1000 * spent["event_loop"] / must_receive,
        "cpu_ms_per_delivery_verify_and_store": 1000 * spent["store"] / must_receive,
        "cpu_ms_per_delivery_grpc_threads": 1000 * others / must_receive,
        "peak_memory_mib_per_node": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / size,
    }


async def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():  # noqa: ASYNC110  # there is no event to wait for
        await asyncio.sleep(0.5)


def totals(nodes: list[Node]) -> dict[str, int]:
    """The counters of all nodes together."""
    sums: Counter[str] = Counter()
    for node in nodes:
        sums.update(vars(node.half.gossip.counters))
    return dict(sums)


async def processor_seconds(thread: ThreadPoolExecutor) -> dict[str, float]:
    """Used so far by the whole process, by this thread and by the one of the stores."""
    store = await asyncio.get_running_loop().run_in_executor(thread, time.thread_time)
    return {"all": time.process_time(), "event_loop": time.thread_time(), "store": store}


def delays_of(nodes: list[Node], batches: int) -> tuple[list[float], int]:
    """Per batch, seconds until 99 % of the other nodes hold it; and how many copies never came."""
    arrivals: dict[bytes, list[float]] = {}
    for node in nodes:
        rows = node.database.store._db.execute("SELECT name, received_at_ms - created_at_ms FROM received")
        for name, delay in rows:
            arrivals.setdefault(bytes(name), []).append(delay / 1000)
    others = len(nodes) - 1
    needed = max(1, round(HELD_BY * others))
    worst = DRAIN_SECONDS + PUBLISH_SECONDS  # counted for those that never came
    delays = [sorted(held)[needed - 1] if len(held) >= needed else worst for held in arrivals.values()]
    missing = len(nodes) * batches * others - sum(map(len, arrivals.values()))
    return delays, missing


def main(size: int, interval: float) -> None:
    with tempfile.TemporaryDirectory(prefix="ftis-bench-") as folder:
        print(json.dumps(asyncio.run(scenario(size, interval, Path(folder)))))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else INTERVAL_SECONDS)
